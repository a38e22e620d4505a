"""Rules that judge the idle time of one instance, in order. Pure.

Every rule that protects an instance stands before every rule that terminates it. The first decision counts.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from gpu_fleet_image.controllers.sweep.next_step import forgotten, given_back_note, stopped, unfit
from gpu_fleet_image.controllers.sweep.situation import Case
from gpu_fleet_image.core.marks import hold_of, is_given_back, is_marked, mark_of
from gpu_fleet_image.core.metrics import CODE_HUNG, CODE_UNFIT, HEARTBEAT
from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_MANAGED,
    TAG_PROTECTED,
    TAG_STACK,
    Activity,
    Decision,
    Verdict,
)
from gpu_fleet_image.core.times import format_span, format_time

# Heartbeat, alignment to its period, and two minutes until the cloud shows it.
OLDEST_HEARTBEAT = timedelta(minutes=4)
# A sweep over thousands of instances takes this long to read what arrives meanwhile.
NEWEST_HEARTBEAT = timedelta(minutes=2)
# Between a heartbeat's own arithmetic and the cloud's time of receipt.
JITTER = timedelta(seconds=60)
_KEPT_MARKS = frozenset({Verdict.KEEP_UNKNOWN, Verdict.KEEP_PROTECTED})
Rule = Callable[[Case], Decision | None]


def assess(case: Case) -> Decision:
    """Decide on one running or stopped instance, apart from the limits of the fleet."""
    rules = STOPPED_RULES if case.instance.state == "stopped" else RULES
    decision = next(decision for decision in (rule(case) for rule in rules) if decision is not None)
    keeps = decision.verdict.name.startswith("KEEP") or decision.verdict is Verdict.ALERT
    if keeps and decision.verdict not in _KEPT_MARKS and is_marked(case.instance):
        return replace(decision, verdict=Verdict.UNMARK)
    return decision


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
    if hold is None or (hold.is_far and case.far_for >= KEEP_AT_MOST):
        return None
    if hold.problem:
        return case.decide(Verdict.KEEP_HELD, f"held, but {hold.problem}", alert=True)
    until = format_time(hold.until) if hold.until else "?"
    return case.decide(Verdict.KEEP_HELD, f"held until {until}: {hold.reason}")


def _young(case: Case) -> Decision | None:
    uptime = case.now - case.instance.launched_at
    needed = timedelta(minutes=case.pool.min_uptime_minutes)
    if uptime < needed and not is_given_back(case.instance):
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
    if age < -NEWEST_HEARTBEAT:
        return _unknown(case, f"newest heartbeat lies {format_span(age)} in the future: wrong clock")
    if age > OLDEST_HEARTBEAT + timedelta(seconds=case.activity.period_s) - HEARTBEAT:
        return _unknown(case, f"newest heartbeat is {format_span(age)} old: does the agent run?")
    return None


def _sensors(case: Case) -> Decision | None:
    if case.activity is not None and case.activity.newest_value == CODE_HUNG:
        return case.decide(Verdict.ALERT, "SUSPECT-HUNG: full GPU utilisation at idle power", alert=True)
    if case.idle_s is None:
        return _unknown(case, "a sensor failed: whether the instance is idle is unknown")
    return None


def _gate(case: Case) -> Decision | None:
    return unfit(case) if is_unfit(case.activity) else None


def is_unfit(activity: Activity | None) -> bool:
    """Return whether an instance reports a failed boot check; it is terminated, never stopped."""
    return activity is not None and activity.newest_value == CODE_UNFIT


def _unknown(case: Case, reason: str) -> Decision:
    return case.decide(Verdict.KEEP_UNKNOWN, reason, alert=True)


def _busy(case: Case) -> Decision | None:
    idle_s, active = case.idle_s, case.activity.last_active_at if case.activity else None
    if idle_s is None:
        return _sensors(case)
    idle = timedelta(seconds=idle_s)
    if idle < case.idle_after:
        after = f"forgotten after {format_span(case.idle_after)}"
        return case.decide(Verdict.KEEP_BUSY, f"idle for {format_span(idle)}, {after}{given_back_note(case)}")
    # Every heartbeat counts, not only the newest: two agents on one instance may disagree.
    if active is not None and active > case.now - case.idle_after + JITTER:
        return case.decide(
            Verdict.KEEP_BUSY, f"an earlier heartbeat reports activity at {format_time(active)}"
        )
    mark = mark_of(case.instance)
    if mark and case.idle_since and not mark.still_holds(case.idle_since):
        return case.decide(
            Verdict.UNMARK, f"was active after it was marked, about {format_time(case.idle_since)}"
        )
    return None


def _consistent(case: Case) -> Decision | None:
    if case.activity is not None and case.activity.contradictory:
        return _unknown(case, "its heartbeats contradict one another: is the agent stuck, or are there two?")
    return None


def _coverage(case: Case) -> Decision | None:
    covered = (
        min((window.percent for window in case.activity.coverage), default=0.0) if case.activity else 0.0
    )
    if covered < case.pool.coverage_percent:
        needed = case.pool.coverage_percent
        return _unknown(case, f"heartbeats cover {covered:.0f} % of the window, {needed} % are needed")
    return None


RULES: tuple[Rule, ...] = (
    _licence,
    _lifecycle,
    _hold,
    _young,
    _answered,
    _fresh,
    _gate,
    _sensors,
    _busy,
    _consistent,
    _coverage,
    forgotten,
)
STOPPED_RULES: tuple[Rule, ...] = (_licence, _lifecycle, _hold, stopped)
