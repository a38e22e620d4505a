"""`queued`: a run that is a job of the stack's queue; works on the job's first instance.

The script of `gpu-fleet submit` executes it. It starts the trainer once on each instance, and reports the
progress to the stack's records bucket. Its exit code decides what the queue does (`exit_codes.py`): with 85
the job runs again. It does so after a passing failure, up to TRIES tries, and the job's comment names the
instance on which it failed. The controller keeps the job away from that instance
(image/gpu_fleet_image/slurm/exclusion.py).
"""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import cast

import click

from gpu_fleet.core import exit_codes, instance_file
from gpu_fleet.core.errors import CheckpointError, TrainingError
from gpu_fleet.core.lazy_groups import configured
from gpu_fleet.integrations.command import run as run_command
from gpu_fleet.storage.object_store import ObjectStore
from gpu_fleet_jobs.launch.launch import launch
from gpu_fleet_jobs.submitted.figures import RunFigures, why_ended, why_failed
from gpu_fleet_jobs.submitted.reporter import Reporter, is_cancelled, places, sent_bytes
from gpu_fleet_jobs.submitted.work import LOOK_EVERY_S, SAY_EVERY_S, TRIES

# torchrun reads PET_NODE_RANK; Slurm gives each task this number by another name.
SRUN = ("srun", "--kill-on-bad-exit=1", "bash", "-c", 'PET_NODE_RANK=$SLURM_NODEID exec "$0" "$@"')
JOB, NAME = "SLURM_JOB_ID", "SLURM_JOB_NAME"
NEVER_AGAIN = (exit_codes.FINISHED, exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD)
# `gpu-fleet cancel` on an instance sends it (image/gpu_fleet_image/console/runs/queue_view.py).
CANCELLED_BY = signal.SIGUSR1
# srun's line about the first task that failed; if it names several tasks, none is blamed.
ENDED = re.compile(rb"^srun: error: ([\w.-]+): task \d+: (?:Exited with exit code|Segmentation|Bus|Aborted)")
# The job's comment (image/gpu_fleet_image/slurm/exclusion.py reads it): the instance of each failed try, or
# "-" for none.
COMMENT, NOBODY = "gpu-fleet", "-"
FAILED_ON = re.compile(rf"{COMMENT}:failed-on=(\S+)")
TIMEOUT_S = 30
PART_BYTES, LONGEST_LINE = 1 << 16, 4096
log = logging.getLogger(__name__)


@click.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExample:\n  gpu-fleet train queued --log /home/ada/digits-7.log launch digits.toml",
)
@click.option("--log", "output", required=True, type=click.Path(path_type=Path), help="The job's output.")
@click.argument("words", metavar="launch|run ...", nargs=-1, required=True, type=click.UNPROCESSED)
def queued(output: Path, words: tuple[str, ...]) -> None:
    """Run a job of the stack's queue; the script that `gpu-fleet submit` hands to Slurm calls it.

    Exits as `launch` and `run` do, and with 85 if the queue is to run the job again.
    """
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    table = instance_file.table()
    account, run = instance_file.account(), os.environ.get(NAME, "")
    jobs, said = places(table, account, run, "queue")
    reporter = Reporter(said, sent_bytes=sent_bytes(said))
    sys.exit(QueuedJob(words, output, jobs, reporter, os.environ).run())


def directory_of(words: Sequence[str]) -> str:
    """Return the run's directory, from the command line of `launch` or `run`; empty if there is none.

    It is empty for a wrong command line too: the run itself reports the mistake, on every instance.
    """
    try:
        if words[:1] == ("launch",):
            given = launch.make_context("launch", list(words[1:])).params
            overrides, allow, branch = (given[key] for key in ("overrides", "allow", "branch"))
            return configured(given["config_file"], overrides, allow, branch).run.directory
        return str(run_command.make_context("run", list(words[1:])).params["checkpoints"] or "")
    except (click.ClickException, click.exceptions.Exit, TrainingError):
        return ""


def slurm(*words: str) -> str:
    """Run a command of Slurm and return its output; empty, with a warning, if it cannot run."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            encoding="utf-8",
            errors="replace",  # users may write any bytes
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("event=slurm-silent command=%r error=%r", words, str(error))
        return ""
    if done.returncode != 0:
        log.warning("event=slurm-refused command=%r error=%r", words, done.stderr.strip())
    return done.stdout


@dataclass
class QueuedJob:
    """One try of a job.

    Attributes:
        words: arguments of `python -m gpu_fleet` on every instance.
        output: the job's log.
        jobs: store in which a user's request to cancel appears.
        ask: calls Slurm.
    """

    words: Sequence[str]
    output: Path
    jobs: ObjectStore
    reporter: Reporter
    environment: Mapping[str, str]
    ask: Callable[..., str] = slurm
    clock: Callable[[], float] = time.monotonic
    _cancelled: bool = False
    _ended_by_slurm: bool = False
    _said_at_s: float = float("-inf")
    _failed_on: str = NOBODY
    _directory: Path = field(init=False)
    _figures: RunFigures = field(init=False)

    def __post_init__(self) -> None:
        self._directory = Path(directory_of(tuple(self.words)))
        self._figures = RunFigures(self._directory, self.clock)

    def run(self) -> int:
        """Run the job, report how it ended, and return the exit status of the job's script."""
        signal.signal(CANCELLED_BY, self._hear_of_cancel)
        signal.signal(signal.SIGTERM, self._hear_of_end)
        self._poll()
        status = exit_codes.STOPPED if self._cancelled else self._started()
        phase, why, ends = self._outcome(status)
        self.reporter.send(self.output)
        self._figures.forget_ettr()
        self.reporter.say(phase, why, self._figures.newest())
        if self._cancelled:
            self.ask("scancel", self._job)
        return ends

    @property
    def _job(self) -> str:
        return self.environment.get(JOB, "")

    def _started(self) -> int:
        """Run srun until the trainer has ended on every instance, and return the exit status."""
        command = [*SRUN, sys.executable, "-m", "gpu_fleet", *self.words]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        reader = threading.Thread(
            target=self._pass_on, args=(cast("io.BufferedReader", child.stderr),), daemon=True
        )
        reader.start()
        asked = False
        while True:
            try:
                status = child.wait(LOOK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                self._poll()
            if self._cancelled and not asked:
                # signals the steps alone: srun itself would kill them at once, before they have saved
                asked = True
                self.ask("scancel", "--signal=TERM", self._job)
        reader.join(TIMEOUT_S)
        return exit_codes.of_process(status)

    def _pass_on(self, errors: io.BufferedReader) -> None:
        """Copy srun's errors to the job's log, and note the instance of the first task that failed."""
        begun, heard = b"", False
        while content := errors.read1(PART_BYTES):
            sys.stderr.buffer.write(content)
            sys.stderr.buffer.flush()
            *lines, begun = (begun + content).split(b"\n")
            begun = begun[-LONGEST_LINE:]
            for line in lines:
                if not heard and line.startswith(b"srun: error: "):
                    heard, blamed = True, ENDED.match(line)
                    self._failed_on = blamed[1].decode() if blamed else NOBODY

    def _poll(self) -> None:
        """Every few seconds: what came to the log, how far the run is, and whether a laptop cancelled it."""
        if self.clock() - self._said_at_s < SAY_EVERY_S:
            return
        self._said_at_s = self.clock()
        self.reporter.send(self.output)
        self.reporter.say("running", "", self._figures.newest())
        try:
            self._cancelled = self._cancelled or is_cancelled(self.jobs)
        except CheckpointError as error:
            log.warning("event=not-asked error=%r", str(error))

    def _hear_of_cancel(self, _number: int, _frame: FrameType | None) -> None:
        self._cancelled = True

    def _hear_of_end(self, _number: int, _frame: FrameType | None) -> None:
        """Note that Slurm ends the job; Slurm signals the job's steps itself."""
        self._ended_by_slurm = True

    def _outcome(self, status: int) -> tuple[str, str, int]:
        """Return the phase, the reason, and the exit status of the script."""
        if self._cancelled:
            return "cancelled", why_ended(self._directory), status
        if self._ended_by_slurm:
            return "stopped", "stopped by the queue", status
        if status == exit_codes.FINISHED:
            return "finished", why_ended(self._directory), status
        if status == exit_codes.STOPPED:
            return "retrying", "saved; it will run again", status
        why = why_failed(self._directory, status)
        failed_on = [*self._failed_before(), self._failed_on]
        if status in NEVER_AGAIN or len(failed_on) >= TRIES:
            return "failed", why, status
        comment = f"comment={COMMENT}:failed-on={','.join(failed_on)}"
        self.ask("scontrol", "update", f"jobid={self._job}", comment)
        return "retrying", f"try {len(failed_on)} of {TRIES}: {why}", exit_codes.STOPPED

    def _failed_before(self) -> list[str]:
        """Return the instance on which each earlier try failed."""
        text = self.ask("squeue", "--json")
        try:
            comments = [job["comment"] for job in json.loads(text)["jobs"] if str(job["job_id"]) == self._job]
            said = FAILED_ON.fullmatch(comments[0])
        except (ValueError, LookupError, TypeError) as error:
            log.warning("event=tries-unknown job=%s error=%r", self._job, str(error))
            return []
        return said[1].split(",") if said else []
