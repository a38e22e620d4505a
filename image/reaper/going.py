"""The agent's second thread: listens for word that the machine goes, drains it, answers the sweep's mark."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import boto3

from image.reaper import keep_folder, notices, paths
from image.reaper.drain import Drain, Steps
from image.reaper.errors import CloudError
from image.reaper.instance_file import Machine
from image.reaper.keep_folder import Saved
from image.reaper.lifecycle import Hook
from image.reaper.metadata import Metadata
from image.reaper.notices import Notice
from image.reaper.sensors.own_use import OwnUse

LOG = logging.getLogger(__name__)


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


class Going:
    """Asks the metadata service again and again.

    A mark is acknowledged when its time has come and what people keep is copied: the sweep ends no machine
    before, where its policy asks for that.

    Args:
        metadata: the service.
        answers: what is done.
        now: the agent's time.

    Attributes:
        acknowledged: (the mark's reap-after, when everything was saved for it), else None.
    """

    def __init__(self, metadata: Metadata, answers: Answers, now: Callable[[], datetime]) -> None:
        self._metadata = metadata
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
                    LOG.warning("event=metadata-failed reason=%r", str(error))
                silent = True

    def look(self) -> bool:
        """Ask once, and do what is asked for.

        Returns:
            Whether the machine goes; everything is done then.

        Raises:
            CloudError: the metadata service does not answer.
        """
        notice = notices.find(self._metadata)
        if notice is not None:
            self._answers.drain(notice).run()
            return True
        self._answer_mark(notices.mark(self._metadata))
        return False

    def _answer_mark(self, reap_after: datetime | None) -> None:
        if self.acknowledged is not None and self.acknowledged[0] == reap_after:
            return
        self.acknowledged = None
        if reap_after is None:
            return
        if reap_after != self._told:
            self._told = reap_after
            self._answers.tell(
                f"This machine is idle and goes after {reap_after:%Y-%m-%d %H:%M} UTC. "
                'To keep it: gpu-reaper keep 8h --reason "..."; /scratch/keep is saved before.'
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
    machine: Machine, instance_id: str, folder: Path, trainers: Callable[[], Sequence[str]], own: OwnUse
) -> Answers:
    """The answers of a machine on AWS.

    Args:
        machine: what the stack says of it.
        instance_id: its id.
        folder: what people keep.
        trainers: training processes that run now.
        own: told of each copy.

    Raises:
        ConfigurationError: ``data_uri`` names no bucket.
    """
    to = keep_folder.place(machine.data_uri, machine.stack, instance_id)

    def save(progress: Callable[[], None] = lambda: None) -> Saved:
        with own.copying():
            return keep_folder.save(folder, boto3.client("s3", region_name=machine.region), to, progress)

    def hook(notice: Notice) -> Hook | None:
        if notice.ends_at is not None or not machine.lifecycle_hook:
            return None
        autoscaling = boto3.client("autoscaling", region_name=machine.region)
        return Hook(autoscaling, machine.lifecycle_hook, instance_id)

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
