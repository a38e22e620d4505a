"""What happens to a machine that nothing protects any more: mark, wait, end. Pure."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from image.reaper.handshake import Word, said_of
from image.reaper.marks import Mark, mark_of
from image.reaper.model import TAG_WITHDRAWN, Decision, Verdict
from image.reaper.sweep.case import Case
from image.reaper.sweep.requests import IDLE_ON_REQUEST
from image.reaper.times import format_span, format_time, is_quiet


def forgotten(case: Case) -> Decision:
    """The next step with a running machine that is idle for long enough."""
    idle = format_span(timedelta(seconds=case.idle_s or 0.0))
    return _next_step(case, case.idle_since or case.now, f"idle for {idle}")


def unfit(case: Case) -> Decision:
    """The next step with an instance that its boot check failed, while nothing works on it: to be replaced.

    Only where a group would start that other one; by the usual way of mark, notice, grace and fresh check.
    """
    why = "its boot check failed (ready.json on it says why)"
    mark = mark_of(case.instance)
    active = case.activity.last_active_at if case.activity else None
    if active is not None and active > case.now - IDLE_ON_REQUEST:
        return case.decide(
            Verdict.KEEP_BUSY, f"{why}, but it was active at {format_time(active)}", alert=True
        )
    if mark and active and not mark.tells_of(active):
        return case.decide(Verdict.UNMARK, f"was active after it was marked, at {format_time(active)}")
    lacking = _nothing_takes_its_place(case)
    if lacking and (mark is None or case.group is not None):
        return case.decide(Verdict.ALERT, f"{why}; {lacking}, so nothing takes its place", alert=True)
    return replace(_next_step(case, case.now, why, _replace), replaced=True, alert=True)


def _nothing_takes_its_place(case: Case) -> str:
    """Why a group would start no other instance in the place of this one; empty where it would.

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
    """The next step with a stopped machine: nothing, or the second stage of its pool."""
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
    if mark and (mark.reap_after <= since or not mark.tells_of(since) or mark.idle_since < since):
        # The mark that led to the stop is no notice of the end.
        return _to_mark(case, since, f"stopped for {for_now}")
    return _next_step(case, since, f"stopped for {for_now}")


Ending = Callable[[Case, Mark, str], Decision]


def _next_step(case: Case, idle_since: datetime, why: str, end: Ending | None = None) -> Decision:
    """Mark, wait, or end a machine that nobody uses; one that the cloud would not let go is its owner's."""
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
        return case.decide(Verdict.WAIT, f"{why}; goes in {left} unless used")
    if case.instance.state == "stopped":
        return case.decide(Verdict.TERMINATE, f"{why}, told {format_time(mark.reap_after - case.grace)}")
    return (end or _end)(case, mark, why)


def _to_mark(case: Case, idle_since: datetime, why: str) -> Decision:
    reap_after = case.now + case.grace
    decision = case.decide(Verdict.MARK, f"{why}; goes after {format_time(reap_after)} unless used")
    return replace(decision, idle_since=idle_since, reap_after=reap_after)


def _end(case: Case, mark: Mark, why: str) -> Decision:
    if case.pool.action == "stop" and (case.instance.spot or case.pool.instance_store_scratch):
        reason = f"{why}, but a stop would lose its data or is refused by the cloud; the pool says stop"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    verdict = Verdict.STOP if case.pool.action == "stop" else Verdict.TERMINATE
    return _unanswered(case, mark, why) or _marked(case, mark, why, verdict)


def _replace(case: Case, mark: Mark, why: str) -> Decision:
    """Terminate, whatever the pool does with an idle instance: a stopped one would come back as it was."""
    return _unanswered(case, mark, why) or _marked(case, mark, why, Verdict.TERMINATE)


def _marked(case: Case, mark: Mark, why: str, verdict: Verdict) -> Decision:
    return case.decide(verdict, f"{why}, marked to go after {format_time(mark.reap_after)}")


def _unanswered(case: Case, mark: Mark, why: str) -> Decision | None:
    """Wait for the instance's own word for this mark: that all is saved, and that nothing runs there."""
    if not case.pool.require_acknowledgement:
        return None
    word = said_of(case.words, case.instance.id, mark.reap_after).word
    fenced = case.instance.tags.get(TAG_WITHDRAWN) == format_time(mark.reap_after)
    if fenced or word is Word.REFUSED:
        return case.decide(Verdict.UNMARK, f"{why}, but its agent refuses: in use, or kept")
    if word is None:
        return case.decide(
            Verdict.WAIT,
            f"{why}; its agent has not said that all is saved and nothing runs there",
            alert=case.now > mark.reap_after + timedelta(hours=1),
        )
    return None
