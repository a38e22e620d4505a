"""Lifetime of an instance, and its idle time before that is judged. Pure."""

from collections.abc import Collection
from datetime import datetime, timedelta

from gpu_fleet_image.core.marks import is_given_back
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.policy import PoolPolicy


def past_lifetime(instance: Instance, pool: PoolPolicy, now: datetime) -> bool:
    """Return whether a running instance is older than its pool allows, counted from its last start."""
    if pool.max_lifetime_hours is None or instance.state != "running":
        return False
    return now - instance.launched_at >= timedelta(hours=pool.max_lifetime_hours)


def shortest_idle_time(
    instance: Instance, pool: PoolPolicy, now: datetime, scale_in: Collection[str]
) -> timedelta:
    """Return the idle time from which fine heartbeats of the instance are read."""
    asked = instance.pool in scale_in or past_lifetime(instance, pool, now)
    return pool.terms(requested=asked, given_back=is_given_back(instance)).idle_after
