"""A submitted run: its names, its place in the records bucket, and the words its instances leave there.

``runs/jobs/ACCOUNT/RUN/`` is written by whoever submits, ``runs/words/ACCOUNT/POOL/RUN/INSTANCE/`` by the
account's processes on the instances; no other user reads either. Who may write below ``runs/jobs/ACCOUNT/``
decides whose account a run gets (``stacks/gpu_fleet_stacks/aws/submit.py``).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

# What the stacks' documents let through (stacks/gpu_fleet_stacks/core/naming.py has the same; a test holds
# them together).
ACCOUNT = re.compile(r"[a-z][a-z0-9_-]{0,30}")
RUN = re.compile(r"[a-z][a-z0-9-]{0,62}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SCHEMA = 1
LONGEST_TITLE = 40
FOLDER = "runs"  # of the records bucket
JOBS, RUNS = f"{FOLDER}/jobs", f"{FOLDER}/words"
QUEUED = "queue"
JOB, ARCHIVE, CANCEL, STATE, LOG = "job.json", "files.zip", "cancel", "state.json", "log"


class Phase(StrEnum):
    """What an instance says of its part of a run.

    See ``gpu_fleet_jobs/submitted/work.py`` has the same words.
    """

    SENT = "sent"  # nobody has heard of it yet
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
    """What a user submits; only who may write below the account's prefix makes one.

    Attributes:
        instances: by node rank; the first one is where all meet.
        arguments: of ``python -m gpu_fleet`` there: ``launch`` and a configuration, or ``run`` and a command.
        directory: where the run leaves its result.
        archive_sha256: of the files that travel with it.
        by: the caller, as the cloud calls the credentials.
        at: when, ISO 8601.
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
    schema_version: int = SCHEMA

    def content(self) -> bytes:
        """As it lies in the bucket."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()

    @property
    def sha256(self) -> str:
        """Of the content; the instance holds what it fetches against it."""
        return hashlib.sha256(self.content()).hexdigest()


def job_of(content: bytes) -> Job | None:
    """A job as a user wrote it; None for what is none."""
    try:
        raw: dict[str, Any] = json.loads(content)
        members = tuple(Member(str(member["id"]), str(member["address"])) for member in raw.pop("instances"))
        arguments = tuple(str(word) for word in raw.pop("arguments"))
        job = Job(instances=members, arguments=arguments, **raw)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return job if job.schema_version == SCHEMA else None


@dataclass(frozen=True)
class NodeState:
    """The newest word of one instance about its part of a run.

    Attributes:
        at: when it was said, ISO 8601.
        detail: for users.
        step, loss, ettr: of the trainer's newest record; None before there is one.
    """

    phase: Phase
    at: str = ""
    detail: str = ""
    step: int | None = None
    loss: float | None = None
    ettr: float | None = None
    started_at: str = ""


def state_of(content: bytes | None) -> NodeState:
    """What an instance wrote; SENT where it wrote nothing, or nothing that can be read."""
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
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return NodeState(Phase.SENT)


def refusal_of(content: bytes | None) -> NodeState | None:
    """What became of a run that was written and not sent, by the word to end it; None for any other."""
    try:
        raw = json.loads(content or b"")
        return NodeState(Phase.REFUSED, str(raw["at"]), str(raw["refused"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _number(value: object, kind: type) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def overall(states: Sequence[NodeState]) -> Phase:
    """Of a run, by what its instances say: the worst that is over, else the earliest that is not."""
    phases = {state.phase for state in states}
    for phase in (Phase.REFUSED, Phase.FAILED, Phase.RETRYING):
        if phase in phases:
            return phase
    for phase in (Phase.SENT, Phase.STARTING, Phase.RUNNING, Phase.CANCELLED, Phase.STOPPED):
        if phase in phases:
            return phase
    return Phase.FINISHED


def run_name(title: str, now: datetime) -> str:
    """The name of a submission: the last part of its title, a path or a word, then the time."""
    last = [part for part in title.split("/") if part not in ("", ".", "..")]
    plain = re.sub(r"[^a-z0-9]+", "-", (last[-1] if last else "run").lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")
    return f"{plain[:LONGEST_TITLE].rstrip('-')}-{now:%Y%m%d-%H%M%S}"


def job_prefix(account: str, run: str = "") -> str:
    """Where a job lies; without a run, those of an account."""
    return f"{JOBS}/{account}/{run}/" if run else f"{JOBS}/{account}/"


def node_prefix(job: Job, instance: str) -> str:
    """Where an instance says what becomes of its part."""
    return place_of(job.pool, job.account, job.run, instance)


def words_prefix(account: str) -> str:
    """Where an account's runs speak."""
    return f"{RUNS}/{account}/"


def place_of(pool: str, account: str, run: str, who: str) -> str:
    """Where one instance of a pool speaks of a run, or the queue's job of it (`QUEUED`)."""
    return f"{words_prefix(account)}{pool}/{run}/{who}/"


def parameters(job: Job) -> Mapping[str, str]:
    """All that the stack's document takes."""
    return {"Account": job.account, "Run": job.run, "Sha256": job.sha256}
