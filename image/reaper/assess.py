"""What becomes of one machine, looked at alone. Pure.

``RULES`` are asked in order, and the first that has something to say decides: all that protects comes before
all that takes away.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from image.reaper.marks import Mark, hold_of, is_marked, mark_of
from image.reaper.metrics import CODE_HUNG, HEARTBEAT
from image.reaper.model import (
    TAG_MANAGED,
    TAG_PROTECTED,
    TAG_STACK,
    Activity,
    Decision,
    Group,
    Instance,
    Verdict,
)
from image.reaper.policy import Policy, PoolPolicy, unit_price
from image.reaper.times import format_span, format_time, is_quiet

# Heartbeat, alignment to its period, and two minutes until the cloud shows it.
OLDEST_HEARTBEAT = timedelta(minutes=4)
CLOCK_TOLERANCE = timedelta(seconds=60)
KEPT_MARKS = frozenset({Verdict.KEEP_UNKNOWN, Verdict.KEEP_PROTECTED})


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
    """

    now: datetime
    instance: Instance
    group: Group | None
    activity: Activity | None
    policy: Policy
    pool: PoolPolicy
    idle_after: timedelta
    grace: timedelta

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


Rule = Callable[[Case], Decision | None]


def assess(case: Case) -> Decision:
    """The verdict on one running or stopped machine."""
    rules = STOPPED_RULES if case.instance.state == "stopped" else RULES
    found = next(decision for decision in (rule(case) for rule in rules) if decision is not None)
    keeps = found.verdict.name.startswith("KEEP") or found.verdict is Verdict.ALERT
    if keeps and found.verdict not in KEPT_MARKS and is_marked(case.instance):
        return replace(found, verdict=Verdict.UNMARK)
    return found


def _licence(case: Case) -> Decision | None:
    tags = case.instance.tags
    if tags.get(TAG_MANAGED) != "true" or tags.get(TAG_STACK) != case.policy.stack:
        return case.decide(Verdict.KEEP_PROTECTED, "not managed by this stack")
    if TAG_PROTECTED in tags:
        return case.decide(Verdict.KEEP_PROTECTED, f"tag {TAG_PROTECTED}")
    return None


def _lifecycle(case: Case) -> Decision | None:
    if case.instance.state == "pending":
        return case.decide(Verdict.KEEP_YOUNG, "still starting")
    if case.instance.state not in ("running", "stopped"):
        return case.decide(Verdict.KEEP_PROTECTED, f"already {case.instance.state}")
    if case.group is None:
        return None
    lifecycle = case.group.members[case.instance.id]
    if lifecycle != "InService":
        return case.decide(Verdict.KEEP_PROTECTED, f"{lifecycle} in its scaling group")
    return None


def _hold(case: Case) -> Decision | None:
    hold = hold_of(case.instance, case.now)
    if hold is None:
        return None
    if hold.problem:
        return case.decide(Verdict.KEEP_HELD, f"held, but {hold.problem}", alert=True)
    until = format_time(hold.until) if hold.until else "?"
    return case.decide(Verdict.KEEP_HELD, f"held until {until}: {hold.reason}")


def _young(case: Case) -> Decision | None:
    uptime = case.now - case.instance.launched_at
    needed = timedelta(minutes=case.pool.min_uptime_minutes)
    if uptime < needed:
        up, least = format_span(uptime), format_span(needed)
        return case.decide(Verdict.KEEP_YOUNG, f"up {up}, left alone for its first {least}")
    return None


def _answered(case: Case) -> Decision | None:
    if case.activity is None or not case.activity.complete:
        return _unknown(case, "the cloud did not answer for its heartbeats")
    if case.activity.newest_at is None:
        return _unknown(case, "no heartbeat in the whole window: does the agent run?")
    return None


def _fresh(case: Case) -> Decision | None:
    if case.activity is None or case.activity.newest_at is None:
        return _answered(case)
    age = case.now - case.activity.newest_at
    if age < -CLOCK_TOLERANCE:
        return _unknown(case, f"newest heartbeat lies {format_span(age)} in the future: wrong clock")
    if age > OLDEST_HEARTBEAT + timedelta(seconds=case.activity.period_s) - HEARTBEAT:
        return _unknown(case, f"newest heartbeat is {format_span(age)} old: does the agent run?")
    return None


def _sensors(case: Case) -> Decision | None:
    if case.activity is not None and case.activity.newest_value == CODE_HUNG:
        return case.decide(Verdict.ALERT, "SUSPECT-HUNG: full GPU utilisation at idle power", alert=True)
    if case.idle_s is None:
        return _unknown(case, "a sensor failed: the agent cannot tell whether the machine is idle")
    return None


def _unknown(case: Case, reason: str) -> Decision:
    return case.decide(Verdict.KEEP_UNKNOWN, reason, alert=True)


def _busy(case: Case) -> Decision | None:
    idle_s, active = case.idle_s, case.activity.last_active_at if case.activity else None
    if idle_s is None:
        return _sensors(case)
    idle = timedelta(seconds=idle_s)
    if idle < case.idle_after:
        return case.decide(
            Verdict.KEEP_BUSY, f"idle for {format_span(idle)}, forgotten after {format_span(case.idle_after)}"
        )
    # Every heartbeat counts, not only the newest: two agents on one machine may disagree.
    if active is not None and active > case.now - case.idle_after + CLOCK_TOLERANCE:
        return case.decide(
            Verdict.KEEP_BUSY, f"an earlier heartbeat told of activity at {format_time(active)}"
        )
    mark = mark_of(case.instance)
    if mark and case.idle_since and not mark.tells_of(case.idle_since):
        return case.decide(
            Verdict.UNMARK, f"was active after it was marked, about {format_time(case.idle_since)}"
        )
    return None


def _coverage(case: Case) -> Decision | None:
    found = min((window.percent for window in case.activity.coverage), default=0.0) if case.activity else 0.0
    if found < case.pool.coverage_percent:
        needed = case.pool.coverage_percent
        return _unknown(case, f"heartbeats cover {found:.0f} % of the window, {needed} % are needed")
    return None


def _forgotten(case: Case) -> Decision:
    idle = format_span(timedelta(seconds=case.idle_s or 0.0))
    return _next_step(case, case.idle_since or case.now, f"idle for {idle}")


def _stopped(case: Case) -> Decision:
    days, since = case.pool.terminate_stopped_after_days, case.instance.stopped_at
    if days is None or since is None:
        return case.decide(Verdict.KEEP_PROTECTED, "stopped: costs its disk only")
    mark = mark_of(case.instance)
    for_now = format_span(case.now - since)
    if case.now - since < timedelta(days=days):
        return case.decide(Verdict.KEEP_HELD, f"stopped for {for_now}, terminated after {days} days")
    if mark and (mark.reap_after <= since or not mark.tells_of(since) or mark.idle_since < since):
        # The mark that led to the stop is no notice of the end.
        return _to_mark(case, since, f"stopped for {for_now}")
    return _next_step(case, since, f"stopped for {for_now}")


def _next_step(case: Case, idle_since: datetime, why: str) -> Decision:
    """Mark, wait, or end a machine that nobody uses."""
    quiet = is_quiet(
        case.now, case.pool.quiet_hours, case.policy.time_zone, weekends=case.pool.quiet_weekends
    )
    if quiet:
        return case.decide(Verdict.WAIT, f"{why}; quiet hours in {case.policy.time_zone.key}")
    mark = mark_of(case.instance)
    if mark is None:
        return _to_mark(case, idle_since, why)
    if case.now < mark.reap_after:
        left = format_span(mark.reap_after - case.now)
        return case.decide(Verdict.WAIT, f"{why}; goes in {left} unless used")
    if case.instance.state == "stopped":
        return case.decide(Verdict.TERMINATE, f"{why}, told {format_time(mark.reap_after - case.grace)}")
    return _end(case, mark, why)


def _to_mark(case: Case, idle_since: datetime, why: str) -> Decision:
    reap_after = case.now + case.grace
    decision = case.decide(Verdict.MARK, f"{why}; goes after {format_time(reap_after)} unless used")
    return replace(decision, idle_since=idle_since, reap_after=reap_after)


def _end(case: Case, mark: Mark, why: str) -> Decision:
    if case.pool.action == "stop" and (case.instance.spot or case.pool.instance_store_scratch):
        reason = f"{why}, but a stop would lose its data or is refused by the cloud; the pool says stop"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    acknowledged = case.activity.acknowledged if case.activity else None
    if case.pool.require_acknowledgement and acknowledged != mark.reap_after.timestamp():
        return case.decide(
            Verdict.WAIT,
            f"{why}; its agent has not yet said that /scratch/keep is saved",
            alert=case.now > mark.reap_after + timedelta(hours=1),
        )
    verdict = Verdict.STOP if case.pool.action == "stop" else Verdict.TERMINATE
    return case.decide(verdict, f"{why}, marked to go after {format_time(mark.reap_after)}")


RULES: tuple[Rule, ...] = (
    _licence,
    _lifecycle,
    _hold,
    _young,
    _answered,
    _fresh,
    _sensors,
    _busy,
    _coverage,
    _forgotten,
)
STOPPED_RULES: tuple[Rule, ...] = (_licence, _lifecycle, _hold, _stopped)
