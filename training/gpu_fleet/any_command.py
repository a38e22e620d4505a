"""`run`: any other program under a notice: notified by a signal, its checkpoint folder kept in the bucket."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from gpu_fleet import exit_codes, outcome
from gpu_fleet.checkpoint.folder import FolderSync
from gpu_fleet.errors import CheckpointError, CommandError, IdentityError
from gpu_fleet.instance_file import place_of_checkpoints
from gpu_fleet.options import FiniteRange
from gpu_fleet.stopping.interrupt import Interruption, Reason, sources
from gpu_fleet.storage.object_store import ObjectStore, patiently

SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
LOOK_EVERY_S, POLL_S = 0.2, 1.0
log = logging.getLogger(__name__)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExample:\n  gpu-fleet train run --checkpoints runs/mine -- python train.py --out runs/mine",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--checkpoints", type=click.Path(path_type=Path, file_okay=False), help="Kept in the bucket.")
@click.option("--uri", default="", help="s3:// or oss://bucket/prefix; default: the stack's bucket.")
@click.option("--every-s", type=FiniteRange(min=0.1), default=60.0, show_default=True, help="To sync.")
@click.option("--signal", "notice", type=click.Choice(list(SIGNALS)), default="TERM", show_default=True)
@click.option(
    "--grace-s", type=FiniteRange(min=0), default=80.0, show_default=True, help="From signal to kill."
)
def run(
    *,
    command: tuple[str, ...],
    checkpoints: Path | None,
    uri: str,
    every_s: float,
    notice: str,
    grace_s: float,
) -> None:
    """Run COMMAND, which saves by itself; after a notice it gets a signal, and may be run again elsewhere.

    The folder of --checkpoints is brought back from the bucket where it is empty, and kept there. Exits with
    0 when COMMAND has finished, 85 when it was stopped for a notice (run it again), else with its status.
    """
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    place = place_of_checkpoints(uri, "", checkpoints) if checkpoints else ""
    sync = FolderSync(checkpoints, ObjectStore(place)) if checkpoints and place else None
    if uri and not checkpoints:
        raise click.UsageError("--uri needs --checkpoints FOLDER")
    if checkpoints:
        checkpoints.mkdir(parents=True, exist_ok=True)
    if sync is not None:
        sync.down()
    with Interruption(sources(), POLL_S) as interruption:
        child = Child(command, interruption, SIGNALS[notice], grace_s)
        status = child.wait(sync, every_s)
        ends_with = status_of(status, interruption.reason, checkpoints, child.started_at_s)
        if sync is not None:  # in here, so that no signal cuts it off
            last = status >= 0  # a program that was killed may have left a half-written file
            patiently(lambda: sync.up(last=last))
    sys.exit(ends_with)


class Child:
    """The running command in a process group of its own."""

    def __init__(
        self, command: Sequence[str], interruption: Interruption, notice: signal.Signals, grace_s: float
    ) -> None:
        """Starts it; raises CommandError when it cannot be."""
        self._interruption, self._notice, self._grace_s = interruption, notice, grace_s
        self._notified_at_s: float | None = None
        self._lost = False
        self.started_at_s = time.time()
        try:
            self._process = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise CommandError(f"{command[0]}: cannot be run: {error.strerror}") from error

    def wait(self, sync: FolderSync | None, every_s: float) -> int:
        """The status at its end. Meanwhile the folder is kept, and a notice passed on."""
        synced_at_s = time.monotonic()
        while True:
            try:
                return self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                self._pass_on()
            if sync is not None and time.monotonic() - synced_at_s >= every_s:
                synced_at_s = time.monotonic()
                try:
                    sync.up()
                except IdentityError as error:  # another process has the run: what comes now is in vain
                    self._lost = True
                    log.warning("event=folder-lost error=%r", str(error))
                except CheckpointError as error:  # the last one decides
                    log.warning("event=folder-not-saved error=%r", str(error))

    def _pass_on(self) -> None:
        if self._interruption.reason is Reason.NONE and not self._lost:
            return
        if self._notified_at_s is None:
            self._notified_at_s = time.monotonic()
            self._send(self._notice)
        elif time.monotonic() - self._notified_at_s >= self._grace_s:
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        """To the command itself, which may start others; a kill to all of them."""
        try:
            if number is signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
        except ProcessLookupError:
            return


def status_of(status: int, reason: Reason, folder: Path | None, started_at_s: float) -> int:
    """The exit status of exit_codes for a command that ended with `status` (below 0: by a signal)."""
    if folder is not None and outcome.failed_since(folder, started_at_s):
        return exit_codes.FAILED_FOR_GOOD
    stopped = folder is not None and outcome.stopped_since(folder, started_at_s)
    if stopped or (
        reason is not Reason.NONE and status not in (exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD)
    ):
        return exit_codes.STOPPED
    return status if status >= 0 else 128 - status  # as a shell reports a signal
