"""The drain before an interruption or termination: stop the trainer, save files, complete the hook."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent.kept_files import Saved
from gpu_fleet_image.instance.agent.notices import Notice

_TRAINER_MAY_TAKE = timedelta(minutes=30)  # a checkpoint of some hundred GiB over the network
_SAVING_MAY_TAKE = timedelta(minutes=30)
_SAVING_NEEDS = timedelta(seconds=45)  # of the two minutes that a spot notice allows
_HEARTBEAT_EVERY = timedelta(seconds=60)
LOOK_EVERY_S = 2.0
TRY_AGAIN_AFTER_S = 10.0

LOG = logging.getLogger(__name__)


class Holds(Protocol):
    """A lifecycle hook."""

    def heartbeat(self) -> None:
        """Ask for more time."""

    def complete(self) -> None:
        """Let the termination continue."""


@dataclass(frozen=True)
class Steps:
    """Actions of a drain.

    Attributes:
        notify: shows a message to all users who are logged in.
        trainers: returns training processes that still run, for users.
        save: copies the kept folder, and reports progress to its argument; raises ``CloudError``.
        hook: delays the termination; None without a hook.
        wait: sleeps for some seconds.
    """

    notify: Callable[[str], None]
    trainers: Callable[[], Sequence[str]]
    save: Callable[[Callable[[], None]], Saved]
    hook: Holds | None
    now: Callable[[], datetime]
    wait: Callable[[float], None]


class Drain:
    """One drain."""

    def __init__(self, notice: Notice, steps: Steps, stop_file: Path) -> None:
        self._notice = notice
        self._steps = steps
        self._stop_file = stop_file
        self._heartbeat_at = steps.now()
        self._find: Callable[[], Notice | None] = lambda: None

    def run(self, find: Callable[[], Notice | None] = lambda: None) -> bool:
        """Drain to the end.

        Args:
            find: polls for a newer notice, and raises ``CloudError``. A group replaces a spot instance that
                may be interrupted soon, and the interruption may come in the middle of the drain.

        Returns:
            Whether everything was saved. If not, the hook is not completed: its timeout is the last chance
            for a user to copy something.
        """
        self._find = find
        LOG.warning("event=drain reason=%r ends_at=%s", self._notice.reason, self._notice.ends_at)
        self._stop_trainers()
        self._steps.notify(f"{self._notice.reason}. Jobs are being stopped, /scratch/keep is being saved.")
        self._wait_for_trainers()
        saved = self._save()
        if saved:
            self._ask_hook("complete")
        LOG.warning("event=drained saved=%s", saved)
        return saved

    def _stop_trainers(self) -> None:
        try:
            replace_text(self._stop_file, self._notice.reason.replace("\n", " ") + "\n")
        except OSError as error:  # with a full disk /scratch/keep must still be saved
            LOG.error("event=no-stop-file reason=%r", str(error))

    def _wait_for_trainers(self) -> None:
        began = self._steps.now()
        while running := self._steps.trainers():
            ends_at = self._ends_at()
            latest = ends_at - _SAVING_NEEDS if ends_at else began + _TRAINER_MAY_TAKE
            if self._steps.now() >= latest:
                LOG.error("event=trainer-does-not-stop processes=%r", "; ".join(running))
                return
            self._wait(LOOK_EVERY_S)

    def _save(self) -> bool:
        began = self._steps.now()
        while True:
            try:
                saved = self._steps.save(self._beat)
            except CloudError as error:
                LOG.error("event=not-saved reason=%r", str(error))
                if self._steps.now() >= (self._ends_at() or began + _SAVING_MAY_TAKE):
                    self._steps.notify(f"/scratch/keep could not be saved: {error}")
                    return False
                self._wait(TRY_AGAIN_AFTER_S)
                continue
            LOG.info("event=saved files=%d bytes=%d", saved.files, saved.sent_bytes)
            return True

    def _ends_at(self) -> datetime | None:
        """Return the latest time of the termination, as far as it is known now."""
        if self._notice.ends_at is None:
            try:
                newer = self._find()
            except CloudError as error:
                LOG.warning("event=no-word reason=%r", str(error))
                return None
            if newer is not None and newer.ends_at is not None:
                LOG.warning("event=drain reason=%r ends_at=%s", newer.reason, newer.ends_at)
                self._notice = newer
        return self._notice.ends_at

    def _wait(self, seconds: float) -> None:
        self._steps.wait(seconds)
        self._beat()

    def _beat(self) -> None:
        if self._steps.now() >= self._heartbeat_at + _HEARTBEAT_EVERY:
            self._heartbeat_at = self._steps.now()
            self._ask_hook("heartbeat")

    def _ask_hook(self, action: str) -> None:
        if self._steps.hook is None:
            return
        try:
            getattr(self._steps.hook, action)()
        except CloudError as error:
            LOG.error("event=hook-failed action=%s reason=%r", action, str(error))
