"""The agent's second thread: listens for word that the machine goes, drains it, answers the sweep's mark."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from image.instance import paths
from image.instance.instance_file import InstanceFile
from image.reaper.agent import keep_folder
from image.reaper.agent.cloud import AgentCloud
from image.reaper.agent.drain import Drain, Holds, Steps
from image.reaper.agent.keep_folder import Saved
from image.reaper.agent.notices import Notice, Notices
from image.reaper.agent.sensors.counters import OwnUse
from image.reaper.errors import CloudError

LOG = logging.getLogger(__name__)

# A marked machine may wait for days: for quiet hours to end, for its turn. What little is written to the kept
# folder meanwhile is no sign of use, and is saved all the same.
SAVE_AGAIN_AFTER = timedelta(minutes=5)


@dataclass(frozen=True)
class Answers:
    """What is done about a notice or a mark.

    Attributes:
        drain: makes the drain of a notice.
        save: copies what people keep; raises ``CloudError``.
        tell: shows a message to everybody who is logged in.
    """

    drain: Callable[[Notice], Drain]
    save: Callable[[], Saved]
    tell: Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """The machine itself: what the stack says of it, and its id."""

    machine: InstanceFile
    instance_id: str


class Going:
    """Asks whether the machine goes, again and again.

    A mark is acknowledged when its time has come and what people keep is copied: the sweep ends no machine
    before, where its policy asks for that. While the machine waits for its end, copy and acknowledgement are
    made anew.

    Args:
        notices: who knows.
        answers: what is done.
        now: the agent's time.
        save_again_after: the agent's time between two copies for one mark.

    Attributes:
        acknowledged: (the mark's reap-after, when everything was last saved for it), else None.
    """

    def __init__(
        self,
        notices: Notices,
        answers: Answers,
        now: Callable[[], datetime],
        save_again_after: timedelta = SAVE_AGAIN_AFTER,
    ) -> None:
        self._save_again_after = save_again_after
        self._notices = notices
        self._answers = answers
        self._now = now
        self._told: datetime | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.acknowledged: tuple[datetime, datetime] | None = None

    def start(self, every_s: float) -> None:
        """Listen in a thread that ends with the process.

        Args:
            every_s: real seconds between two questions.
        """
        self._thread = threading.Thread(target=self._run, args=(every_s,), name="going", daemon=True)
        self._thread.start()

    def acknowledged_for(self, minute_start: datetime) -> datetime | None:
        """The mark's reap-after if everything was saved for it before a minute began.

        The minute of the copy itself proves too little: the network is not looked at while the agent copies.
        """
        reap_after, saved_at = self.acknowledged or (None, None)
        return reap_after if saved_at is not None and saved_at <= minute_start else None

    def close(self) -> None:
        """Ask no more; a drain that has begun is waited for."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, every_s: float) -> None:
        silent = False
        while not self._closed.wait(every_s):
            try:
                if self.look():
                    return
                silent = False
            except CloudError as error:
                if not silent:  # once for each silence, not every few seconds
                    LOG.warning("event=no-word reason=%r", str(error))
                silent = True
            except Exception:  # without this thread no drain saves anything
                LOG.exception("event=listening-failed")

    def look(self) -> bool:
        """Ask once, and do what is asked for.

        Returns:
            Whether the machine goes; everything is done then.

        Raises:
            CloudError: a service does not answer.
        """
        notice = self._notices.find()
        if notice is not None:
            self._answers.drain(notice).run(self._notices.find)
            return True
        self._answer_mark(self._notices.mark())
        return False

    def _answer_mark(self, reap_after: datetime | None) -> None:
        if self.acknowledged is not None:
            saved_for, saved_at = self.acknowledged
            if saved_for == reap_after and self._now() < saved_at + self._save_again_after:
                return
        self.acknowledged = None
        if reap_after is None:
            return
        if reap_after != self._told:
            self._told = reap_after
            self._answers.tell(
                f"This machine is idle and goes after {reap_after:%Y-%m-%d %H:%M} UTC. "
                'To keep it: gpu-fleet keep 8h --reason "..."; /scratch/keep is saved before.'
            )
        if self._now() >= reap_after:
            self._save_for(reap_after)

    def _save_for(self, reap_after: datetime) -> None:
        try:
            saved = self._answers.save()
        except CloudError as error:
            LOG.error("event=not-acknowledged reason=%r", str(error))
            return
        LOG.info("event=acknowledged reap_after=%s files=%d", reap_after.isoformat(), saved.files)
        self.acknowledged = reap_after, self._now()


def answers(
    cloud: AgentCloud,
    target: Target,
    folder: Path,
    trainers: Callable[[], Sequence[str]],
    own: OwnUse,
) -> Answers:
    """The answers of a machine.

    Args:
        cloud: that it is in.
        target: the machine.
        folder: what people keep.
        trainers: training processes that run now.
        own: told of each copy.

    Raises:
        ConfigurationError: ``data_uri`` names no bucket.
    """
    machine, instance_id = target.machine, target.instance_id
    to = keep_folder.place(machine.data_uri, machine.pool, instance_id)
    sent: dict[str, keep_folder.Version] = {}

    def save(progress: Callable[[], None] = lambda: None) -> Saved:
        with own.copying():
            return keep_folder.save(folder, cloud.bucket(), to, progress, sent)

    def hook(notice: Notice) -> Holds | None:
        if notice.ends_at is not None or not machine.lifecycle_hook:
            return None
        return cloud.hook(instance_id)

    def drain(notice: Notice) -> Drain:
        steps = Steps(show_all, trainers, save, hook(notice), lambda: datetime.now(UTC), time.sleep)
        return Drain(notice, steps, paths.stop_file())

    return Answers(drain, save, show_all)


def show_all(message: str) -> None:
    """Show a message on every terminal; without `wall`, the log alone has it."""
    LOG.warning("event=wall message=%r", message)
    try:
        subprocess.run(["wall", message], check=True, timeout=10, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("event=wall-failed reason=%r", str(error))
