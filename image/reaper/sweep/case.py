"""One machine and all that is known of it."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from image.reaper.handshake import Words
from image.reaper.marks import mark_of
from image.reaper.model import Activity, Decision, Group, Instance, Verdict
from image.reaper.policy import Policy, PoolPolicy, unit_price


@dataclass(frozen=True)
class Case:
    """One machine and all that is known of it.

    Attributes:
        now: the moment of the decision.
        instance: the machine.
        group: its scaling group, if any.
        activity: its heartbeats, if they were asked for and answered.
        policy: of the stack.
        pool: of the machine's pool.
        idle_after: idle time from which it counts as forgotten.
        grace: time between mark and action.
        words: what the instances said for their marks.
    """

    now: datetime
    instance: Instance
    group: Group | None
    activity: Activity | None
    policy: Policy
    pool: PoolPolicy
    idle_after: timedelta
    grace: timedelta
    words: Words = field(default_factory=dict)

    @property
    def idle_s(self) -> float | None:
        """Proven seconds without activity, by the newest heartbeat alone."""
        if self.activity is None or self.activity.newest_at is None or self.activity.newest_value < 0:
            return None
        return self.activity.newest_value

    @property
    def idle_since(self) -> datetime | None:
        """Since when nothing was active, late by at most the metric's period."""
        if self.activity is None or self.activity.newest_at is None or self.idle_s is None:
            return None
        latest = min(self.activity.newest_at + timedelta(seconds=self.activity.period_s), self.now)
        return latest - timedelta(seconds=self.idle_s)

    def decide(self, verdict: Verdict, reason: str, *, alert: bool = False) -> Decision:
        """A decision on this machine."""
        mark = mark_of(self.instance)
        return Decision(
            instance=self.instance,
            verdict=verdict,
            reason=reason,
            idle_s=self.idle_s,
            idle_since=self.idle_since,
            reap_after=mark.reap_after if mark else None,
            alert=alert,
            hourly_price=unit_price(self.policy, self.instance.pool, self.instance.type),
        )
