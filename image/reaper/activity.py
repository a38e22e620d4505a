"""From heartbeats to what they prove. Pure.

``IdleSeconds`` carries its own history: a heartbeat that is lost hides nothing, because the next one still
says how long ago the last activity was.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from image.reaper.model import HEARTBEAT, Activity

COARSE_PERIOD_S = 900
MAX_POINTS = 100_800  # of one GetMetricData answer (API GetMetricData)
MAX_QUERIES = 500  # of one GetMetricData call
KEPT_AT_60_S = timedelta(days=15)  # then CloudWatch keeps 300 s periods only


def window_start(now: datetime, window: timedelta, period_s: int) -> datetime:
    """Start of the newest window of whole periods that ends at or after ``now``, aligned as the cloud does."""
    periods = math.ceil(window.total_seconds() / period_s)
    newest = math.floor(now.timestamp() / period_s) * period_s
    return datetime.fromtimestamp(newest - (periods - 1) * period_s, UTC)


def coarse_period_s(window: timedelta) -> int:
    """Smallest period of at least 900 s with which 500 machines' windows fit one answer."""
    periods_allowed = MAX_POINTS // MAX_QUERIES - 1
    per_quarter_hour = math.ceil(window.total_seconds() / periods_allowed / COARSE_PERIOD_S)
    return COARSE_PERIOD_S * max(1, per_quarter_hour)


def summarise(
    points: Iterable[tuple[datetime, float]],
    now: datetime,
    window: timedelta,
    period_s: int,
    *,
    complete: bool = True,
) -> Activity:
    """Sum up one machine's heartbeats.

    Args:
        points: (start of the period, smallest ``IdleSeconds`` in it), in any order, repeats allowed.
        now: the moment of the decision.
        window: how far back coverage is counted.
        period_s: length of a period.
        complete: the cloud answered the whole query.

    Returns:
        The summary. ``idle_since`` takes each value as that of the period's first heartbeat: exact to one
        heartbeat for 60 s periods, and never later than the truth by more than that.
    """
    start = window_start(now, window, period_s)
    values: dict[datetime, float] = {}
    for at, value in points:
        values[at] = min(value, values.get(at, value))
    proofs = {at: value for at, value in values.items() if value >= 0}
    newest = max(values, default=None)
    return Activity(
        newest_at=newest,
        newest_value=values[newest] if newest is not None else 0.0,
        idle_since=max((at + HEARTBEAT - timedelta(seconds=proofs[at]) for at in proofs), default=None),
        seen=sum(start <= at <= now for at in proofs),
        expected=math.ceil(window.total_seconds() / period_s),
        complete=complete,
    )
