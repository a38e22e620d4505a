"""``gpu-fleet runs``, ``logs`` and ``cancel`` on a stack with a queue.

The queue's controller writes all jobs to the records bucket, at most 15 seconds late; each run writes its
progress there. A laptop can read both. On an instance Slurm itself cancels, and a log is the file on the
shared homes.
"""

import codecs
import getpass
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import click

from gpu_fleet_image.console.runs.bucket import RunBucket, run_bucket
from gpu_fleet_image.console.runs.choice import account_name
from gpu_fleet_image.console.runs.waiting import why_none_comes
from gpu_fleet_image.console.users.take import caller_of
from gpu_fleet_image.controllers.mover import mover
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import listing, queue_file
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import STATE, MoverState
from gpu_fleet_image.core.cloud import LEDGER_URI
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.place import Asked, Place, account_of, ledger_uri
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, nearest
from gpu_fleet_image.core.runs import QUEUED, RUN, NodeState, Phase, place_of
from gpu_fleet_image.core.shared_options import CSV, TABLE, inert_log, note
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_span, parse_time
from gpu_fleet_image.slurm import slurm
from gpu_fleet_image.slurm.exclusion import failed_on, is_submitted
from gpu_fleet_image.slurm.job_records import JOBS, LONGEST, RUNNING, JobRecord, JobRecords

WIDTH = 1000  # columns of a table in a file or a pipe: nothing is truncated there
LOOK_EVERY_S = 5.0
SECONDS_PER_HOUR = 3600
PART_BYTES = 1 << 20
# The controller writes every 15 s; its record is older only while it is being replaced.
STALE = timedelta(minutes=2)
TEXTS = frozenset({"run", "pool", "phase", "state", "on"})
FOLDED = frozenset({"phase", "state", "on"})  # others are copied, or wrong without a digit
HEADINGS = ("run", "job", "pool", "nodes", "state", "on", "step", "loss", "ETTR", "time", "at most")
# columns of a run that a narrow terminal leaves out, the first first
LEAVING = ("ETTR", "job", "nodes", "loss", "on", "pool", "time")
# Slurm's reason for the limit of a team (squeue(1), "JOB REASON CODES").
REASONS = {
    "AssocGrpGRES": "its team's GPUs are in use: teams.max_gpus",
    # until there are enough; for a job that no instance helps the controller gives another reason
    "BadConstraints": "its instances are not there yet",
    "PartitionConfig": "its instances are not there yet",
    "PartitionNodeLimit": "its instances are not there yet",
}
PENDING = "PENDING"
FAILED = frozenset({"BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"})


@dataclass(frozen=True)
class QueueViewer:
    """The caller of a command, and their stack.

    Attributes:
        is_instance: this is an instance of the stack, where Slurm answers.
        read: returns the controller's newest record; None if there is none.
        moved: returns the mover's newest state; None if there is none, or it may not be read.
    """

    policy: Policy
    bucket: RunBucket
    account: str
    caller: str
    is_instance: bool
    read: Callable[[], JobRecords | None]
    moved: Callable[[], MoverState | None] = lambda: None

    def records(self) -> JobRecords:
        """Return the controller's newest record; raises ConfigurationError, CloudError."""
        records = self.read()
        if records is None:
            raise ConfigurationError(
                f"stack {self.policy.stack!r}: the queue's controller has not written its jobs yet"
            )
        return records

    def entries(self) -> list[JobRecord]:
        """Return the account's jobs, the newest first."""
        return self.own(self.records())

    def own(self, records: JobRecords) -> list[JobRecord]:
        """Return the account's jobs among all, the newest first."""
        return [entry for entry in reversed(records.entries) if entry.job.account == self.account]

    def entry(self, run: str) -> JobRecord:
        """Return a job by its number, or else its run's name; raises ConfigurationError, CloudError."""
        return self.among(self.entries(), run)

    def among(self, entries: Sequence[JobRecord], run: str) -> JobRecord:
        """Return one of the account's jobs, as ``entry`` does; raises ConfigurationError."""
        for entry in sorted(entries, key=lambda entry: run not in (entry.job.id, entry.job.number)):
            if run and run in (entry.job.id, entry.job.number, entry.job.name):
                return entry
        known = [entry.job.name for entry in entries]
        raise ConfigurationError(
            f"RUN {run!r}: no job of account {self.account}{nearest(run, known)}; see gpu-fleet runs"
        )

    def state(self, entry: JobRecord) -> NodeState:
        """Return the progress of a run; SENT for a job that `gpu-fleet submit` did not make."""
        return self.bucket.state(place(entry), self.account) if is_run(entry) else NodeState(Phase.SENT)


def opened(policy: Policy, asked: Asked, account: str | None) -> QueueViewer:
    """Return the viewer for the caller: on an instance the calling account, elsewhere the credentials'.

    Raises ConfigurationError or CloudError if the caller is unknown.
    """
    where = Place(policy.stack, policy.cloud, policy.region, asked.account_id or "")
    is_instance = queue_file.path().is_file()
    caller = caller_of(where)
    own = account or getpass.getuser() if is_instance else account_name(account, caller)
    s3 = clouds.bucket_client(where.cloud, where.region)
    calls = Calls(lambda: datetime.now(UTC), read_only=True)
    ledger = ledger_uri(where, where.account_id or account_of(where))
    store = Store(s3, calls, ledger)
    return QueueViewer(
        policy,
        run_bucket(where),
        own,
        caller,
        is_instance,
        lambda: _read(store),
        lambda: _moved(policy, ledger),
    )


def _moved(policy: Policy, ledger: str) -> MoverState | None:
    """Return the mover's state; None if these credentials may not read it, so that jobs are shown anyway."""
    try:
        cloud = clouds.connect(
            policy, lambda: datetime.now(UTC), read_only=True, environ={**os.environ, LEDGER_URI: ledger}
        )
        stored = cloud.store.get(STATE) if cloud.store else None
        return MoverState.from_json(stored.content, STATE) if stored else None
    except CloudError as error:
        if error.code in DENIED:
            return None
        raise


def _read(store: Store) -> JobRecords | None:
    try:
        stored = store.newest(JOBS, LONGEST)
    except CloudError as error:
        if error.code in DENIED:
            raise ConfigurationError(
                f"these credentials may not read the queue's jobs ({error}): attach the "
                "output people_policy, or run the command on an instance of the stack (gpu-fleet connect)"
            ) from error
        raise
    return JobRecords.from_json(stored.content, JOBS) if stored else None


def is_run(entry: JobRecord) -> bool:
    """Return whether a job came from `gpu-fleet submit`, and so reports in the bucket by its name."""
    return is_submitted(entry.job.comment) and RUN.fullmatch(entry.job.name) is not None


def place(entry: JobRecord) -> str:
    """Return the place of a run's reports in the records bucket."""
    return place_of(entry.job.pool, entry.job.account, entry.job.name, QUEUED)


def document(headings: Sequence[str], rows: Sequence[tuple[str, ...]], form: str) -> str:
    """Return rows of a table as ``json`` or ``csv`` for programs: the keys are its headings. Pure."""
    keys = [heading.lower().replace(" ", "_") for heading in headings]
    named = [dict(zip(keys, row, strict=True)) for row in rows]
    return csv_text(keys, named).rstrip("\n") if form == CSV else json.dumps({"runs": named}, indent=1)


def table(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Listing:
    """Return runs as a table; a narrow terminal folds texts and has fewer columns. Pure."""
    orders = {heading: order for order, heading in enumerate(LEAVING, 1)}
    columns = (
        Column(name, "left" if name in TEXTS else "right", name in FOLDED, orders.get(name, 0))
        for name in headings
    )
    made = Listing(tuple(columns), box=None)
    for row in rows:
        made.add_row(*row)
    return made


def show_runs(viewer: QueueViewer, form: str = TABLE) -> None:
    """List the account's jobs, the newest first."""
    records = viewer.records()
    entries = viewer.own(records)
    rows = [cells(entry, viewer.state(entry), viewer.policy) for entry in entries]
    if form != TABLE:
        click.echo(document(HEADINGS, rows, form))
        return
    listing.console(WIDTH).print(table(HEADINGS, rows))
    if not entries:
        click.echo(f"account {viewer.account} has no jobs in the queue")
    if waiting := [entry.job.pool for entry in entries if entry.job.state == PENDING]:
        for line in why_none_comes(viewer.moved() or MoverState(), viewer.policy, waiting):
            note(line)
    if (age := datetime.now(UTC) - records.at) > STALE:
        note(f"the queue's controller wrote this {format_span(age)} ago")


def cells(entry: JobRecord, state: NodeState, policy: Policy) -> tuple[str, ...]:
    """Return a job as a row. Pure."""
    job = entry.job
    price = mover.prices(policy, parse_time(entry.seen)).get(job.pool)
    hours = Decimal(entry.instance_s) / SECONDS_PER_HOUR
    return (
        job.name,
        job.number,
        job.pool,
        str(job.nodes),
        described(entry),
        job.on,
        "" if state.step is None else str(state.step),
        "" if state.loss is None else f"{state.loss:.4g}",
        "" if state.ettr is None else f"{state.ettr:.0%}",
        format_span(timedelta(seconds=entry.run_s)),
        "unknown" if price is None else f"{price * hours:,.2f} {policy.currency}",
    )


def described(entry: JobRecord) -> str:
    """Return state, reason, and number of restarts. Pure."""
    job = entry.job
    details = [REASONS.get(job.reason, job.reason)] if job.reason and job.state != RUNNING else []
    if job.restarts:
        details.append(f"restarts {job.restarts}")
    if bad := [name for name in failed_on(job.comment) if name != "-"]:
        details.append(f"failed on {', '.join(bad)}")
    return f"{job.state.lower()} ({'; '.join(details)})" if details else job.state.lower()


def show_log(viewer: QueueViewer, run: str, *, follow: bool) -> bool:
    """Print the log, with -f until the job ends; return whether it did not fail.

    Raises:
        ConfigurationError: there is no such job, or its log cannot be read from this computer.
        CloudError: the cloud does not answer.
    """
    entry = viewer.entry(run)
    if viewer.is_instance and not entry.job.log:
        raise ConfigurationError(f"RUN {run!r}: its --output is no path that could be shown")
    come = _from_file(Path(entry.job.log)) if viewer.is_instance else _from_bucket(viewer, entry)
    show = log_printer()
    while True:
        entry = viewer.entry(entry.job.id)  # before the log, which then has the last lines
        for part in come():
            show(part)
        if entry.is_over or not follow:
            note(f"{entry.job.name}: {described(entry)}")
            return not follow or entry.job.state not in FAILED
        time.sleep(LOOK_EVERY_S)


def log_printer() -> Callable[[bytes], None]:
    """Return what prints a log part by part; a terminal shows what it would obey, as journalctl's does."""
    decoded = codecs.getincrementaldecoder("utf-8")("replace").decode

    def show(part: bytes) -> None:
        text = decoded(part)
        click.echo(inert_log(text) if sys.stdout.isatty() else text, nl=False)

    return show


def _from_file(log: Path) -> Callable[[], Iterator[bytes]]:
    """Return a reader of new data in a file of the shared homes; a waiting job has none yet."""
    shown = 0

    def come() -> Iterator[bytes]:
        nonlocal shown
        try:
            # sbatch --output takes any path: a FIFO would never open, a device never end
            with open(log, "rb", opener=_opened_at_once) as opened_log:
                if not stat.S_ISREG(os.fstat(opened_log.fileno()).st_mode):
                    raise ConfigurationError(f"{log}: no regular file, so there is no log to print")
                opened_log.seek(shown)
                while part := opened_log.read(PART_BYTES):
                    shown += len(part)
                    yield part
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"{log}: {error.strerror}") from error

    return come


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _from_bucket(viewer: QueueViewer, entry: JobRecord) -> Callable[[], Iterator[bytes]]:
    """Return a reader of new data in the records bucket."""
    if not is_run(entry):
        raise ConfigurationError(
            f"RUN {entry.job.name!r}: only jobs of gpu-fleet submit send their logs; this one's is "
            f"{entry.job.log} on an instance of the stack (gpu-fleet connect)"
        )
    printed: set[str] = set()

    def come() -> Iterator[bytes]:
        for key in viewer.bucket.log_keys(place(entry), viewer.account):
            if key not in printed:
                printed.add(key)
                yield viewer.bucket.part(key, viewer.account)

    return come


def cancel_run(viewer: QueueViewer, run: str, ask: slurm.Run = slurm.run) -> str:
    """Ask a job to save and stop; return the message for its user.

    The number of an array cancels all of its tasks, as Slurm's own scancel does.

    Raises:
        ConfigurationError: there is no such job, it has ended, several have the name, or only an instance
            can cancel it.
        CloudError: the cloud does not answer.
    """
    number, entry = _meant(viewer, run)
    job, runs = entry.job, entry.job.state == RUNNING
    if entry.is_over:
        raise ConfigurationError(f"RUN {run}: is {described(entry)}; there is nothing to cancel")
    if viewer.is_instance:
        try:
            slurm.cancel(number, saves=runs and is_run(entry), ask=ask)
        except SlurmError as error:
            raise ConfigurationError(str(error)) from error
    elif is_run(entry):
        viewer.bucket.cancel(viewer.account, job.name, viewer.caller, datetime.now(UTC))
        if not runs:
            return (
                f"{job.name} waits; it will stop when it starts. To stop it now, run gpu-fleet cancel on an "
                "instance of the stack"
            )
    else:
        raise ConfigurationError(
            f"RUN {run}: not a job of gpu-fleet submit; on an instance of the stack run scancel {number}"
        )
    return f"{job.name} is asked to save and stop: gpu-fleet runs shows when it has"


def _meant(viewer: QueueViewer, run: str) -> tuple[str, JobRecord]:
    """Return the number to cancel, and a job that it ends.

    Raises ConfigurationError for a name that several live jobs have, such as the tasks of an array.
    """
    entries = viewer.entries()
    live = [entry for entry in entries if not entry.is_over]
    # the last of an array's tasks has the array's number as its own, and may end before the others
    for entry in live:
        if entry.job.task.startswith(f"{run}_"):
            return run, entry
    entry = viewer.among(entries, run)
    if run in (entry.job.id, entry.job.number):
        return run, entry
    same = [other.job.number for other in live if other.job.name == run]
    if len(same) > 1:
        raise ConfigurationError(
            f"RUN {run!r}: {len(same)} jobs have this name; allowed: the number of one: {', '.join(same)}"
        )
    return entry.job.number, entry
