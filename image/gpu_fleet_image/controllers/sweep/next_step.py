"""Next step with an instance that may leave: mark it, wait, stop or terminate it. Pure.

Each step needs the one before it: a mark, the grace after it, and the acknowledgement of the instance.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_fleet_image.controllers.sweep.situation import Case
from gpu_fleet_image.core.handshake import Reply, replies_of
from gpu_fleet_image.core.marks import Mark, give_back_of, mark_of
from gpu_fleet_image.core.model import TAG_WITHDRAWN, Decision, Verdict
from gpu_fleet_image.core.policy import IDLE_ON_REQUEST, is_quiet
from gpu_fleet_image.core.times import format_span, format_time


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


_Ending = Callable[[Case, Mark, str], Decision]


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
