"""Evidence of an acceptance run: a JSON file, and a page for users."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.acceptance.account import Call
from gpu_fleet_stacks.core import files

SCHEMA_VERSION = 1
SHOWN_DIGITS = 4


class Status(StrEnum):
    """Result of a step; ``skipped`` was not tried, since a step that it needs did not pass."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class StepRecord:
    """Record of one step.

    Attributes:
        started, ended: aware UTC.
        accrued: the run's cost so far, in its currency.
        calls: the API calls that it made.
    """

    name: str
    proves: str
    status: Status
    started: datetime
    ended: datetime
    expected: str
    observed: str
    facts: dict[str, Any]
    accrued: Decimal
    calls: Sequence[Call] = ()

    @property
    def seconds(self) -> float:
        """The step's duration in seconds."""
        return (self.ended - self.started).total_seconds()


@dataclass(frozen=True)
class Remainder:
    """Something that still existed at the end.

    Attributes:
        kind, id, state, note: as in ``account.Orphan``.
        per_hour: its cost per hour, as text; ``unknown`` where the price is unknown, ``0`` where it is not
            paid by the hour.
    """

    kind: str
    id: str
    state: str
    per_hour: str
    note: str


@dataclass
class Evidence:
    """A whole run.

    Attributes:
        account: its id; the written files hide all but the last four digits.
        began, ended: aware UTC; ``ended`` is None while it runs.
        cap, worst: the most that it may cost, and the most that it can cost.
        plan: (step, its deadline in seconds), in order.
        remaining: what still existed at the end; None where it could not be listed.
        stopped: why the whole run ended early; empty where it did not.
    """

    stack: str
    variant: str
    cloud: str
    region: str
    account: str
    began: datetime
    currency: str
    cap: Decimal
    worst: Decimal
    plan: list[tuple[str, int]]
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    remaining: list[Remainder] | None = None
    stopped: str = ""
    ended: datetime | None = None

    @property
    def failed(self) -> list[StepRecord]:
        """The steps that failed."""
        return [step for step in self.steps if step.status is Status.FAILED]

    @property
    def accrued(self) -> Decimal:
        """The run's cost, by its own estimate."""
        return self.steps[-1].accrued if self.steps else Decimal(0)

    @property
    def clean(self) -> bool:
        """Return whether nothing is left that costs money or may."""
        return self.remaining is not None and all(orphan.per_hour == "0" for orphan in self.remaining)

    @property
    def passed(self) -> bool:
        """Return whether every step and the tear-down passed, and nothing that is paid for is left."""
        good = {step.name for step in self.steps if step.status is Status.OK}
        return not self.failed and not self.stopped and self.clean and {name for name, _ in self.plan} <= good

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; amounts as text."""
        raw = asdict(self)
        raw |= {
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "accrued": str(self.accrued),
            "cap": str(self.cap),
            "worst": str(self.worst),
            "steps": [{**asdict(step), "seconds": step.seconds} for step in self.steps],
        }
        return raw


def masked(account_id: str) -> str:
    """Hide all but the last four digits of an account's id: ``********9012``."""
    return "*" * max(0, len(account_id) - SHOWN_DIGITS) + account_id[-SHOWN_DIGITS:]


def write(evidence: Evidence, folder: Path) -> tuple[Path, Path]:
    """Write both files, each whole or not at all; return their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{evidence.stack}-{evidence.began:%Y%m%dT%H%M%SZ}"
    as_json, page = folder / f"{stem}.json", folder / f"{stem}.md"
    content = json.dumps(evidence.to_json(), indent=1, default=_plain) + "\n"
    for path, text in ((as_json, content), (page, markdown(evidence))):
        files.replace(path, text.replace(evidence.account, masked(evidence.account)))
    return as_json, page


def _plain(value: object) -> str:
    """Return a time in ISO 8601, everything else as its text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def markdown(evidence: Evidence) -> str:
    """Return the page for users."""
    verdict = "passed" if evidence.passed else "FAILED" if evidence.ended else "not over"
    ended = f"{evidence.ended:%Y-%m-%d %H:%M:%S} UTC" if evidence.ended else "not yet"
    head = [
        f"# gpu-fleet accept {evidence.stack}: {verdict}",
        "",
        f"Account {evidence.account}, {evidence.cloud} {evidence.region}, stack `{evidence.variant}`. "
        f"Began {evidence.began:%Y-%m-%d %H:%M:%S} UTC, ended {ended}.",
        f"Cost by its own estimate: {evidence.accrued:.2f} {evidence.currency}; "
        f"cap {evidence.cap:.2f}, at worst {evidence.worst:.2f}.",
        *([f"Stopped early: {evidence.stopped}"] if evidence.stopped else []),
        "",
        *(f"- Note: {note}" for note in evidence.notes),
        *([""] if evidence.notes else []),
    ]
    failures = [
        "## What failed",
        "",
        *(f"- **{step.name}**: {step.observed}" for step in evidence.failed),
        "",
    ]
    return "\n".join(
        [
            *head,
            *(failures if evidence.failed else []),
            *_steps(evidence),
            *_remaining(evidence),
            *_versions(evidence),
            *_calls(evidence),
        ]
    )


def _steps(evidence: Evidence) -> list[str]:
    rows = [
        f"| {step.name} | {step.status} | {step.started:%H:%M:%S} | {step.seconds:.0f} | {step.accrued:.2f} "
        f"| {_cell(step.expected)} | {_cell(step.observed)} |"
        for step in evidence.steps
    ]
    heading = (
        f"| Step | Result | Started (UTC) | Seconds | {evidence.currency} so far | Expected | Observed |"
    )
    return ["## Steps", "", heading, "|---|---|---|---|---|---|---|", *rows, ""]


def _remaining(evidence: Evidence) -> list[str]:
    if evidence.ended is None:
        return ["## What still exists", "", "The run is under way, or was cut off: clean up and look.", ""]
    if evidence.remaining is None:
        return ["## What still exists", "", "It could not be listed: look for the stack's tag by hand.", ""]
    if not evidence.remaining:
        return ["## What still exists", "", "Nothing that carries the stack's tag.", ""]
    rows = [
        f"| {left.kind} | `{left.id}` | {left.state} | {left.per_hour} | {_cell(left.note)} |"
        for left in evidence.remaining
    ]
    heading = f"| What | Id | State | {evidence.currency} an hour | Note |"
    return ["## What still exists", "", heading, "|---|---|---|---|---|", *rows, ""]


def _versions(evidence: Evidence) -> list[str]:
    return ["## Versions", "", *(f"- {name}: {version}" for name, version in evidence.versions.items()), ""]


def _calls(evidence: Evidence) -> list[str]:
    """List each kind of call once, with its page; the JSON file holds every request id."""
    calls = [call for step in evidence.steps for call in step.calls]
    names = {call.name: call.doc for call in calls}
    rows = [
        f"| [{name}]({doc}) | {sum(call.name == name for call in calls)} "
        f"| {sum(call.name == name and bool(call.error) for call in calls)} |"
        for name, doc in sorted(names.items())
    ]
    return ["## Calls of the cloud's API", "", "| Call | Made | Refused |", "|---|---|---|", *rows, ""]


def _cell(text: str) -> str:
    """Return the text as one cell of a table."""
    return " ".join(text.replace("|", "\\|").split())
