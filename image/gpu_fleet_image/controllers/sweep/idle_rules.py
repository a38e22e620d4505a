"""Rules that judge one instance, in order, and the next step with one that is idle for long enough. Pure.

Every rule that protects an instance stands before every rule that terminates it. The first decision counts.
Each step needs the one before it: a mark, the grace after it, and the acknowledgement of the instance.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_fleet_image.controllers.sweep.situation import Case
from gpu_fleet_image.core.handshake import Reply, replies_of
from gpu_fleet_image.core.marks import Mark, give_back_of, hold_of, is_given_back, is_marked, mark_of
from gpu_fleet_image.core.metrics import CODE_HUNG, CODE_UNFIT, HEARTBEAT
from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_MANAGED,
    TAG_PROTECTED,
    TAG_STACK,
    TAG_WITHDRAWN,
    Activity,
    Decision,
    Verdict,
)
from gpu_fleet_image.core.policy import IDLE_ON_REQUEST, is_quiet
from gpu_fleet_image.core.times import format_span, format_time

# Heartbeat, alignment to its period, and two minutes until the cloud shows it.
OLDEST_HEARTBEAT = timedelta(minutes=4)
# A sweep over thousands of instances takes this long to read what arrives meanwhile.
NEWEST_HEARTBEAT = timedelta(minutes=2)
# Between a heartbeat's own arithmetic and the cloud's time of receipt.
JITTER = timedelta(seconds=60)
_KEPT_MARKS = frozenset({Verdict.KEEP_UNKNOWN, Verdict.KEEP_PROTECTED})
Rule = Callable[[Case], Decision | None]
_Ending = Callable[[Case, Mark, str], Decision]


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


def forgotten(case: Case) -> Decision:
    """Decide the next step with a running instance that is idle for long enough."""
    idle = format_span(timedelta(seconds=case.idle_s or 0.0))
    return _next_step(case, case.idle_since or case.now, f"idle for {idle}{given_back_note(case)}")


def given_back_note(case: Case) -> str:
    given_back = give_back_of(case.instance)
    return f", {given_back}" if given_back else ""


def unfit(case: Case) -> Decision:
    """Decide the next step with an instance that failed its boot check and is unused: it is replaced.

    Only where a group would start that other one; by the usual way of mark, notice, grace and fresh check.
    """
    why = "its boot check failed (ready.json on it says why)"
    mark = mark_of(case.instance)
    active = case.activity.last_active_at if case.activity else None
    if active is not None and active > case.now - IDLE_ON_REQUEST:
        return case.decide(
            Verdict.KEEP_BUSY, f"{why}, but it was active at {format_time(active)}", alert=True
        )
    if mark and active and not mark.still_holds(active):
        return case.decide(Verdict.UNMARK, f"was active after it was marked, at {format_time(active)}")
    lacking = _nothing_takes_its_place(case)
    if lacking and (mark is None or case.group is not None):
        return case.decide(Verdict.ALERT, f"{why}; {lacking}, so nothing takes its place", alert=True)
    return replace(_next_step(case, case.now, why, _replace), replaced=True, alert=True)


def _nothing_takes_its_place(case: Case) -> str:
    """Return why a group would start no replacement; empty where it would.

    Alibaba Cloud detaches none of a group at its minimum, whether or not it wants fewer afterwards
    (help.aliyun.com, API DetachInstances).
    """
    group = case.group
    if group is None:
        return "it is in no group"
    if group.closed:
        return "its group is frozen"
    if case.policy.cloud == "alicloud" and group.size <= group.min_size:
        return "its group is at its minimum and lets none go; lower size.min for a while"
    return ""


def stopped(case: Case) -> Decision:
    """Decide the next step with a stopped instance: nothing, or the second stage of its pool."""
    days, since = case.pool.terminate_stopped_after_days, case.instance.stopped_at
    if days is None:
        return case.decide(Verdict.KEEP_PROTECTED, "stopped: costs its disk only")
    if since is None:
        reason = "stopped, and nobody knows since when: start it, or terminate it by hand"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    mark = mark_of(case.instance)
    for_now = format_span(case.now - since)
    if case.now - since < timedelta(days=days):
        return case.decide(Verdict.KEEP_HELD, f"stopped for {for_now}, terminated after {days} days")
    if TAG_WITHDRAWN in case.instance.tags:
        # its user stopped it before its agent could take the tag away, which no sweep may
        reason = (
            f"stopped for {for_now}, but its tag {TAG_WITHDRAWN} denies its termination: "
            "start it, or delete the tag"
        )
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    if mark and (mark.reap_after <= since or not mark.still_holds(since) or mark.idle_since < since):
        # The mark that led to the stop is no notice of the end.
        return _to_mark(case, since, f"stopped for {for_now}")
    return _next_step(case, since, f"stopped for {for_now}")


def _next_step(case: Case, idle_since: datetime, why: str, end: _Ending | None = None) -> Decision:
    """Mark, wait, or end an unused instance; one with a lock is kept and reported."""
    if case.instance.locked:
        reason = f"{why}, but {case.instance.locked}: lift it, or keep the instance"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
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
        return case.decide(Verdict.WAIT, f"{why}; will be stopped or terminated in {left} unless used")
    if case.instance.state == "stopped":
        return case.decide(Verdict.TERMINATE, f"{why}, notified {format_time(mark.reap_after - case.grace)}")
    return (end or _end)(case, mark, why)


def _to_mark(case: Case, idle_since: datetime, why: str) -> Decision:
    reap_after = case.now + case.grace
    decision = case.decide(
        Verdict.MARK, f"{why}; will be stopped or terminated after {format_time(reap_after)} unless used"
    )
    return replace(decision, idle_since=idle_since, reap_after=reap_after)


def _end(case: Case, mark: Mark, why: str) -> Decision:
    if case.pool.action == "stop" and (case.instance.spot or case.pool.instance_store_scratch):
        reason = f"{why}, but a stop would lose its data or is refused by the cloud; the pool says stop"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    verdict = Verdict.STOP if case.pool.action == "stop" else Verdict.TERMINATE
    return _unanswered(case, mark, why) or _marked(case, mark, why, verdict)


def _replace(case: Case, mark: Mark, why: str) -> Decision:
    """Terminate, whatever the action of the pool: a stopped instance would come back as unfit as it was."""
    return _unanswered(case, mark, why) or _marked(case, mark, why, Verdict.TERMINATE)


def _marked(case: Case, mark: Mark, why: str, verdict: Verdict) -> Decision:
    return case.decide(verdict, f"{why}, marked to go after {format_time(mark.reap_after)}")


def _unanswered(case: Case, mark: Mark, why: str) -> Decision | None:
    """Wait for the instance's acknowledgement of this mark: all is saved, and nothing runs."""
    if not case.pool.require_acknowledgement:
        return None
    said = replies_of(case.replies, case.instance.id, mark.reap_after)
    reply = said.reply
    fenced = case.instance.tags.get(TAG_WITHDRAWN) == format_time(mark.reap_after)
    if fenced or reply is Reply.REFUSED:
        refused = case.decide(Verdict.UNMARK, f"{why}, but its agent refuses: in use, or kept")
        return replace(refused, withdrawn=True)
    if said.flooded:
        reason = (
            f"{why}; below its mark lie more names in the records than its agent writes: none is believed"
        )
        return case.decide(Verdict.WAIT, reason, alert=True)
    if reply is None:
        return case.decide(
            Verdict.WAIT,
            f"{why}; its agent has not said that all is saved and nothing runs there",
            alert=case.now > mark.reap_after + timedelta(hours=1),
        )
    return _unreported(case, mark, why)


def _unreported(case: Case, mark: Mark, why: str) -> Decision | None:
    """Wait for a heartbeat at or after reap_after; the acknowledgement does not cover earlier work."""
    reported_at = case.activity.newest_at if case.activity else None
    if reported_at is None or reported_at < mark.reap_after:
        due = format_time(mark.reap_after)
        return case.decide(Verdict.WAIT, f"{why}; its heartbeats do not reach yet to {due}")
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
