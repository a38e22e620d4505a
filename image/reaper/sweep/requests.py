"""Requests to take a machine before it counts as forgotten: low load of its pool, and its own age. Pure.

A request never ends a machine by itself. It shortens the idle time that is asked for; mark, notice, grace
and fresh check stay as they are.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from image.reaper.model import Instance
from image.reaper.policy import PoolPolicy

# A machine that was asked for goes when it is idle this long, and never two within the cooldown.
IDLE_ON_REQUEST = timedelta(minutes=30)
COOLDOWN = timedelta(minutes=10)


@dataclass(frozen=True)
class Terms:
    """On what terms a machine may go.

    Attributes:
        idle_after: idle time before the mark.
        grace: time between mark and action.
    """

    idle_after: timedelta
    grace: timedelta


def usual_terms(pool: PoolPolicy) -> Terms:
    """The pool's own terms."""
    return Terms(timedelta(hours=pool.idle_after_hours), timedelta(minutes=pool.grace_minutes))


def requested_terms(pool: PoolPolicy) -> Terms:
    """The terms of a machine that was asked for."""
    usual = usual_terms(pool)
    return Terms(min(usual.idle_after, IDLE_ON_REQUEST), max(usual.grace, COOLDOWN))


def past_lifetime(instance: Instance, pool: PoolPolicy, now: datetime) -> bool:
    """Whether a running machine is older than its pool allows; a stop and start makes it young again."""
    if pool.max_lifetime_hours is None or instance.state != "running":
        return False
    return now - instance.launched_at >= timedelta(hours=pool.max_lifetime_hours)


def shortest_idle_time(
    instance: Instance, pool: PoolPolicy, now: datetime, scale_in: Collection[str]
) -> timedelta:
    """The idle time from which the machine's heartbeats deserve a close look."""
    asked = instance.pool in scale_in or past_lifetime(instance, pool, now)
    return (requested_terms(pool) if asked else usual_terms(pool)).idle_after
