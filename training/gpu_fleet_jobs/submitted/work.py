"""`work`: one instance's part of a submitted run, as the unit gpu-run@ACCOUNT starts it.

It fetches the job and its files from the stack's records bucket, checks their hashes, and starts `launch` (of
a configuration) or `run` (of any command). It reports phase, step, loss and the log to the bucket. Exit codes
decide whether to retry (`exit_codes.py`).
"""

import getpass
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import FrameType

import click

from gpu_fleet.core import exit_codes, instance_file
from gpu_fleet.core.errors import CheckpointError, CommandError, ConfigError, TrainingError
from gpu_fleet.core.metadata import MetadataClient
from gpu_fleet.storage.object_store import ObjectStore, patiently
from gpu_fleet_jobs.launch.rendezvous import HOST, HOST_PORT, NODES, PORT, RANK
from gpu_fleet_jobs.submitted.figures import RunFigures, why_ended, why_failed
from gpu_fleet_jobs.submitted.reporter import Reporter, is_cancelled, places

RUN, JOB_SHA256, FOLDER = "GPU_FLEET_RUN", "GPU_FLEET_JOB_SHA256", "GPU_FLEET_RUNS"
SAFE_PATH = "PYTHONSAFEPATH"
LOOK_EVERY_S = 0.5
SAY_EVERY_S = float(os.environ.get("GPU_FLEET_SAY_EVERY_S", "15"))  # shorter in tests
TRIES, PAUSE_S = 3, 30.0
LARGEST_BYTES = 1 << 30  # of all files of a run, unpacked
# Exceptions of zipfile for a file that is no archive, or of a kind that it does not read.
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, RuntimeError, ValueError)
NEVER_AGAIN = (exit_codes.FINISHED, exit_codes.STOPPED, exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """The part of a job of `gpu-fleet submit` (image/gpu_fleet_image/core/runs.py) that this instance needs.

    Attributes:
        rank: rank of this instance.
        host: address of the instance of rank 0.
        arguments: arguments of `python -m gpu_fleet`.
        directory: folder for the result, relative to the folder of the run.
    """

    rank: int
    nodes: int
    host: str
    arguments: tuple[str, ...]
    directory: str
    archive_sha256: str


@click.command(hidden=True, epilog="\b\nExample:\n  gpu-fleet train work")
def work() -> None:
    """Run this instance's part of a submitted run; the unit gpu-run@ calls it.

    Exits as `launch` and `run` do, and with 0 when the run was cancelled.
    """
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    table = instance_file.table()
    run, account = os.environ.get(RUN, ""), getpass.getuser()
    if not table or not run:
        raise ConfigError(
            f"{RUN} = {run!r}: `work` is started by the unit gpu-run@ of an instance of a fleet"
        )
    own = MetadataClient(str(table["cloud"])).instance().instance_id
    jobs, said = places(table, account, run, own)
    reporter = Reporter(said)
    reporter.say("starting")
    try:
        job = fetched(jobs, os.environ.get(JOB_SHA256, ""), own)
        folder = Path(os.environ.get(FOLDER, ".")) / run
        unpack(jobs, job, folder)
    except TrainingError as error:
        reporter.say("failed", str(error))
        raise
    sys.exit(Worker(job, folder, jobs, reporter).run())


def fetched(jobs: ObjectStore, sha256: str, own: str) -> Job:
    """Return the job, once its hash is that of the submitted one; raises CommandError, CheckpointError."""
    content = patiently(lambda: jobs.get("job.json"))
    if content is None or hashlib.sha256(content).hexdigest() != sha256:
        raise CommandError(f"{jobs.uri}/job.json is not the job that this instance was asked to start")
    raw = json.loads(content)
    ids = [str(member["id"]) for member in raw["instances"]]
    if own not in ids:
        raise CommandError(f"{jobs.uri}/job.json: the run is for {', '.join(ids)}, and this is {own}")
    return Job(
        rank=ids.index(own),
        nodes=len(ids),
        host=str(raw["instances"][0]["address"]),
        arguments=tuple(map(str, raw["arguments"])),
        directory=str(raw["directory"]),
        archive_sha256=str(raw["archive_sha256"]),
    )


def unpack(jobs: ObjectStore, job: Job, folder: Path) -> None:
    """Unpack the files of a run into its folder; raises CommandError, CheckpointError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".zip")
    archive = patiently(lambda: jobs.get("files.zip", file))
    if archive is None or _sha256(file) != job.archive_sha256:
        raise CommandError(f"{jobs.uri}/files.zip is not what the job names: submit the run again")
    try:
        with zipfile.ZipFile(file) as packed:
            for entry in packed.infolist():
                path = PurePosixPath(entry.filename)
                if path.is_absolute() or ".." in path.parts:
                    raise CommandError(f"{jobs.uri}/files.zip: {entry.filename!r} leaves the run's folder")
            if sum(entry.file_size for entry in packed.infolist()) > LARGEST_BYTES:
                raise CommandError(f"{jobs.uri}/files.zip: more than {LARGEST_BYTES:,} bytes unpacked")
            packed.extractall(folder)
            _let_start(folder, packed.infolist())
    except (*BROKEN, OSError) as error:
        raise CommandError(f"{jobs.uri}/files.zip: cannot be unpacked: {error or error!r}") from error
    finally:
        file.unlink(missing_ok=True)


def _let_start(folder: Path, entries: Iterable[zipfile.ZipInfo]) -> None:
    """Make files executable that were so when they were packed; zipfile does not restore it."""
    for entry in entries:
        if entry.external_attr >> 16 & 0o100:
            file = folder / entry.filename
            file.chmod(file.stat().st_mode | 0o111)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass
class Worker:
    """Supervisor of the run: starts it, retries passing failures, and reports its state."""

    job: Job
    folder: Path
    jobs: ObjectStore
    reporter: Reporter
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    _child: "subprocess.Popen[bytes] | None" = None
    _cancelled: bool = False
    _ending: bool = False
    _said_at_s: float = float("-inf")
    _figures: RunFigures = field(init=False)

    def __post_init__(self) -> None:
        self._figures = RunFigures(self._directory, self.clock)

    def run(self) -> int:
        """Run until success, a final failure, the last try or a signal; return the unit's exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        for attempt in range(1, TRIES + 1):
            status = self._try()
            if self._cancelled or self._ending or status in NEVER_AGAIN or attempt == TRIES:
                break
            self.reporter.say(
                "retrying", f"try {attempt} of {TRIES} ended with {status}", self._figures.newest()
            )
            self._rest()
            if self._ending:
                break
        self.reporter.send(self._log)
        phase = self._phase(status)
        self._figures.forget_ettr()
        self.reporter.say(phase, self._why(phase, status), self._figures.newest())
        return exit_codes.FINISHED if self._cancelled else status

    @property
    def _log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def _directory(self) -> Path:
        return self.folder / self.job.directory

    def _try(self) -> int:
        # -P, and the variable of the unit: modules of the user's folder do not come before the trainer's own
        command = [sys.executable, "-P", "-m", "gpu_fleet", *self.job.arguments]
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            if self._ending:  # the signal came before there was a child
                self._child.terminate()
            while True:
                try:
                    status = self._child.wait(LOOK_EVERY_S)
                    return exit_codes.of_process(status)
                except subprocess.TimeoutExpired:
                    self._poll()

    def _environment(self) -> dict[str, str]:
        """Return the environment: torchrun's variables for the rendezvous, and the trainer's PATH first."""
        meeting = {NODES: self.job.nodes, RANK: self.job.rank, HOST: self.job.host, HOST_PORT: PORT}
        given = {**os.environ, **{name: str(value) for name, value in meeting.items()}}
        given["PATH"] = f"{Path(sys.executable).parent}:{given.get('PATH', os.defpath)}"
        if self.job.arguments[:1] == ("run",):
            given.pop(SAFE_PATH, None)  # a program finds the modules beside it
        return given

    def _poll(self) -> None:
        """Every few seconds: what came to the log, how far the run is, and whether it was cancelled."""
        if self.clock() - self._said_at_s < SAY_EVERY_S:
            return
        self._said_at_s = self.clock()
        self.reporter.send(self._log)
        self.reporter.say("running", "", self._figures.newest())
        self._cancel_where_asked()

    def _cancel_where_asked(self) -> None:
        try:
            asked = is_cancelled(self.jobs)
        except CheckpointError as error:
            log.warning("event=not-asked error=%r", str(error))
            return
        if asked and not self._cancelled:
            self._cancelled = True
            if self._child is not None:
                self._child.terminate()

    def _rest(self) -> None:
        """Pause before the next try; a signal or a cancelled run ends the pause."""
        until_s = self.clock() + PAUSE_S
        while self.clock() < until_s and not self._ending:
            self.pause(LOOK_EVERY_S)
        self._cancel_where_asked()
        if self._cancelled:
            self._ending = True

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._ending = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _phase(self, status: int) -> str:
        if self._cancelled:
            return "cancelled"
        return {exit_codes.FINISHED: "finished", exit_codes.STOPPED: "stopped"}.get(status, "failed")

    def _why(self, phase: str, status: int) -> str:
        return why_failed(self._directory, status) if phase == "failed" else why_ended(self._directory)
