"""Idle time, grace and lifetime of an instance. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_fleet_image.core.marks import is_given_back
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.policy import PoolPolicy

# An instance that was asked for is terminated when it is idle this long, and never two within the cooldown.
IDLE_ON_REQUEST = timedelta(minutes=30)
_COOLDOWN = timedelta(minutes=10)
# One that was given back is terminated when it is idle this long: the metric's periods of a heartbeat or two.
_IDLE_GIVEN_BACK = timedelta(minutes=5)


@dataclass(frozen=True)
class Terms:
    """Idle time and grace of an instance.

    Attributes:
        idle_after: idle time before the mark.
        grace: time between mark and action.
    """

    idle_after: timedelta
    grace: timedelta


def usual_terms(pool: PoolPolicy) -> Terms:
    """Return the terms of the pool."""
    return Terms(timedelta(hours=pool.idle_after_hours), timedelta(minutes=pool.grace_minutes))


def requested_terms(pool: PoolPolicy) -> Terms:
    """Return the terms for a request to scale in."""
    usual = usual_terms(pool)
    return Terms(min(usual.idle_after, IDLE_ON_REQUEST), max(usual.grace, _COOLDOWN))


def given_back_terms(pool: PoolPolicy) -> Terms:
    """Return the terms after `give-back`: a short idle time and no grace."""
    return Terms(min(usual_terms(pool).idle_after, _IDLE_GIVEN_BACK), timedelta(0))


def past_lifetime(instance: Instance, pool: PoolPolicy, now: datetime) -> bool:
    """Return whether a running instance is older than its pool allows, counted from its last start."""
    if pool.max_lifetime_hours is None or instance.state != "running":
        return False
    return now - instance.launched_at >= timedelta(hours=pool.max_lifetime_hours)


def shortest_idle_time(
    instance: Instance, pool: PoolPolicy, now: datetime, scale_in: Collection[str]
) -> timedelta:
    """Return the idle time from which fine heartbeats of the instance are read."""
    if is_given_back(instance):
        return given_back_terms(pool).idle_after
    asked = instance.pool in scale_in or past_lifetime(instance, pool, now)
    return (requested_terms(pool) if asked else usual_terms(pool)).idle_after
