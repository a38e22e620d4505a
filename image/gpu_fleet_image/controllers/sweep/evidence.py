"""Evidence of activity: which heartbeats are read, and what they prove.

In: the fleet's instances and a cloud's metrics. Out: instance id -> ``Activity``. A coarse look at every
instance, a close one at those that may be idle.

A ``SecondsSinceActivity`` carries its own history: a heartbeat that is lost hides nothing, because the next
one still says how long ago the last activity was. How long an instance is idle is taken from the newest value
alone, never from a difference of two clocks.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.controllers.sweep.situation import shortest_idle_time
from gpu_fleet_image.core.calls import Failure, batches
from gpu_fleet_image.core.cloud import MAX_POINTS, MAX_QUERIES, Heartbeats, Query, Span
from gpu_fleet_image.core.marks import is_given_back, is_marked
from gpu_fleet_image.core.metrics import HEARTBEAT, METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import Activity, Coverage, Instance
from gpu_fleet_image.core.policy import Policy

_COARSE_PERIOD_S = 900
FINE_PERIOD_S = 60
FINE_WINDOW = timedelta(hours=1)
# A heartbeat shows up this much later at most; younger periods are not counted as missing.
_INGESTION_DELAY = timedelta(minutes=2)
# Ten years. No agent counts so far: a larger value is a mistake or a joke, and says as little as no number.
_LONGEST_IDLE_S = 3.2e8
# The query reaches this far into the future, so that an instance with a wrong clock is found out.
LOOK_AHEAD = timedelta(minutes=20)


def _window_end(now: datetime, period_s: int) -> datetime:
    """End of the newest period whose heartbeats must have arrived by now, aligned as the cloud aligns."""
    arrived = (now - _INGESTION_DELAY).timestamp()
    return datetime.fromtimestamp(math.floor(arrived / period_s) * period_s, UTC)


def _window_start(now: datetime, window: timedelta, period_s: int) -> datetime:
    """Start of the window of whole periods that ends at ``_window_end``."""
    return _window_end(now, period_s) - timedelta(seconds=period_s * _periods_of(window, period_s))


def _periods_of(window: timedelta, period_s: int) -> int:
    """Whole periods that cover a window."""
    return math.ceil(window.total_seconds() / period_s)


def window_of(instance: Instance, policy: Policy) -> timedelta:
    """Length of the window that heartbeats must cover: the idle time of the pool, shorter once given back."""
    return policy.pools[instance.pool].terms(given_back=is_given_back(instance)).idle_after


def coarse_period_s(window: timedelta) -> int:
    """Smallest period of at least 900 s with which 500 instances' windows fit one answer."""
    beside_window = math.ceil((LOOK_AHEAD + _INGESTION_DELAY).total_seconds() / _COARSE_PERIOD_S) + 1
    periods_allowed = MAX_POINTS // MAX_QUERIES - beside_window
    per_quarter_hour = math.ceil(window.total_seconds() / periods_allowed / _COARSE_PERIOD_S)
    return _COARSE_PERIOD_S * max(1, per_quarter_hour)


def summarise(
    points: Iterable[tuple[datetime, float]],
    now: datetime,
    window: timedelta,
    period_s: int,
    *,
    complete: bool = True,
) -> Activity:
    """Sum up one instance's heartbeats.

    Args:
        points: (start of the period, smallest ``SecondsSinceActivity`` in it), in any order, repeats allowed.
        window: how far back coverage is counted.
        complete: the cloud answered the whole query.
    """
    start, end = _window_start(now, window, period_s), _window_end(now, period_s)
    values: dict[datetime, float] = {}
    for at, value in points:
        usable = value if value < _LONGEST_IDLE_S else -math.inf  # NaN is not below either
        values[at] = min(usable, values.get(at, usable))
    proofs = {at: value for at, value in values.items() if value >= 0}
    newest = max(values, default=None)
    return Activity(
        newest_at=newest,
        period_s=period_s,
        newest_value=values[newest] if newest is not None else 0.0,
        last_active_at=max((at - timedelta(seconds=proofs[at]) for at in proofs), default=None),
        coverage=(Coverage(sum(start <= at < end for at in proofs), _periods_of(window, period_s)),),
        complete=complete,
        contradictory=_contradictory(proofs, period_s),
    )


def _contradictory(proofs: Mapping[datetime, float], period_s: int) -> bool:
    """Return whether heartbeats disagree on when the instance fell idle.

    While an instance is idle each value grows as time goes by. One that stands still comes from an agent that
    no longer looks, and values that jump come from two agents.
    """
    if not proofs:
        return False
    newest = max(proofs)
    idle_since = newest - timedelta(seconds=proofs[newest])
    tolerance = timedelta(seconds=2 * period_s)
    return any(
        abs(at - timedelta(seconds=value) - idle_since) > tolerance
        for at, value in proofs.items()
        if at >= idle_since + tolerance
    )


def combine(coarse: Activity, fine: Activity) -> Activity:
    """Combine the whole window with fine heartbeats of its end; the fine heartbeats take precedence."""
    newest = fine if fine.newest_at is not None else coarse
    known = [activity.last_active_at for activity in (coarse, fine) if activity.last_active_at is not None]
    return Activity(
        newest_at=newest.newest_at,
        period_s=newest.period_s,
        newest_value=newest.newest_value,
        last_active_at=max(known, default=None),
        coverage=coarse.coverage[:1] + fine.coverage,
        complete=coarse.complete and fine.complete,
        contradictory=coarse.contradictory or fine.contradictory,
    )


def _may_be_idle(activity: Activity, threshold: timedelta) -> bool:
    """Return whether fine heartbeats could show the instance idle for longer than the threshold.

    Within a period the value may have grown by the period's length beyond its smallest; a code below zero
    may hide a newer value.
    """
    if activity.newest_at is None:
        return False
    grown = timedelta(seconds=activity.period_s) + HEARTBEAT
    return activity.newest_value < 0 or timedelta(seconds=activity.newest_value) + grown >= threshold


def observe(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    policy: Policy,
    now: datetime,
    scale_in: Collection[str],
) -> tuple[dict[str, Activity], list[Failure]]:
    """Read the activity of every running instance.

    An instance that the coarse look shows busy is not looked at again; that is most of a fleet in use.

    Args:
        scale_in: pools where a shorter idle time counts.

    Returns:
        Instance id -> activity, and what could not be read.
    """
    running = [
        instance for instance in instances if instance.state == "running" and instance.pool in policy.pools
    ]
    coarse: dict[str, Activity] = {}
    failures: list[Failure] = []
    for period_s, members in _by_period(running, policy).items():
        # One answer at a time: all points of thousands of instances would fill the memory.
        for batch in batches(members, MAX_QUERIES):
            activity, failed = _coarse(heartbeats, batch, policy, now, period_s, scale_in=scale_in)
            coarse |= activity
            failures += failed
    suspects = [
        instance
        for instance in running
        if is_marked(instance)
        or _may_be_idle(
            coarse[instance.id], shortest_idle_time(instance, policy.pools[instance.pool], now, scale_in)
        )
    ]
    for batch in batches(suspects, MAX_QUERIES):
        activity, failed = observe_closely(heartbeats, batch, coarse, policy, now)
        coarse |= activity
        failures += failed
    return coarse, failures


def observe_closely(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    coarse: Mapping[str, Activity],
    policy: Policy,
    now: datetime,
) -> tuple[dict[str, Activity], list[Failure]]:
    """Read the last hour of some instances by the minute, combined with their whole window."""
    if not instances:
        return {}, []
    span = Span(_window_start(now, FINE_WINDOW, FINE_PERIOD_S), now + LOOK_AHEAD)
    idle = {
        instance.id: Query(instance.id, METRIC_SECONDS_SINCE_ACTIVITY, FINE_PERIOD_S)
        for instance in instances
    }
    answers, failures = heartbeats.read(list(idle.values()), span)
    activity = {}
    for instance in instances:
        window = min(FINE_WINDOW, window_of(instance, policy))
        answer = answers[idle[instance.id]]
        fine = summarise(answer.points, now, window, FINE_PERIOD_S, complete=answer.complete)
        activity[instance.id] = combine(coarse[instance.id], fine)
    return activity, failures


def _coarse(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    policy: Policy,
    now: datetime,
    period_s: int,
    *,
    scale_in: Collection[str],
) -> tuple[dict[str, Activity], list[Failure]]:
    windows = {instance.id: window_of(instance, policy) for instance in instances}
    span = Span(_window_start(now, max(windows.values()), period_s), now + LOOK_AHEAD)
    queries = {
        instance.id: Query(
            instance.id,
            METRIC_SECONDS_SINCE_ACTIVITY,
            period_s,
            _enough(instance, policy, now, scale_in, period_s),
        )
        for instance in instances
    }
    answers, failures = heartbeats.read(list(queries.values()), span)
    activity = {
        key: summarise(answers[query].points, now, windows[key], period_s, complete=answers[query].complete)
        for key, query in queries.items()
    }
    return activity, failures


def _enough(
    instance: Instance, policy: Policy, now: datetime, scale_in: Collection[str], period_s: int
) -> float:
    """Return the seconds since the last activity below which no fine heartbeat shows it idle."""
    if is_marked(instance):
        return 0.0
    threshold = shortest_idle_time(instance, policy.pools[instance.pool], now, scale_in)
    return max(0.0, (threshold - HEARTBEAT).total_seconds() - period_s)


def _by_period(instances: Sequence[Instance], policy: Policy) -> dict[int, list[Instance]]:
    """Group instances whose windows need periods of one length."""
    grouped: dict[int, list[Instance]] = defaultdict(list)
    for instance in instances:
        grouped[coarse_period_s(policy.pools[instance.pool].terms().idle_after)].append(instance)
    return dict(sorted(grouped.items()))
