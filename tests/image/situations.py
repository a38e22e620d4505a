"""Hypothesis strategies for the input of a decision: true histories, their heartbeats, fleets."""

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.evidence import (
    FINE_PERIOD_S,
    FINE_WINDOW,
    coarse_period_s,
    combine,
    summarise,
)
from gpu_fleet_image.controllers.sweep.situation import Situation
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_POOL, TAG_STACK, Activity, Instance, Inventory
from tests.image.sweeping import policy
from tests.image.world import EPOCH

NOW = EPOCH + timedelta(days=2, seconds=20)
IDLE_AFTER = timedelta(hours=2)
MINUTES = 200  # of history: longer than the window, in whole coarse periods
POLICY = policy(idle_after_hours=2, grace_minutes=30, min_uptime_minutes=30, max_lifetime_hours=None)
TAGS = {TAG_STACK: "test", TAG_MANAGED: "true", TAG_POOL: "dev"}


@dataclass(frozen=True)
class History:
    """Heartbeats of an instance's agent, by minute."""

    beats: dict[int, float]  # minutes before now -> value

    def activity(self, window: timedelta = IDLE_AFTER, now=NOW) -> Activity:
        coarse_s = coarse_period_s(window)
        coarse = summarise(self._points(coarse_s), now, window, coarse_s)
        fine = summarise(self._points(FINE_PERIOD_S), now, min(FINE_WINDOW, window), FINE_PERIOD_S)
        return combine(coarse, fine)

    def _points(self, period_s):
        minima: dict[Any, float] = {}
        for ago, value in self.beats.items():
            at = NOW - timedelta(minutes=ago, seconds=20)
            start = at - timedelta(seconds=at.timestamp() % period_s)
            minima[start] = min(value, minima.get(start, value))
        return list(minima.items())

    def without(self, minutes) -> "History":
        return History({ago: value for ago, value in self.beats.items() if ago not in minutes})

    def active_at(self, ago: int) -> "History":
        """Return the history with a moment of work `ago` minutes before now."""
        beats = {
            at: min(value, (ago - at) * 60.0) if at <= ago else value for at, value in self.beats.items()
        }
        return History(beats)


def idle_history(idle_minutes: int, minutes: int = MINUTES) -> History:
    """Return the history of an instance that worked until some minutes ago, without lost heartbeats."""
    return History({ago: max(0.0, (idle_minutes - ago) * 60.0) for ago in range(1, minutes)})


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw histories of any idle time, with lost heartbeats, and perhaps with minutes of a failed sensor.

    After such a minute the agent counts from 0, as it does after work.
    """
    history = idle_history(draw(st.integers(0, MINUTES)))
    chance, seed = draw(st.sampled_from([0.0, 0.02, 0.2])), draw(st.integers(0, 1000))
    dice = random.Random(seed)
    lost = {ago for ago in history.beats if dice.random() < chance}
    for ago in [ago for ago in history.beats if dice.random() < chance / 10]:
        history = History({**history.active_at(ago).beats, ago: -1.0})
    return history.without(lost)


def make_instance(name: str = "i-1", marked_minutes_ago: int | None = 40, **changes: Any) -> Instance:
    """Return an instance that was marked after the pool's idle time, and whose grace is over by now."""
    tags = dict(TAGS)
    if marked_minutes_ago is not None:
        marked_at = NOW - timedelta(minutes=marked_minutes_ago)
        tags["gpu-fleet:reap-after"] = (marked_at + timedelta(minutes=30)).isoformat()
        tags["gpu-fleet:idle-since"] = changes.pop("idle_since", marked_at - IDLE_AFTER).isoformat()
    tags |= changes.pop("tags", {})
    more = {"type": "g5.xlarge", "state": "running", "launched_at": NOW - timedelta(days=1)} | changes
    return Instance(id=name, tags=tags, **more)


def alone(instance: Instance, activity: Activity, **more: Any) -> Situation:
    fleet = Inventory((instance,), more.pop("groups", ()))
    return Situation(more.pop("now", NOW), fleet, {instance.id: activity}, more.pop("policy", POLICY), **more)
