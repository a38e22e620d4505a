"""The report of a day that ended: once, by mail and as a page in the bucket."""

from collections.abc import Mapping
from datetime import timedelta

from image.reaper.calls import batches
from image.reaper.cloud import Query, Span, Statistic, SweepCloud
from image.reaper.errors import CloudError
from image.reaper.metrics import METRIC_ACTIVE_FRACTION, METRIC_TRAINING_SAMPLES
from image.reaper.money.efficiency import Efficiency, sum_up
from image.reaper.money.efficiency_page import headline, mail, page
from image.reaper.money.meter import DAY
from image.reaper.money.meter_state import Day, MeterReading, day_from_json
from image.reaper.policy import Policy
from image.reaper.store import Store

DAYS, REPORTS = "days", "reports"
PERIOD_S = int(DAY.total_seconds())
# The last heartbeats of a day arrive a little after it.
ARRIVED_AFTER = timedelta(minutes=10)
BATCH = 500  # instances whose answers are held at a time


def keep(store: Store, day: Day) -> None:
    """Put a day on record; one that is there stays as it is. Raises CloudError."""
    store.create(_key(DAYS, day.name, "json"), day.to_json())


def load(store: Store, name: str) -> Day:
    """A day on record.

    Raises:
        CloudError: there is none, or it is damaged.
    """
    stored = store.get(_key(DAYS, name, "json"))
    if stored is None:
        raise CloudError(f"no day {name} was metered: {_key(DAYS, name, 'json')} is not there", "NoSuchKey")
    try:
        return day_from_json(stored.content)
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise CloudError(f"{_key(DAYS, name, 'json')}: {error!r}", "Malformed") from error


def report(cloud: SweepCloud, store: Store, policy: Policy, reading: MeterReading) -> list[str]:
    """Report the days that ended and that nobody was notified of.

    The object ``reports/.../DAY.json`` is written last and marks a day as reported: whatever fails before is
    tried again by the next sweep, and a day that has one is reported no second time.

    Returns:
        The days that need no report any more.

    Raises:
        CloudError: one could not be made.
    """
    done = []
    for name in reading.unreported:
        if store.get(_key(REPORTS, name, "json")) is None:
            day = load(store, name)
            if reading.until < day.date + DAY + ARRIVED_AFTER:
                continue
            report = efficiency(cloud, policy, day)
            where = _key(REPORTS, name, "html")
            place = store.put_page(where, page(report))
            if cloud.notifier is not None:
                cloud.notifier.send(f"{policy.stack}: {name}: {headline(report)}", mail(report, place))
            store.create(_key(REPORTS, name, "json"), report.to_json())
        done.append(name)
    return done


def efficiency(cloud: SweepCloud, policy: Policy, day: Day) -> Efficiency:
    """A day with what its instances' agents and trainers said.

    Raises:
        CloudError: that could not be read.
    """
    busy = _read(cloud, day, METRIC_ACTIVE_FRACTION, "Average")
    samples = _read(cloud, day, METRIC_TRAINING_SAMPLES, "Sum")
    return sum_up(day, policy.stack, policy.currency, busy, samples)


def _read(cloud: SweepCloud, day: Day, metric: str, statistic: Statistic) -> Mapping[str, float]:
    """Instance id -> the day's value, of those instances that have one."""
    span = Span(day.date, day.date + DAY)
    values: dict[str, float] = {}
    for batch in batches(sorted(day.instances), BATCH):
        queries = [Query(key, metric, PERIOD_S, statistic=statistic) for key in batch]
        answers, failures = cloud.heartbeats.read(queries, span)
        if failures:
            raise CloudError(f"{metric} of {day.name}: {failures[0].error}")
        for query, answer in answers.items():
            if answer.points:
                values[query.instance_id] = max(answer.points)[1]
    return values


def _key(prefix: str, name: str, ending: str) -> str:
    """``reports/2026/11/2026-11-21.html``."""
    year, month, _ = name.split("-")
    return f"{prefix}/{year}/{month}/{name}.{ending}"
