"""The report of a day that ended: sent once by mail, and written as a page to the bucket."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpu_fleet_image.controllers.meter.efficiency import PERIOD_S, Efficiency, Reported, reported, sum_up
from gpu_fleet_image.controllers.meter.efficiency_page import headline, mail, page
from gpu_fleet_image.controllers.meter.meter import DAY
from gpu_fleet_image.controllers.meter.meter_state import Day, MeterReading
from gpu_fleet_image.core.calls import batches
from gpu_fleet_image.core.cloud import Query, Span, SweepCloud
from gpu_fleet_image.core.metrics import METRIC_GPU_SM_ACTIVITY, METRIC_GPU_UTILISATION
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store

DAYS, _REPORTS = "days", "reports"
_NOT_METERED = "NoSuchKey"
# The last heartbeats of a day arrive a little later.
_ARRIVED_AFTER = timedelta(minutes=10)
# CloudWatch keeps periods shorter than an hour for 63 days.
_FINE_FOR, _OLD_PERIOD_S = timedelta(days=60), 3600
BATCH = 500  # instances whose answers are in memory at a time


def keep(store: Store, day: Day) -> None:
    """Record a day; an existing record stays. Raises CloudError."""
    store.create(_key(DAYS, day.name, "json"), day.to_json())


def load(store: Store, name: str) -> Day:
    """Return a recorded day. Raises CloudError if there is none, or it is damaged."""
    stored = store.get(_key(DAYS, name, "json"))
    if stored is None:
        raise CloudError(f"no day {name} was metered: {_key(DAYS, name, 'json')} is not there", _NOT_METERED)
    return Day.from_json(stored.content, _key(DAYS, name, "json"))


def load_metered(store: Store, name: str) -> Day | None:
    """Return a recorded day; None if none was metered. Raises CloudError as ``load``."""
    try:
        return load(store, name)
    except CloudError as error:
        if error.code != _NOT_METERED:
            raise
        return None


def month(
    store: Store, name: str, until: datetime
) -> tuple[list[Day], dict[str, dict[str, Reported]], list[str]]:
    """Return a month's recorded days up to a moment, with their reports of each instance.

    Returns:
        The days; day -> instance id -> the time in which its GPUs computed; days that are over but not
        recorded.

    Raises:
        CloudError: something is damaged, or could not be read.
    """
    begin = datetime.strptime(name, "%Y-%m").replace(tzinfo=UTC)
    return between(store, begin, min(until, (begin + timedelta(days=31)).replace(day=1)))


def between(
    store: Store, begin: datetime, until: datetime
) -> tuple[list[Day], dict[str, dict[str, Reported]], list[str]]:
    """Return the days from a midnight up to a moment, as ``month`` does."""
    days: list[Day] = []
    computing: dict[str, dict[str, Reported]] = {}
    missing: list[str] = []
    date = begin
    while date + DAY <= until:
        day = f"{date:%Y-%m-%d}"
        metered = load_metered(store, day)
        if metered is None:
            missing.append(day)
        else:
            days.append(metered)
            computing[day] = _computing(store, day)
        date += DAY
    return days, computing, missing


def _computing(store: Store, name: str) -> dict[str, Reported]:
    try:
        gpu_time = _section(store, name, "computing").items()
        return {str(key): Reported(Decimal(share), Decimal(known)) for key, (share, known) in gpu_time}
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        where = _key(_REPORTS, name, "json")
        raise CloudError(
            f"{where}: {error!r}; without it the day's hours are unknown", "Malformed"
        ) from error


def _section(store: Store, name: str, section: str) -> Mapping[str, Any]:
    """Return a section of the report of a day; empty if it has none."""
    stored = store.get(_key(_REPORTS, name, "json"))
    content: Mapping[str, Any] = stored.content.get(section, {}) if stored is not None else {}
    return content


def hours_of(store: Store, name: str) -> str:
    """Return the GPU hours of a reported day by pool, in one line; empty without a report.

    Raises CloudError.
    """
    said = [
        f"{pool} {hours['rented']} rented, {hours['computing']} computing, {hours['idle']} idle"
        + (f", {hours['unknown']} unknown" if Decimal(hours["unknown"]) else "")
        + (f", SM activity {Decimal(hours['sm_active']):.0%}" if hours.get("sm_active") else "")
        for pool, hours in _section(store, name, "pools").items()
        if Decimal(hours["rented"])
    ]
    return f"GPU hours of {name}: {'; '.join(said)}" if said else ""


def report(cloud: SweepCloud, store: Store, policy: Policy, reading: MeterReading) -> list[str]:
    """Report the days that ended and were not reported yet.

    The object ``reports/.../DAY.json`` is written last and marks a day as reported: after an earlier failure
    the next sweep tries again, and a day with this object is not reported a second time.

    Returns:
        The days that need no report any more.

    Raises CloudError if a report could not be made.
    """
    done = []
    for name in reading.unreported:
        if store.get(_key(_REPORTS, name, "json")) is None:
            day = load(store, name)
            if reading.until < day.date + DAY + _ARRIVED_AFTER:
                continue
            report = efficiency(cloud, policy, day, reading.until)
            where = _key(_REPORTS, name, "html")
            place = store.put_page(where, page(report))
            if cloud.notifier is not None:
                cloud.notifier.send(f"{policy.stack}: {name}: {headline(report)}", mail(report, place))
            store.create(_key(_REPORTS, name, "json"), report.to_json())
        done.append(name)
    return done


def efficiency(cloud: SweepCloud, policy: Policy, day: Day, now: datetime) -> Efficiency:
    """Return a day with its instances' GPU utilisation. Raises CloudError."""
    gpus = policy.budget.gpus_of_pools() if policy.budget else {}
    computing, sm_active = (
        _mean(cloud, day, metric, now) for metric in (METRIC_GPU_UTILISATION, METRIC_GPU_SM_ACTIVITY)
    )
    counted = sum_up(day, policy.stack, policy.currency, computing, gpus, sm_active=sm_active)
    return replace(counted, lacks=policy.budget.lacks) if policy.budget else counted


def _mean(cloud: SweepCloud, day: Day, metric: str, now: datetime) -> Mapping[str, Reported]:
    """Return instance id -> mean of a percentage of its GPUs, of instances that reported it."""
    span, period_s = Span(day.date, day.date + DAY), PERIOD_S if now - day.date < _FINE_FOR else _OLD_PERIOD_S
    values: dict[str, Reported] = {}
    for batch in batches(sorted(day.instances), BATCH):
        queries = [Query(key, metric, period_s, statistic="Average") for key in batch]
        answers, failures = cloud.heartbeats.read(queries, span)
        if failures:
            raise CloudError(f"{metric} of {day.name}: {failures[0].error}")
        for query, answer in answers.items():
            if answer.points:
                percents = {int((at - day.date).total_seconds()): value for at, value in answer.points}
                values[query.instance_id] = reported(percents, day.instances[query.instance_id], period_s)
    return values


def _key(prefix: str, name: str, ending: str) -> str:
    """Return the key of a day's object, say ``reports/2026/11/2026-11-21.html``."""
    year, month, _ = name.split("-")
    return f"{prefix}/{year}/{month}/{name}.{ending}"
