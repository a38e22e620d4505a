"""Savings of a month's stops and terminations, by pool and owner, from the ledger's records. Pure.

A terminated instance counts as if it had run on, unused, until the end of the month and no longer: the next
month's saving is not claimed. An instance that users started again counts until then, and a stopped one that
was terminated later counts once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpu_fleet_image.console.users.ledger_records import End
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError

SECONDS_PER_HOUR = Decimal(3600)
CENT = Decimal("0.01")
_MONTHS = 12


@dataclass(frozen=True)
class Month:
    """A calendar month in UTC."""

    start: datetime
    end: datetime

    @property
    def name(self) -> str:
        """Name of the month, ``2026-11``."""
        return f"{self.start:%Y-%m}"

    @property
    def days(self) -> int:
        """Number of its days."""
        return (self.end - self.start).days

    def before(self) -> "Month":
        """Return the previous month."""
        return month_of(self.start - timedelta(days=1))


def month_of(moment: datetime) -> Month:
    """Return the month of a moment."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = start.month % _MONTHS + 1
    return Month(start, start.replace(year=start.year + (following == 1), month=following))


def parse_month(text: str) -> Month:
    """Parse a month, ``2026-11``. Raises ConfigurationError if the text is malformed."""
    try:
        month = month_of(datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC))
        month.before()  # a report reads on from the previous month
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"--month {text!r}; allowed: YEAR-MONTH, say 2026-11") from error
    return month


@dataclass(frozen=True)
class Saving:
    """Saving of one stop or termination in the month.

    Attributes:
        amount: in the record's currency; None if the price was unknown.
    """

    end: End
    until: datetime
    amount: Decimal | None


@dataclass(frozen=True)
class Summary:
    """Savings of a month.

    Attributes:
        currency: of all amounts; a dash without records.
        savings: of each stop or termination, oldest first.
        by_pool, by_owner: name -> saved, largest first.
        by_day: saved until the end of each day of the month.
        unpriced: stops and terminations with an unknown price, which count as nothing.
    """

    month: Month
    currency: str
    savings: tuple[Saving, ...]
    total: Decimal
    by_pool: Mapping[str, Decimal]
    by_owner: Mapping[str, Decimal]
    by_day: tuple[Decimal, ...]
    unpriced: int


def summarise(ends: Iterable[End], month: Month, now: datetime) -> Summary:
    """Return the summary of a month.

    Args:
        ends: from the ledger, in any order, repetitions allowed; those of other months are ignored.
        now: nothing after it counts.

    Raises:
        CloudError: the records are in more than one currency.
    """
    chosen = sorted({end for end in ends if month.start <= end.at < month.end}, key=_order)
    currencies = {end.currency for end in chosen}
    if len(currencies) > 1:
        raise CloudError(f"the ledger mixes currencies: {', '.join(sorted(currencies))}")
    latest = min(month.end, now)
    savings = tuple(_saving(end, chosen[index + 1 :], latest) for index, end in enumerate(chosen))
    return Summary(
        month=month,
        currency=next(iter(currencies), "-"),
        savings=savings,
        total=sum((saving.amount or Decimal(0) for saving in savings), Decimal(0)),
        by_pool=_by(savings, "pool"),
        by_owner=_by(savings, "owner"),
        by_day=tuple(_saved_by_day(savings, month)),
        unpriced=sum(saving.amount is None for saving in savings),
    )


def _order(end: End) -> tuple[datetime, datetime, str]:
    """Return a sort key: oldest first, with a fixed order at the same moment, where only the last counts."""
    return end.at, end.launched_at, str(end.price_per_hour)


def _saving(end: End, following: Sequence[End], latest: datetime) -> Saving:
    later = [other for other in following if other.instance_id == end.instance_id]
    until = latest
    if later:
        # It was started again, or (if stopped) terminated: in both cases the next record continues from
        # there.
        until = later[0].launched_at if later[0].launched_at > end.at else later[0].at
    if end.started_at is not None:  # no record follows if its user stops it, or the month ends
        until = min(until, end.started_at)
    until = max(end.at, min(until, latest))
    if end.price_per_hour is None:
        return Saving(end, until, None)
    return Saving(end, until, (end.price_per_hour * _hours(until - end.at)).quantize(CENT))


def _hours(span: timedelta) -> Decimal:
    return Decimal(str(span.total_seconds())) / SECONDS_PER_HOUR


def _by(savings: Sequence[Saving], attribute: str) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for saving in savings:
        sums[getattr(saving.end, attribute)] += saving.amount or Decimal(0)
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _saved_by_day(savings: Sequence[Saving], month: Month) -> Iterable[Decimal]:
    for day in range(1, month.days + 1):
        moment = month.start + timedelta(days=day)
        yield sum((_saved_until(saving, moment) for saving in savings), Decimal(0)).quantize(CENT)


def _saved_until(saving: Saving, moment: datetime) -> Decimal:
    whole = saving.until - saving.end.at
    if not saving.amount or not whole:
        return Decimal(0)
    passed = max(timedelta(0), min(moment, saving.until) - saving.end.at)
    return saving.amount * _hours(passed) / _hours(whole)
