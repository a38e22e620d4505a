"""Rows of ``report --by``, ``-o focus`` and ``--bill``: the meter's days, and what others know of them."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpu_fleet_image.console.operators import bill_match, focus
from gpu_fleet_image.console.operators.bill import Bill, read
from gpu_fleet_image.console.operators.monthly_savings import Month
from gpu_fleet_image.controllers.meter import budget_check, chargeback, daily_report
from gpu_fleet_image.controllers.meter.chargeback import Attribution, RunSpan
from gpu_fleet_image.controllers.meter.efficiency import Reported
from gpu_fleet_image.controllers.meter.meter_state import Day
from gpu_fleet_image.controllers.meter.team_budgets import members_of, with_team
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI
from gpu_fleet_image.core.counting import counted, left_uncounted
from gpu_fleet_image.core.holds import account_named
from gpu_fleet_image.core.place import Asked, Place, Subject, account_of
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.runs import OVER, RUNS, STATE, state_of
from gpu_fleet_image.core.shared_options import note
from gpu_fleet_image.core.store import Store, objects_below
from gpu_fleet_image.core.times import parse_time

FOCUS = "focus"
OF_JOBS = ("owner", "team", "run")  # rows that need the record of the queue's jobs
_PARTS = len(("account", "pool", "run", "instance", STATE))  # of a report's key, below RUNS


@dataclass(frozen=True)
class RowsWanted:
    """The rows that a command line asks for.

    Attributes:
        by: a key of the chargeback; None for none.
        form: ``csv``, ``json`` or ``FOCUS``.
        bill: the cloud's; None for none.
    """

    by: str | None
    form: str
    bill: Bill | None

    @property
    def any(self) -> bool:
        """True if it asks for rows at all, instead of a page."""
        return bool(self.by or self.bill or self.form == FOCUS)

    @property
    def option(self) -> str:
        """The option that asks for them."""
        return (
            f"--bill {self.bill.path}" if self.bill else f"--by {self.by}" if self.by else f"-o {self.form}"
        )

    def check(self) -> None:
        """Raise ConfigurationError where the options contradict one another."""
        if self.form == FOCUS and (self.by or self.bill):
            raise ConfigurationError(
                f"{self.option} and -o {FOCUS}, whose rows name owner, team and pool; allowed: one"
            )
        if self.bill and self.by not in {None, "pool"}:
            raise ConfigurationError(f"--by {self.by} and {self.option}; allowed: --by pool")


@dataclass(frozen=True)
class MonthRecord:
    """A month of the meter.

    Attributes:
        computing: day -> instance id -> the time in which its GPUs computed.
        cost: the meter's own sum; None for that of the days.
    """

    name: str
    days: list[Day]
    computing: dict[str, dict[str, Reported]]
    cost: Decimal | None


def load(store: Store, month: Month, now: datetime) -> MonthRecord:
    """Return a month's days; print a warning about missing ones on standard error.

    Raises:
        ConfigurationError: no day of it is on record.
        CloudError: something is damaged, or could not be read.
    """
    days, computing, missing = daily_report.month(store, month.name, now)
    today, cost = chargeback.of_month(budget_check.standing(store), month.name)
    known = {day.name for day in days}
    days += [day for day in today if day.name not in known]
    if not days:
        raise ConfigurationError(f"--month {month.name}: the meter has no day of it on record")
    if missing and cost is None:
        note(f"warning: no record of {', '.join(missing)}: they are missing in the rows")
    return MonthRecord(month.name, days, computing, cost)


def text_of(wanted: RowsWanted, meant: Subject, asked: Asked, store: Store, month: Month) -> str:
    """Return the rows of a month; of a bill also print a summary on standard error."""
    now = datetime.now(UTC)
    record = load(store, month, now)
    _note_least(meant.policy, record)
    if wanted.bill:
        lines = read(
            wanted.bill, account=account(meant, asked), currency=meant.policy.currency, month=month.name
        )
        comparison = bill_match.compare(record.days, lines, meant.policy)
        note(comparison.sentence())
        matched = comparison.rows
        return bill_match.as_text(bill_match.by_pool(matched) if wanted.by else matched, wanted.form)
    if wanted.by:
        return rows(meant, store, record, wanted.by, wanted.form, now=now)
    record, known = attributed(meant.policy.queued, store, record, now)
    charges = focus.rows(
        record.days, record.cost, meant.policy, account(meant, asked), teams=known.teams, jobs=known.jobs
    )
    return focus.as_csv(charges)


def _note_least(policy: Policy, record: MonthRecord) -> None:
    """Print a warning on standard error about what the costs lack."""
    if policy.budget and policy.budget.lacks:
        note(f"warning: {left_uncounted(policy.budget.lacks)}")
    unpriced = {
        key for day in record.days for key, share in day.instances.items() if not share.instance.priced
    }
    if unpriced:
        note(f"warning: {counted(len(unpriced), 'instance')} without a price: not counted but for the disks")


def account(meant: Subject, asked: Asked) -> str:
    """Return the account of the stack. Raises CloudError if it is unknown."""
    policy = meant.policy
    return asked.account_id or account_of(Place(policy.stack, policy.cloud, policy.region))


def rows(meant: Subject, store: Store, record: MonthRecord, by: str, form: str, *, now: datetime) -> str:
    """Return the rows of a month by a key, as ``csv`` or ``json``."""
    budget = meant.policy.budget
    gpus = budget.gpus_of_pools() if budget else {}
    attribution = Attribution()
    if by in OF_JOBS:
        record, attribution = attributed(meant.policy.queued, store, record, now)
        attribution = replace(attribution, runs=runs_of(meant, record, now) if by == "run" else {})
    charges = chargeback.charges(
        record.days, record.computing, by, gpus, record.cost, attribution=attribution
    )
    begin = datetime.strptime(record.name, "%Y-%m").replace(tzinfo=UTC)
    work = chargeback.work_of(attribution.runs, begin) if by == "run" else None
    return chargeback.as_text(charges, by, meant.policy.currency, form, work)


def attributed(
    queued: frozenset[str], store: Store, record: MonthRecord, now: datetime
) -> tuple[MonthRecord, Attribution]:
    """Return a month by the stack's accounts, and their teams and jobs; raises as ``of_jobs``."""
    people = members_of(store)
    record = replace(record, days=of_accounts(record.days, people))
    return record, replace(of_jobs(queued, store, record, now), teams=with_team(people))


def of_accounts(days: Iterable[Day], accounts: Container[str]) -> list[Day]:
    """Return days whose owners are named as the stack's accounts, by which the queue knows them too."""
    return [_of_accounts(day, accounts) for day in days]


def _of_accounts(day: Day, accounts: Container[str]) -> Day:
    shares = dict(day.instances)
    for key, share in shares.items():
        account = account_named(share.instance.owner)
        if account in accounts:
            shares[key] = replace(share, instance=replace(share.instance, owner=account))
    return replace(day, instances=shares)


def of_jobs(queued: frozenset[str], store: Store, record: MonthRecord, now: datetime) -> Attribution:
    """Return the time of the queue's jobs; a warning on standard error names days without a record.

    Args:
        queued: pools of the queue now; the records name the instances of those that it had earlier.

    Raises CloudError if the bucket could not be read.
    """
    uses = {day.name: job_use.load_readable(store, day.name) for day in record.days}
    known = {name: use for name, use in uses.items() if use is not None}
    for day in record.days:
        on = day.instances.keys() & (known[day.name].used if day.name in known else ())
        queued |= {day.instances[key].instance.pool for key in on}
    missing = [day.name for day in record.days if day.name not in known and not queued.isdisjoint(day.pools)]
    if missing:
        note(f"warning: no readable record of the queue's jobs of {', '.join(missing)}: it is unknown whose")
    return Attribution(
        jobs={name: use.used for name, use in known.items()},
        queued=queued,
        unseen={name: use.unseen_s(now) for name, use in known.items()},
    )


def runs_of(meant: Subject, record: MonthRecord, now: datetime) -> dict[str, list[RunSpan]]:
    """Return instance id -> the submitted runs that it had in a month, by their own reports.

    Users' processes write the reports. A run's account is in its key, which no other account can write.
    A report that is malformed counts as no run.

    Raises CloudError if the bucket could not be read.
    """
    bucket = meant.environ.get(LEDGER_URI, "").partition("://")[2].partition("/")[0]
    s3, calls = clouds.bucket_client(meant.policy.cloud, meant.policy.region), Calls(lambda: now)
    begin = datetime.strptime(record.name, "%Y-%m").replace(tzinfo=UTC)
    spans: dict[str, list[RunSpan]] = defaultdict(list)
    for key in _states(s3, calls, bucket, begin):
        account, _, run, instance, _ = key.removeprefix(f"{RUNS}/").split("/")
        body = calls.read(s3.get_object, Bucket=bucket, Key=key)["Body"].read()
        if (span := span_of(f"{account}/{run}", body, now)) is not None:
            spans[instance].append(span)
    return spans


def _states(s3: Any, calls: Calls, bucket: str, begin: datetime) -> Iterator[str]:
    """Yield the keys of the reports that were written since a time."""
    for item in objects_below(s3, bucket, f"{RUNS}/", calls.read):
        parts = str(item["Key"]).removeprefix(f"{RUNS}/").split("/")
        if item["LastModified"] >= begin and len(parts) == _PARTS and parts[-1] == STATE:
            yield str(item["Key"])


def span_of(name: str, report: bytes, now: datetime) -> RunSpan | None:
    """Return the time of a run on an instance, by its last report there; None if that does not say it."""
    state = state_of(report)
    try:
        begin = parse_time(state.started_at)
        end = parse_time(state.at) if state.phase in OVER else now
    except ValueError:
        return None
    return RunSpan(name, begin, end, state.samples, state.samples_before, state.tokens_per_sample)
