"""The agent's next act about the sweep's mark, one at a time, from all that it knows. Pure.

    marked -> due -> saved, nothing runs: *idle* -> the sweep decides to terminate: log-ins refused, saved
    again,
    nothing runs: *closed* -> the sweep stops or terminates

Use before the decision withdraws the mark; use at any time leads to the reply *refused*. Then the mark is
void, and the next sweep removes it. A mark that is removed while log-ins are refused is refused too, before
they are accepted again: a sweep that had read it may rely on *closed*. The replies are those of
``image/gpu_fleet_image/core/handshake.py``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_fleet_image.core.handshake import CLOSED_LASTS, IDLE_LASTS, Reply, Winner
from gpu_fleet_image.instance.agent.idle_detection import Limits, activity, unknowns
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Reading, Started

# A marked instance may wait for days, for quiet hours to end or for its turn. Small writes to the kept folder
# meanwhile are no sign of use; they are saved all the same.
SAVE_AGAIN_AFTER = timedelta(minutes=5)
_SAY_AGAIN_AFTER = {Reply.IDLE: IDLE_LASTS / 3, Reply.CLOSED: CLOSED_LASTS / 3}
# A sweep terminates within a minute of its decision, or its successor does ten minutes later. If no agent
# runs, the timer gpu-door accepts log-ins again some minutes after this time
# (rootfs/usr/libexec/gpu-fleet/open-door).
CLOSED_AT_MOST = timedelta(hours=1)
# A sweep that read the last reply in time may still try to terminate, with the cloud's retries.
CLOSED_FORGOTTEN = CLOSED_LASTS + timedelta(seconds=90)
# After its decision a sweep waits 45 s for *closed*; reads are the agent's most expensive frequent calls.
_ASK_AGAIN_AFTER = timedelta(seconds=15)
# Five seconds apart: a timer of the system has ended by then, a job has not.
_BUSY_LOOKS = 2


class Act(StrEnum):
    """Next act of an agent about a mark."""

    NOTHING = "nothing"
    NOTIFY = "notify who is logged in"
    LOOK = "look at all sensors now"
    SAVE = "save /scratch/keep"
    SAY_IDLE = "say idle"
    WITHDRAW = "decide for withdrawn"
    CLOSE = "refuse log-ins and jobs"
    SAY_CLOSED = "say closed"
    REFUSE = "say refused"
    OPEN = "let users in again"
    LOWER = "let the cloud stop this instance again"


@dataclass(frozen=True)
class Seen:
    """Result of one look at all sensors.

    Attributes:
        signs: signs of use, and processes that began after the mark was due, for users.
        unknown: sensors that failed, and processes too new to have been judged idle.
        is_new: some of the signs began, or were typed, after the mark was due, so the mark does not cover
            them.
    """

    signs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def why(self) -> str:
        """Reason why the instance is not idle; empty if it is."""
        return "; ".join((*self.signs, *self.unknown))


def seen(reading: Reading, mark: datetime, limits: Limits, *, unfit: bool = False) -> Seen:
    """Return the signs of use in one look, without a minute's mean, which would hide what has only begun.

    It uses only ages, so that an agent that started after the mark was due sees the same as any other.

    Args:
        mark: the mark's reap-after. A running process that users started after it counts, however little it
            does and however long ago that was, unless it only repeats runs without result (``habits.py``).
        unfit: the gate failed the instance: GPUs that do not answer are ignored then.
    """
    since_s = (reading.at - mark).total_seconds()
    presence = reading.presence or Presence()
    used = [
        f"session: {session.kind} {session.who}"
        for session in presence.sessions
        if session.unused_s < since_s
    ]
    lately = [process for process in presence.started if not process.repeats]
    began = [_described(process) for process in (*lately, *presence.older) if process.age_s < since_s]
    not_judged = [
        f"{_described(process)} began just before" for process in lately if process.age_s >= since_s
    ]
    failed = [unknown for unknown in unknowns([reading], limits) if not (unfit and unknown.startswith("gpu"))]
    signs = (*activity([reading], limits), *used, *began)
    return Seen(signs, (*failed, *not_judged), is_new=bool(used or began))


def _described(process: Started) -> str:
    return f"process: {process.name} ({process.pid}, {process.user})"


@dataclass(frozen=True)
class Talk:
    """State of the handshake between agent and sweep for one mark.

    Attributes:
        mark: its reap-after; None for no mark.
        saved_at: when everything was last saved.
        reply: last reply that was written, at ``said_at``.
        busy_looks: consecutive looks that showed signs of use.
        asked_at: when the decision was last read.
        decided_at: its time, if it was read.
        closed_at: when log-ins and jobs began to be refused.
        refusing: why the agent will not follow the decision to terminate; empty while it may.
        fenced: the tag on the instance has been set as well.
        over: nothing more is written for this mark.
        lower_at: time from which no sweep acts on the mark. The tag that denies the stop is removed then:
            after a stop by a user the instance could otherwise never be terminated. None once that is done.
    """

    mark: datetime | None = None
    notified: bool = False
    saved_at: datetime | None = None
    reply: Reply | None = None
    said_at: datetime | None = None
    busy_looks: int = 0
    asked_at: datetime | None = None
    decision: Winner | None = None
    decided_at: datetime | None = None
    closed_at: datetime | None = None
    refusing: str = ""
    fenced: bool = False
    over: bool = False
    lower_at: datetime | None = None


@dataclass(frozen=True)
class View:
    """Input of the next act.

    Attributes:
        mark: the reap-after of the mark on the instance, or None.
        hold: why its owner keeps it; empty without a hold.
        seen: the newest look, if there was one since the last save; its signs count in ``talk.busy_looks``.
    """

    now: datetime
    mark: datetime | None
    hold: str
    talk: Talk
    seen: Seen | None = None
    save_again_after: timedelta = SAVE_AGAIN_AFTER


def next_act(view: View) -> Act:
    """Return the next act; ``NOTHING`` until the next look."""
    act, lower_at = _about_the_mark(view), view.talk.lower_at
    over_for_long = lower_at is not None and view.now >= lower_at
    return Act.LOWER if act is Act.NOTHING and over_for_long else act


def _about_the_mark(view: View) -> Act:
    talk = view.talk
    ending = talk.decision is Winner.END and talk.mark == view.mark
    if talk.closed_at is not None and (talk.over or talk.refusing or not ending):
        return _behind_a_door_of_no_use(talk, view.now)
    if view.mark is None or talk.over:
        return Act.NOTHING
    if talk.refusing:  # until it is written: no sweep removes the mark without it
        return Act.REFUSE
    if not talk.notified:
        return Act.NOTIFY
    if view.now < view.mark:
        return Act.NOTHING
    return _closing(view) if ending else _answering(view)


def _behind_a_door_of_no_use(talk: Talk, now: datetime) -> Act:
    """Accept log-ins once the reply *closed* has been refused, or no sweep relies on it any more."""
    if talk.over or _is_stale(talk, now):
        return Act.OPEN
    # an earlier agent may have replied a moment ago for a mark that this one does not know
    return Act.REFUSE if talk.refusing else Act.NOTHING


def asks(view: View) -> bool:
    """Return whether to read the decision first: at once for a new mark, then at intervals."""
    talk = view.talk
    if view.mark is None or view.now < view.mark or talk.over or talk.decision is not None:
        return False
    if talk.refusing:  # whatever the decision is
        return False
    # a clock that was set back must not cause a long silence
    return talk.asked_at is None or not talk.asked_at <= view.now < talk.asked_at + _ASK_AGAIN_AFTER


def _is_stale(talk: Talk, now: datetime) -> bool:
    """Return whether no sweep relies on the last reply any more: refusing log-ins is useless then."""
    return talk.reply is not Reply.CLOSED or talk.said_at is None or now > talk.said_at + CLOSED_FORGOTTEN


def _answering(view: View) -> Act:
    talk, seen = view.talk, view.seen
    if talk.decision is Winner.WITHDRAWN or (view.hold and talk.reply is Reply.IDLE):
        return Act.WITHDRAW
    if view.hold:
        return Act.NOTHING
    if talk.saved_at is None or view.now >= talk.saved_at + view.save_again_after:
        return Act.SAVE
    if seen is None:
        return Act.LOOK
    # before the first reply the sweep has only heartbeats, which may never show what began since
    if seen.signs and (seen.is_new or talk.reply is Reply.IDLE) and talk.busy_looks >= _BUSY_LOOKS:
        return Act.WITHDRAW
    return _say(view, Reply.IDLE, Act.SAY_IDLE)


def _closing(view: View) -> Act:
    talk = view.talk
    # since the decision: repeated restarts of the agent start no new hour, and close nothing after it
    since = [moment for moment in (talk.closed_at, talk.decided_at) if moment is not None]
    if since and view.now >= min(since) + CLOSED_AT_MOST:
        return Act.REFUSE
    return Act.CLOSE if talk.closed_at is None else _behind_the_door(view, talk.closed_at)


def _behind_the_door(view: View, closed_at: datetime) -> Act:
    talk, seen = view.talk, view.seen
    if talk.saved_at is None or talk.saved_at < closed_at:
        return Act.SAVE
    if seen is None:
        return Act.LOOK
    if seen.why and (talk.reply is Reply.CLOSED or talk.busy_looks >= _BUSY_LOOKS):
        return Act.REFUSE
    if view.now >= talk.saved_at + view.save_again_after:
        # no look happens during a copy: save only when no sweep relies on the last reply any more
        return Act.SAVE if _is_stale(talk, view.now) else Act.NOTHING
    return _say(view, Reply.CLOSED, Act.SAY_CLOSED)


def _say(view: View, reply: Reply, act: Act) -> Act:
    """Reply only right after a look that showed no sign of use, and not too often."""
    talk = view.talk
    if view.seen is None or view.seen.why:
        return Act.NOTHING
    said = talk.reply is reply and talk.said_at is not None
    fresh = said and talk.said_at is not None and view.now < talk.said_at + _SAY_AGAIN_AFTER[reply]
    return Act.NOTHING if fresh else act
