"""A submitted run: its names, its place in the records bucket, and its instances' status objects.

The submitter writes ``runs/jobs/ACCOUNT/RUN/``; the account's processes on the instances write
``runs/words/ACCOUNT/POOL/RUN/INSTANCE/``; no other user reads either. Write access below
``runs/jobs/ACCOUNT/`` decides whose account a run gets (``stacks/gpu_fleet_stacks/aws/submit.py``).
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from gpu_fleet_image.core.document import one_of, read

# Patterns of the parameters that the stacks' documents accept.
ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,30}")
RUN = re.compile(r"[a-z][a-z0-9-]{0,62}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SCHEMA = 1
_LONGEST_TITLE = 40
TAG_BYTES = 2
FOLDER = "runs"  # of the records bucket
JOBS, RUNS = f"{FOLDER}/jobs", f"{FOLDER}/words"
QUEUED = "queue"
JOB, ARCHIVE, CANCEL, STATE, LOG = "job.json", "files.zip", "cancel", "state.json", "log"


class Phase(StrEnum):
    """State of an instance's part of a run.

    ``gpu_fleet_jobs/submitted/work.py`` has the same values.
    """

    SENT = "sent"  # no instance has seen it yet
    REFUSED = "refused"
    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"


OVER = frozenset({Phase.REFUSED, Phase.FINISHED, Phase.STOPPED, Phase.CANCELLED, Phase.FAILED})


@dataclass(frozen=True)
class Member:
    """An instance of a run.

    Attributes:
        address: its private IPv4.
    """

    id: str
    address: str


@dataclass(frozen=True)
class Job:
    """Job that a user submits; only writers below the account's prefix can make one.

    Attributes:
        instances: by node rank; the first one is the rendezvous.
        arguments: of ``python -m gpu_fleet`` there: ``launch`` and a configuration, or ``run`` and a command.
        archive_sha256: of the files that the job brings along.
        at: time of submission, ISO 8601.
    """

    run: str
    account: str
    stack: str
    pool: str
    instances: tuple[Member, ...]
    arguments: tuple[str, ...]
    directory: str
    archive_sha256: str
    by: str
    at: str
    schema_version: Annotated[int, one_of(SCHEMA)] = SCHEMA

    def content(self) -> bytes:
        """Return the JSON object as it lies in the bucket."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()

    @property
    def sha256(self) -> str:
        """Hash of the content; the instance compares it with what it fetches."""
        return hashlib.sha256(self.content()).hexdigest()


def job_of(content: bytes) -> Job | None:
    """Parse a job as a user wrote it; None if it is malformed."""
    try:
        return read(Job, json.loads(content), "", [])
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class NodeState:
    """Latest status of one instance's part of a run.

    Attributes:
        at: when it was written, ISO 8601.
        detail: for users.
        step, loss, ettr, samples: of the trainer's newest record; None before the first. Samples are those of
            all tries, also of earlier runs in the same directory.
        samples_before: those that the directory held when the run began here.
        tokens_per_sample: None where samples have no tokens.
    """

    phase: Phase
    at: str = ""
    detail: str = ""
    step: int | None = None
    loss: float | None = None
    ettr: float | None = None
    started_at: str = ""
    samples: int | None = None
    samples_before: int = 0
    tokens_per_sample: float | None = None


def state_of(content: bytes | None) -> NodeState:
    """Parse an instance's status; SENT if there is none, or none that can be read."""
    try:
        raw = json.loads(content or b"")
        return NodeState(
            Phase(raw["phase"]),
            str(raw.get("at", "")),
            str(raw.get("detail", "")),
            _number(raw.get("step"), int),
            _number(raw.get("loss"), float),
            _number(raw.get("ettr"), float),
            str(raw.get("started_at", "")),
            _number(raw.get("samples"), int),
            _number(raw.get("samples_before"), int) or 0,
            _number(raw.get("tokens_per_sample"), float),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return NodeState(Phase.SENT)


def refusal_of(content: bytes | None) -> NodeState | None:
    """Return the state of a run that was written but not sent, from its cancel object; else None."""
    try:
        raw = json.loads(content or b"")
        return NodeState(Phase.REFUSED, str(raw["at"]), str(raw["refused"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _number(value: object, kind: type) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def overall(states: Sequence[NodeState]) -> Phase:
    """Return the state of a run: the worst of its finished instances, else the earliest of the others."""
    phases = {state.phase for state in states}
    for phase in (Phase.REFUSED, Phase.FAILED, Phase.RETRYING):
        if phase in phases:
            return phase
    for phase in (Phase.SENT, Phase.STARTING, Phase.RUNNING, Phase.CANCELLED, Phase.STOPPED):
        if phase in phases:
            return phase
    return Phase.FINISHED


def run_name(title: str, now: datetime) -> str:
    """Return the name of a submission: the last part of its title, a path or a word, the time, a random tag.

    The tag keeps two submissions apart that a loop sends in one second.
    """
    last = [part for part in title.split("/") if part not in ("", ".", "..")]
    plain = re.sub(r"[^a-z0-9]+", "-", (last[-1] if last else "run").lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")
    return f"{plain[:_LONGEST_TITLE].rstrip('-')}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(TAG_BYTES)}"


def job_prefix(account: str, run: str = "") -> str:
    """Return the prefix of a job; without a run, that of an account's jobs."""
    return f"{JOBS}/{account}/{run}/" if run else f"{JOBS}/{account}/"


def node_prefix(job: Job, instance: str) -> str:
    """Return the prefix of an instance's status of a run."""
    return place_of(job.pool, job.account, job.run, instance)


def words_prefix(account: str) -> str:
    """Return the prefix of the status objects of an account's runs."""
    return f"{RUNS}/{account}/"


def place_of(pool: str, account: str, run: str, who: str) -> str:
    """Return the prefix of a run's status, by an instance of a pool or by the queue (`QUEUED`)."""
    return f"{words_prefix(account)}{pool}/{run}/{who}/"


def parameters(job: Job) -> Mapping[str, str]:
    """Return all parameters of the stack's document."""
    return {"Account": job.account, "Run": job.run, "Sha256": job.sha256}
