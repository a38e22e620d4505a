"""What an agent does about the sweep's mark: one act at a time, from all that it knows. Pure.

    marked -> due -> saved, nothing runs: *idle* -> the sweep decides to end: door shut, saved again, nothing
    runs: *closed* -> the sweep stops or terminates

A sign of use before the decision makes it *withdrawn*, and either way the reply *refused*: the mark is over,
and the next sweep removes it. A mark that is removed behind the shut door is refused as well, before users
come in: a sweep that read it in time goes by *closed*. The replies are those of
``image/gpu_fleet_image/core/handshake.py``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpu_fleet_image.core.handshake import CLOSED_LASTS, IDLE_LASTS, Reply, Winner
from gpu_fleet_image.instance.agent.judge import Limits, activity, unknowns
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Reading, Started

# A marked instance may wait for days: for quiet hours to end, for its turn. What little is written to the
# kept folder meanwhile is no sign of use, and is saved all the same.
SAVE_AGAIN_AFTER = timedelta(minutes=5)
SAY_AGAIN_AFTER = {Reply.IDLE: IDLE_LASTS / 3, Reply.CLOSED: CLOSED_LASTS / 3}
# A sweep that decides terminates within a minute, or its successor does, ten minutes later. Where no agent is
# there to count, the timer gpu-door opens the door minutes later (rootfs/usr/libexec/gpu-fleet/open-door).
CLOSED_AT_MOST = timedelta(hours=1)
# A sweep that read the last reply in time may still be trying to terminate, with the cloud's retries.
CLOSED_FORGOTTEN = CLOSED_LASTS + timedelta(seconds=90)
# A sweep that decided waits 45 s for doors to shut; a read is the dearest thing that an agent does so often.
ASK_AGAIN_AFTER = timedelta(seconds=15)
# Five seconds apart: a timer of the system's is over by then, a job is not.
BUSY_LOOKS = 2


class Act(StrEnum):
    """What an agent does next about a mark."""

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
    """What one look at all sensors showed, at that moment.

    Attributes:
        signs: of use, and of what began after the mark was due, for users.
        unknown: sensors that failed, and what began so shortly before that nothing has judged it idle yet.
        is_new: some of the signs began, or were typed, after the mark was due: the mark knows nothing of it.
    """

    signs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def why(self) -> str:
        """What keeps the instance from being idle; empty where nothing does."""
        return "; ".join((*self.signs, *self.unknown))


def seen(reading: Reading, mark: datetime, limits: Limits, *, unfit: bool = False) -> Seen:
    """What one look shows, at once: no minute's mean hides what has only begun.

    It rests on ages alone, so that an agent that started after the mark was due sees what any other sees.

    Args:
        mark: the mark's reap-after; what users began since and still runs counts, however little it does and
            however long ago that was, unless it only repeats what came to nothing before (``habits.py``).
        limits: what counts as activity.
        unfit: the gate failed the instance: GPUs that do not answer count as nothing there.
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
    """How far agent and sweep are with one mark.

    Attributes:
        mark: its reap-after; None for no mark.
        notified: who is logged in knows of it.
        saved_at: when everything was last saved.
        reply: what was said last, and ``said_at`` when.
        busy_looks: looks in a row that showed signs of use.
        asked_at: when it was last read what is decided.
        decision: what is decided, as far as is known.
        decided_at: when that was, where it was read.
        closed_at: since when log-ins and jobs are refused.
        refusing: why the decision to end will not be followed; empty while it may.
        fenced: the tag on the instance says so as well.
        over: nothing more is said for this mark.
        lower_at: when no sweep goes by the mark before any more: what denies its end is removed then, for a
            user may stop the instance, and it could never be terminated. None once that is done.
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
    """All that the next act rests on.

    Attributes:
        now: the agent's time.
        mark: the reap-after of the mark on the instance, or None.
        hold: why its owner keeps it, or empty.
        talk: how far this got.
        seen: the newest look, if one was taken since the last save; its signs count in ``talk.busy_looks``.
    """

    now: datetime
    mark: datetime | None
    hold: str
    talk: Talk
    seen: Seen | None = None
    save_again_after: timedelta = SAVE_AGAIN_AFTER


def next_act(view: View) -> Act:
    """The next thing to do; ``NOTHING`` until the next look."""
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
    if talk.refusing:  # until it is written: without it no sweep takes the mark away
        return Act.REFUSE
    if not talk.notified:
        return Act.NOTIFY
    if view.now < view.mark:
        return Act.NOTHING
    return _closing(view) if ending else _answering(view)


def _behind_a_door_of_no_use(talk: Talk, now: datetime) -> Act:
    """Users come in once what was said behind the door is refused, or no sweep goes by it any more."""
    if talk.over or _is_stale(talk, now):
        return Act.OPEN
    # of what the agent before may have said a moment ago this one knows no mark
    return Act.REFUSE if talk.refusing else Act.NOTHING


def asks(view: View) -> bool:
    """Whether to read what is decided before anything else: at once for a new mark, then now and then."""
    talk = view.talk
    if view.mark is None or view.now < view.mark or talk.over or talk.decision is not None:
        return False
    if talk.refusing:  # whatever is decided
        return False
    # a clock that was set back makes no long silence
    return talk.asked_at is None or not talk.asked_at <= view.now < talk.asked_at + ASK_AGAIN_AFTER


def _is_stale(talk: Talk, now: datetime) -> bool:
    """Whether no sweep goes by the last reply any more: a shut door is of no use then."""
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
    # before the first reply heartbeats alone inform the sweep, which may never show what began since
    if seen.signs and (seen.is_new or talk.reply is Reply.IDLE) and talk.busy_looks >= BUSY_LOOKS:
        return Act.WITHDRAW
    return _say(view, Reply.IDLE, Act.SAY_IDLE)


def _closing(view: View) -> Act:
    talk = view.talk
    # since the decision: an agent that starts again and again begins no new hour, and shuts no door after it
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
    if seen.why and (talk.reply is Reply.CLOSED or talk.busy_looks >= BUSY_LOOKS):
        return Act.REFUSE
    if view.now >= talk.saved_at + view.save_again_after:
        # nobody looks while files are copied: only when no sweep goes by the last word any more
        return Act.SAVE if _is_stale(talk, view.now) else Act.NOTHING
    return _say(view, Reply.CLOSED, Act.SAY_CLOSED)


def _say(view: View, reply: Reply, act: Act) -> Act:
    """Say it only right after a look that showed nothing at all, and not too often."""
    talk = view.talk
    if view.seen is None or view.seen.why:
        return Act.NOTHING
    said = talk.reply is reply and talk.said_at is not None
    fresh = said and talk.said_at is not None and view.now < talk.said_at + SAY_AGAIN_AFTER[reply]
    return Act.NOTHING if fresh else act
