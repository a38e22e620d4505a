"""Which heartbeats to ask for: a coarse look at every machine, a close one at those that may be idle."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from image.reaper.calls import Failure, batches
from image.reaper.marks import is_marked
from image.reaper.metrics import HEARTBEAT, METRIC_SECONDS_SINCE_ACTIVITY
from image.reaper.model import Activity, Instance
from image.reaper.policy import Policy
from image.reaper.sweep.activity import (
    FINE_PERIOD_S,
    FINE_WINDOW,
    LOOK_AHEAD,
    MAX_QUERIES,
    coarse_period_s,
    combine,
    may_be_idle,
    summarise,
    window_start,
)
from image.reaper.sweep.cloud import Heartbeats
from image.reaper.sweep.heartbeats import Query, Span
from image.reaper.sweep.requests import shortest_idle_time


def observe(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    policy: Policy,
    now: datetime,
    scale_in: Collection[str],
) -> tuple[dict[str, Activity], list[Failure]]:
    """What is known of every running machine.

    A machine that the coarse look shows busy is not looked at again; that is most of a fleet in use.

    Args:
        heartbeats: where to read them.
        instances: the machines.
        policy: of the stack.
        now: the time of the sweep.
        scale_in: pools where a shorter idle time counts.

    Returns:
        Instance id -> activity, and what could not be read.
    """
    running = [one for one in instances if one.state == "running" and one.pool in policy.pools]
    coarse: dict[str, Activity] = {}
    failures: list[Failure] = []
    for period_s, members in _by_period(running, policy).items():
        # One answer at a time: all points of thousands of machines would fill the memory.
        for batch in batches(members, MAX_QUERIES):
            found, failed = _coarse(heartbeats, batch, policy, now, period_s, scale_in=scale_in)
            coarse |= found
            failures += failed
    suspects = [
        one
        for one in running
        if is_marked(one)
        or may_be_idle(coarse[one.id], shortest_idle_time(one, policy.pools[one.pool], now, scale_in))
    ]
    for batch in batches(suspects, MAX_QUERIES):
        found, failed = look_closely(heartbeats, batch, coarse, policy, now)
        coarse |= found
        failures += failed
    return coarse, failures


def look_closely(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    coarse: Mapping[str, Activity],
    policy: Policy,
    now: datetime,
) -> tuple[dict[str, Activity], list[Failure]]:
    """The last hour of some machines by the minute, joined with what is known of their whole window."""
    if not instances:
        return {}, []
    span = Span(window_start(now, FINE_WINDOW, FINE_PERIOD_S), now + LOOK_AHEAD)
    idle = {one.id: Query(one.id, METRIC_SECONDS_SINCE_ACTIVITY, FINE_PERIOD_S) for one in instances}
    answers, failures = heartbeats.read(list(idle.values()), span)
    found = {}
    for one in instances:
        window = min(FINE_WINDOW, timedelta(hours=policy.pools[one.pool].idle_after_hours))
        answer = answers[idle[one.id]]
        fine = summarise(answer.points, now, window, FINE_PERIOD_S, complete=answer.complete)
        found[one.id] = combine(coarse[one.id], fine)
    return found, failures


def _coarse(
    heartbeats: Heartbeats,
    instances: Sequence[Instance],
    policy: Policy,
    now: datetime,
    period_s: int,
    *,
    scale_in: Collection[str],
) -> tuple[dict[str, Activity], list[Failure]]:
    windows = {one.id: timedelta(hours=policy.pools[one.pool].idle_after_hours) for one in instances}
    span = Span(window_start(now, max(windows.values()), period_s), now + LOOK_AHEAD)
    queries = {
        one.id: Query(
            one.id, METRIC_SECONDS_SINCE_ACTIVITY, period_s, _enough(one, policy, now, scale_in, period_s)
        )
        for one in instances
    }
    answers, failures = heartbeats.read(list(queries.values()), span)
    found = {
        key: summarise(answers[query].points, now, windows[key], period_s, complete=answers[query].complete)
        for key, query in queries.items()
    }
    return found, failures


def _enough(one: Instance, policy: Policy, now: datetime, scale_in: Collection[str], period_s: int) -> float:
    """Seconds since the last activity below which no close look could find the machine idle."""
    if is_marked(one):
        return 0.0
    threshold = shortest_idle_time(one, policy.pools[one.pool], now, scale_in)
    return max(0.0, (threshold - HEARTBEAT).total_seconds() - period_s)


def _by_period(instances: Sequence[Instance], policy: Policy) -> dict[int, list[Instance]]:
    """Machines whose windows need periods of the same length are asked for together."""
    grouped: dict[int, list[Instance]] = defaultdict(list)
    for one in instances:
        window = timedelta(hours=policy.pools[one.pool].idle_after_hours)
        grouped[coarse_period_s(window)].append(one)
    return dict(sorted(grouped.items()))
