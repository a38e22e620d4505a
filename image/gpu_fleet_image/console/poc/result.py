"""Document of a POC: what ``poc.json`` holds, and how it is read again. Pure, but for the reading."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpu_fleet_image.console.poc.verdicts import ResultRow, RowVerdict
from gpu_fleet_image.core.reaper_errors import ConfigurationError

KIND, VERSION = "gpu-fleet-poc", 1
COLUMNS = tuple(field.name for field in fields(ResultRow))
TEXTS = (
    *("stack", "cloud", "region", "pool", "started_at", "ended_at", "outcome", "reason"),
    *("device", "backend", "torch", "price_per_hour", "max_usd", "planned_usd", "cost_usd"),
)


@dataclass(frozen=True)
class PocResult:
    """Result of a POC.

    Attributes:
        ranks_per_node: GPUs of an instance; 0 if no instance measured.
        node_counts: numbers of instances that were asked for.
        stages: ``nodes``, ``run``, ``instances``, ``outcome`` of each.
        given_back: instance -> the sweep's next step.
        problems: what could not be given back.
    """

    facts: Mapping[str, str]
    ranks_per_node: int
    node_counts: tuple[int, ...]
    types: tuple[str, ...]
    rows: tuple[ResultRow, ...]
    stages: tuple[Mapping[str, Any], ...] = ()
    given_back: Mapping[str, str] | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Short name of what was measured."""
        return (
            f"{self.facts['pool']} of {self.facts['stack']} ({self.facts['cloud']}, {self.facts['region']})"
        )

    def count(self, verdict: RowVerdict) -> int:
        """Return the number of rows with a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    @property
    def passed(self) -> bool:
        """True if the POC is complete and every limit is met; unknown is never met."""
        judged = self.count(RowVerdict.PASS) > 0
        bad = self.count(RowVerdict.FAIL) + self.count(RowVerdict.UNKNOWN)
        return self.facts["outcome"] == "complete" and judged and not bad

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "kind": KIND,
            "schema_version": VERSION,
            **self.facts,
            "passed": self.passed,
            "ranks_per_node": self.ranks_per_node,
            "node_counts": list(self.node_counts),
            "types": list(self.types),
            "rows": [row.to_json() for row in self.rows],
            "stages": [dict(stage) for stage in self.stages],
            "given_back": dict(self.given_back or {}),
            "problems": list(self.problems),
        }


def read(path: Path, flag: str) -> PocResult:
    """Read a document. Raises ConfigurationError if it is missing, corrupt, or of another version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{flag} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{flag} {path}: is no JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise ConfigurationError(f"{flag} {path}: is no result of `gpu-fleet poc` (kind is not {KIND!r})")
    if raw.get("schema_version") != VERSION:
        raise ConfigurationError(
            f"{flag} {path}: schema_version = {raw.get('schema_version')!r}; this release reads {VERSION}"
        )
    try:
        return _parsed(raw)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigurationError(f"{flag} {path}: is corrupt: {error!r}") from error


def _parsed(raw: Mapping[str, Any]) -> PocResult:
    facts = {name: raw[name] for name in TEXTS}
    if wrong := [name for name, value in facts.items() if not isinstance(value, str)]:
        raise ValueError(f"{wrong[0]} is no text")
    return PocResult(
        facts,
        int(raw["ranks_per_node"]),
        tuple(map(int, raw["node_counts"])),
        tuple(map(str, raw["types"])),
        tuple(_row(each) for each in raw["rows"]),
        tuple(_stage(each) for each in raw["stages"]),
        {str(key): str(value) for key, value in raw["given_back"].items()},
        tuple(map(str, raw["problems"])),
    )


def _stage(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    run, outcome = str(raw["run"]), str(raw["outcome"])
    return {
        "nodes": int(raw["nodes"]),
        "run": run,
        "instances": [*map(str, raw["instances"])],
        "outcome": outcome,
    }


def _row(raw: Mapping[str, Any]) -> ResultRow:
    row = ResultRow(**{**raw, "verdict": RowVerdict(raw["verdict"])})
    for number in (row.value, row.least):
        if number is not None and (
            type(number) not in (int, float) or number < 0 or not math.isfinite(number)
        ):
            raise ValueError(f"{row.subject}.{row.metric}: {number!r} is no number from 0 on")
    texts = (row.subject, row.metric, row.unit, row.source, row.reason, row.tool, row.stands_for, row.note)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"a row of {row.subject!r} has no text where one belongs")
    if not isinstance(row.absent, bool):
        raise TypeError(f"{row.subject}.{row.metric}: absent must be true or false")
    if not all(type(number) is int for number in (row.nodes, row.ranks, row.size_mib)):
        raise TypeError(f"{row.subject}.{row.metric}: nodes, ranks and size_mib must be whole numbers")
    return row


def side_by_side(
    left: Sequence[ResultRow], right: Sequence[ResultRow]
) -> list[tuple[ResultRow | None, ResultRow | None]]:
    """Return the rows of two results in pairs, None where one has no such row."""
    others = {row.place: row for row in right}
    pairs: list[tuple[ResultRow | None, ResultRow | None]] = [(row, others.get(row.place)) for row in left]
    known = {row.place for row in left}
    return [*pairs, *((None, row) for row in right if row.place not in known)]
