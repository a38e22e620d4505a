"""The agent's second thread: drains the instance on a notice, and answers the sweep's mark."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path

from gpu_fleet_image.core import paths
from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.core.handshake import Exchange, Reply, Winner
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.instance.agent import kept_files
from gpu_fleet_image.instance.agent.answers import (
    CLOSED_FORGOTTEN,
    SAVE_AGAIN_AFTER,
    Act,
    Seen,
    Talk,
    View,
    asks,
    next_act,
)
from gpu_fleet_image.instance.agent.cloud import AgentCloud, Fence
from gpu_fleet_image.instance.agent.drain import Drain, Holds, Steps
from gpu_fleet_image.instance.agent.kept_files import Saved
from gpu_fleet_image.instance.agent.notices import Notice, Notices
from gpu_fleet_image.instance.agent.sensors.counters import OwnUse
from gpu_fleet_image.instance.agent.show import show_all, show_in, withdraw

LOG = logging.getLogger(__name__)

# While log-ins are refused, a job can still start in an open terminal; it must be seen within a second.
CLOSED_FASTER = 5
OPEN_AGAIN = "This instance is not terminated for now: log-ins and jobs are accepted again."
_REMOVED = "its mark was removed or replaced while log-ins were refused"
CLOSED = "This instance is idle and is being terminated: nothing new can be started here. Start another one."


@dataclass(frozen=True)
class Answers:
    """Actions on a notice or a mark.

    Attributes:
        save: copies the kept folder; raises ``CloudError``.
        poll: reads all sensors now, for a mark that was due.
        store: returns the store of replies; raises ``CloudError``.
        caller: returns the cloud's name of this instance's credentials; raises ``CloudError``.
        fence: denies a stop of this instance to the sweep, if the cloud can.
        door: refuses log-ins and jobs.
        withdraw: removes shown messages where possible.
    """

    drain: Callable[[Notice], Drain]
    save: Callable[[], Saved]
    notify: Callable[[str], None]
    poll: Callable[[datetime], Seen]
    store: Callable[[], Store]
    caller: Callable[[], str]
    fence: Fence
    door: "Door"
    withdraw: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Target:
    """The instance: its instance file and its id."""

    instance: InstanceFile
    instance_id: str


@dataclass(frozen=True)
class Senses:
    """Sources of what runs on the instance.

    Attributes:
        trainers: training processes that run now.
        own: the agent's own use of resources; each copy is noted there.
        poll: as in ``Answers``.
    """

    trainers: Callable[[], Sequence[str]]
    own: OwnUse
    poll: Callable[[datetime], Seen]


class Door:
    """Refusal of log-ins (``pam_nologin``) and jobs (``gpu-fleet train launch`` checks ``closed``).

    Root may pass.

    Both files hold the same text. ``closed`` is written first and removed last. A ``nologin`` with another
    text belongs to an administrator, or to the system while it boots: it is neither overwritten nor removed.
    If ``closed`` alone is removed, the text still shows that ``nologin`` is the agent's.

    Args:
        closed: the agent's own file.
        nologin: the file that an administrator may write as well.
    """

    def __init__(self, closed: Path, nologin: Path) -> None:
        self._closed, self._nologin = closed, nologin

    @property
    def is_shut(self) -> bool:
        """True while log-ins or jobs are refused."""
        return self._closed.exists() or self._is_ours()

    def shut_at(self, now: datetime) -> datetime | None:
        """Return since when log-ins or jobs are refused, by the file's own time, as ``open-door`` does.

        Returns:
            Now if it is unknown, None if nothing is refused.
        """
        if not self.is_shut:
            return None
        try:
            return min(now, datetime.fromtimestamp(self._closed.lstat().st_mtime, UTC))
        except FileNotFoundError:
            return now

    def shut(self, message: str) -> None:
        """Refuse log-ins and jobs from now on; a refusal in force stays as it is.

        Raises OSError if that fails; nothing is refused then, and what was written is removed.
        """
        try:
            for file in (self._closed, self._nologin):
                if not file.exists():
                    replace_text(file, message + "\n")
        except OSError:
            self.open()
            raise

    def open(self) -> None:
        """Accept log-ins and jobs again. Raises OSError."""
        if self._is_ours():
            self._nologin.unlink(missing_ok=True)
        self._closed.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        content = _text_of(self._nologin)
        return content is not None and content in (CLOSED + "\n", _text_of(self._closed))


def _text_of(file: Path) -> str | None:
    """Return a file's text; None if it is absent or not the agent's."""
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError):
        return None


def long_ago() -> datetime:
    """Return a time before any mark."""
    return datetime.min.replace(tzinfo=UTC)


class NoticeListener:
    """Poller of notices and of the sweep's mark, with the actions that follow.

    Args:
        save_again_after: time between two copies for one mark, on the agent's clock.
        booted_at: returns when the instance booted. A mark that was due before the boot is ignored, because
            the start is a sign of use.
    """

    def __init__(
        self,
        notices: Notices,
        answers: Answers,
        now: Callable[[], datetime],
        save_again_after: timedelta = SAVE_AGAIN_AFTER,
        booted_at: Callable[[], datetime] = long_ago,
    ) -> None:
        self._booted_at = booted_at
        self._save_again_after = save_again_after
        self.notices = notices
        self._answers = answers
        self._now = now
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        # An agent that restarts while log-ins are refused checks whether they must stay refused. The one
        # before may have replied *closed* a moment ago, and a sweep may rely on that.
        closed_at = answers.door.shut_at(now())
        self.talk = Talk(closed_at=closed_at, lower_at=now() + CLOSED_FORGOTTEN)
        if closed_at is not None:
            self._change(reply=Reply.CLOSED, said_at=now())

    def start(self, every_s: float) -> None:
        """Listen in a thread that ends with the process.

        Args:
            every_s: real seconds between two polls.
        """
        self._thread = threading.Thread(target=self._run, args=(every_s,), name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling; wait for a drain that has begun."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, every_s: float) -> None:
        silent = False
        while not self._closed.wait(every_s / CLOSED_FASTER if self.talk.closed_at else every_s):
            try:
                if self.poll():
                    return
                silent = False
            except (CloudError, OSError) as error:
                if not silent:  # once for each silence, not every few seconds
                    LOG.warning("event=no-word reason=%r", str(error))
                silent = True
            except Exception:  # without this thread a drain would save nothing
                LOG.exception("event=listening-failed")

    def poll(self) -> bool:
        """Poll once, and carry out what follows.

        Returns:
            Whether the instance is being terminated; its drain is complete then.

        Raises:
            CloudError: a service does not answer.
            OSError: log-ins can be neither refused nor accepted again.
        """
        notice = self.notices.find()
        if notice is not None:
            self._answers.drain(notice).run(self.notices.find)
            return True
        mark = self.notices.mark()
        self._answer(mark if mark is not None and mark > self._booted_at() else None)
        return False

    def _answer(self, mark: datetime | None) -> None:
        """Carry out everything that can be done about a mark now."""
        left = self.talk.mark
        if left not in (None, mark) and self.talk.closed_at is not None:
            self._change(refusing=self.talk.refusing or _REMOVED)
            self._act_on(left, hold="")
        self._take_up(mark)
        self._act_on(mark, self.notices.hold() if mark is not None and self._now() >= mark else "")

    def _act_on(self, mark: datetime | None, hold: str) -> None:
        if asks(View(self._now(), mark, hold, self.talk)):
            self._ask()
        seen: Seen | None = None
        while True:
            view = View(self._now(), mark, hold, self.talk, seen, self._save_again_after)
            act = next_act(view)
            if act is Act.NOTHING:
                return
            seen = self._do(act, view)

    def _ask(self) -> None:
        """Read the decision. Raises CloudError: it is read again at the next look."""
        decided = self._exchange().decided()
        if decided is not None:
            # an agent that died since may have refused the mark: then log-ins stay open
            over = self._exchange().is_refused()
            self._change(decision=decided.winner, decided_at=decided.at, over=over)
        self._change(asked_at=self._now())

    def _take_up(self, mark: datetime | None) -> None:
        """Start with a new mark; a refusal of log-ins from before this agent's start stays in force."""
        if self.talk.mark == mark:
            return
        if self.talk.mark is not None and self.talk.notified:
            self._answers.withdraw()
        if self.talk.mark is None and self.talk.closed_at is not None:
            self._change(mark=mark, notified=True)
            return
        self.talk = Talk(mark, lower_at=self._now() + CLOSED_FORGOTTEN)

    def _do(self, act: Act, view: View) -> Seen | None:
        """Carry out one act; return the newest look, if it still counts.

        Raises:
            CloudError: the act failed; it is tried again.
        """
        LOG.log(logging.DEBUG if act is Act.LOOK else logging.INFO, "event=answer act=%r", str(act))
        match act:
            case Act.LOOK:
                return self._poll_for(view)
            case Act.NOTIFY:
                self._notify()
            case Act.SAVE:
                saved = self._answers.save()
                LOG.info("event=saved mark=%s files=%d", view.mark, saved.files)
                self._change(saved_at=self._now())
                return None
            case Act.SAY_IDLE | Act.SAY_CLOSED:
                self._say(Reply.IDLE if act is Act.SAY_IDLE else Reply.CLOSED)
            case Act.WITHDRAW:
                self._withdraw(view)
            case Act.CLOSE:
                self._close()
                return None
            case Act.REFUSE:
                why = view.seen.why if view.seen else ""
                self._refuse(view.talk.refusing or why or "no sweep terminated it")
            case Act.OPEN:
                self._open()
            case Act.LOWER:
                self._answers.fence.lower_but(self.talk.mark)
                self._change(lower_at=None)
        return view.seen

    def _poll_for(self, view: View) -> Seen:
        seen = self._answers.poll(self._mark)
        if seen.why and view.talk.busy_looks == 0:  # once for each period of use, not every few seconds
            LOG.info("event=in-use mark=%s why=%r", view.mark, seen.why)
        self._change(busy_looks=view.talk.busy_looks + 1 if seen.why else 0)
        return seen

    def _notify(self) -> None:
        self._answers.notify(
            f"This instance is idle and is terminated or stopped after {self._mark:%Y-%m-%d %H:%M} UTC. "
            'Using it keeps it, and so does: gpu-fleet keep 8h --reason "..."; to end the hold: '
            "gpu-fleet release. /scratch/keep is saved before."
        )
        self._change(notified=True)

    def _close(self) -> None:
        if self._is_shut():
            self._change(closed_at=self._now())
            self._answers.notify(CLOSED)

    def _is_shut(self) -> bool:
        """Return whether new log-ins are refused. If that fails, say in a full /run, the mark is refused."""
        try:
            self._answers.door.shut(CLOSED)
        except OSError as error:
            self._refuse(f"log-ins and jobs cannot be refused: {error}")
            return False
        return True

    def _say(self, reply: Reply, **more: str) -> None:
        if reply is Reply.CLOSED and not self._is_shut():  # an administrator may have removed the files
            return
        self._exchange().say(reply, **more)
        self._change(reply=reply, said_at=self._now())

    def _withdraw(self, view: View) -> None:
        why = f"held: {view.hold}" if view.hold else view.seen.why if view.seen else ""
        reason = why or "withdrawn before"
        decided = self._exchange().claim(Winner.WITHDRAWN, reason, self._now())
        self._change(decision=decided)
        if decided is Winner.END and view.hold:
            return  # the sweep itself reads the hold
        # too late to withdraw; what was seen may have ended by the next look
        self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        """Refuse this mark: set the fence, and write the last reply for it."""
        if not self.talk.refusing:  # a reply that could not be written is tried again at each look
            LOG.warning("event=refused mark=%s reason=%r", self._mark, reason)
        self._change(refusing=reason)
        if not self.talk.fenced:
            self._fence()
        self._say(Reply.REFUSED, reason=reason)
        self._change(over=True)

    def _fence(self) -> None:
        """Set the second fence. Without it, the reply or the decision alone has to suffice."""
        try:
            self._answers.fence.raise_for(self._mark)
        except CloudError as error:
            LOG.error("event=not-fenced mark=%s reason=%r", self._mark, str(error))
        else:
            self._change(fenced=True)

    def _open(self) -> None:
        self._answers.door.open()
        self._change(closed_at=None)
        self._answers.notify(OPEN_AGAIN)

    def _exchange(self) -> Exchange:
        return Exchange(self._answers.store(), self._answers.caller(), self._mark)

    @property
    def _mark(self) -> datetime:
        if self.talk.mark is None:
            raise AssertionError("an act needs a mark")
        return self.talk.mark

    def _change(self, **changes: object) -> None:
        self.talk = replace(self.talk, **changes)  # type: ignore[arg-type] # names and types are Talk's


def answers(
    cloud: AgentCloud, target: Target, folder: Path, senses: Senses, shown_in: Path | None = None
) -> Answers:
    """Return the answers of an instance.

    Args:
        shown_in: a file that replaces terminals and notebooks; None for the real ones.

    Raises:
        ConfigurationError: ``data_uri`` names no bucket.
    """
    instance, instance_id = target.instance, target.instance_id
    show, remove = (partial(show_in, shown_in), lambda: None) if shown_in else (show_all, withdraw)
    to = kept_files.place(instance.data_uri, instance.pool, instance_id)
    sent: dict[str, kept_files.Version] = {}

    def save(progress: Callable[[], None] = lambda: None) -> Saved:
        with senses.own.copying():
            return kept_files.save(folder, cloud.bucket(), to, progress, sent)

    def hook(notice: Notice) -> Holds | None:
        if notice.ends_at is not None or not instance.lifecycle_hook:
            return None
        return cloud.hook(instance_id)

    def drain(notice: Notice) -> Drain:
        steps = Steps(show, senses.trainers, save, hook(notice), lambda: datetime.now(UTC), time.sleep)
        return Drain(notice, steps, paths.stop_file())

    door = Door(paths.closed_file(), paths.nologin_file())
    caller = cache(partial(cloud.caller, instance_id))
    fence = cloud.fence(instance_id)
    return Answers(drain, save, show, senses.poll, cloud.store, caller, fence, door, remove)
