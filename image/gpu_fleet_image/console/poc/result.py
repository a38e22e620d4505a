"""Document of a POC: what ``poc.json`` holds, and how it is read again. Pure, but for the reading."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass
from pathlib import Path
from typing import Any

from gpu_fleet_image.console.poc.verdicts import ResultRow, RowVerdict
from gpu_fleet_image.core.document import Record, checked
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


@dataclass(frozen=True)
class _Stage(Record):
    nodes: int
    run: str
    instances: list[str]
    outcome: str


# The document as a dataclass: its facts, and the other parts of the result.
_FILE: Any = make_dataclass(
    "File",
    [
        *((name, str) for name in TEXTS),
        ("ranks_per_node", int),
        ("node_counts", tuple[int, ...]),
        ("types", tuple[str, ...]),
        ("rows", tuple[ResultRow, ...]),
        ("stages", tuple[_Stage, ...]),
        ("given_back", dict[str, str]),
        ("problems", tuple[str, ...]),
    ],
    bases=(Record,),
)


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
    file: Any = checked(
        _FILE, raw, lambda said: ConfigurationError(f"{flag} {path}: is corrupt: {'; '.join(said)}")
    )
    facts = {name: getattr(file, name) for name in TEXTS}
    stages = tuple(map(asdict, file.stages))
    return PocResult(
        facts,
        file.ranks_per_node,
        file.node_counts,
        file.types,
        file.rows,
        stages,
        file.given_back,
        file.problems,
    )


def side_by_side(
    left: Sequence[ResultRow], right: Sequence[ResultRow]
) -> list[tuple[ResultRow | None, ResultRow | None]]:
    """Return the rows of two results in pairs, None where one has no such row."""
    others = {row.place: row for row in right}
    pairs: list[tuple[ResultRow | None, ResultRow | None]] = [(row, others.get(row.place)) for row in left]
    known = {row.place for row in left}
    return [*pairs, *((None, row) for row in right if row.place not in known)]
