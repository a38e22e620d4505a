"""``instance.toml``: the stack's declaration of an instance."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.errors import InstanceFileError, nearest

CLOUDS = ("aws", "alicloud")
TEXTS = (
    "cloud",
    "region",
    "stack",
    "pool",
    "data_uri",
    "records_uri",
    "metric_namespace",
    "lifecycle_hook",
    "home_file_system",
)
# Keys that the file of the queue's controller, or of a stack without such a resource, lacks.
_OPTIONAL_TEXTS = ("monitor_group", "instance_log", "user_role")


@dataclass(frozen=True)
class Expected:
    """Properties of an instance type, from the catalog."""

    gpus: int = 0
    gpu_memory_gib: float = 0
    efa_interfaces: int = 0
    erdma_interfaces: int = 0


@dataclass(frozen=True)
class InstanceFile:
    """Properties of this instance that agent, gate and commands need.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        data_uri: bucket that receives data before the instance is terminated, ``s3://BUCKET``.
        records_uri: where the agent replies to the sweep, ``s3://BUCKET/reaper``.
        lifecycle_hook: of the pool's scaling group; empty without one.
        home_file_system: DNS name of the shared home, or empty.
        monitor_group: CloudMonitor's application group for metrics of the pool; empty for none.
        instance_log: destination of its logs: a log group, or ``PROJECT/STORE``; empty for none.
        user_role: the role behind users' credentials, an ARN; empty if no pool declares one.
        expected: instance type -> its properties.
    """

    cloud: str
    region: str
    stack: str
    pool: str
    data_uri: str
    records_uri: str
    metric_namespace: str
    lifecycle_hook: str
    home_file_system: str
    expected: Mapping[str, Expected]
    monitor_group: str = ""
    instance_log: str = ""
    user_role: str = ""

    def expected_of(self, instance_type: str | None) -> Expected:
        """Return what an instance of a type must have; of an unknown type, the least of the pool's types."""
        if instance_type in self.expected or not self.expected:
            return self.expected.get(instance_type or "", Expected())
        known = [asdict(each) for each in self.expected.values()]
        return Expected(**{key: min(table[key] for table in known) for key in known[0]})


_EXPECTED_KEYS = tuple(field.name for field in fields(Expected))


def load(path: Path) -> InstanceFile:
    """Read and check the file. Raises InstanceFileError, which names every key that is wrong."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InstanceFileError(f"instance file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InstanceFileError(f"instance file {path}: not TOML: {error}") from error
    problems = list(_problems(raw))
    if problems:
        raise InstanceFileError("\n".join(f"instance file {path}: {problem}" for problem in problems))
    return InstanceFile(
        **{key: raw[key] for key in TEXTS},
        expected={
            name: Expected(**{key: table.get(key, 0) for key in _EXPECTED_KEYS})
            for name, table in raw.get("expected", {}).items()
        },
        **{key: raw.get(key, "") for key in _OPTIONAL_TEXTS},
    )


def _problems(raw: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    if raw.get("schema_version") != 1:
        problems.append(f"schema_version = {raw.get('schema_version')!r}; allowed: 1")
    others = raw.keys() - set(TEXTS)
    wrong = [key for key in TEXTS if not isinstance(raw.get(key), str)]
    wrong += [key for key in _OPTIONAL_TEXTS if not isinstance(raw.get(key, ""), str)]
    problems += [f"{key} = {raw.get(key)!r}; allowed: a text{nearest(key, others)}" for key in wrong]
    if isinstance(raw.get("cloud"), str) and raw["cloud"] not in CLOUDS:
        problems.append(
            f"cloud = {raw['cloud']!r}; allowed: {', '.join(CLOUDS)}{nearest(raw['cloud'], CLOUDS)}"
        )
    return problems + _expected_problems(raw.get("expected", {}))


def _expected_problems(expected: object) -> list[str]:
    if not isinstance(expected, dict):
        return [f"expected = {expected!r}; allowed: one table for each instance type"]
    wrong: list[str] = []
    for name, table in expected.items():
        values = table if isinstance(table, dict) else {}
        if not isinstance(values.get("gpus"), int) or isinstance(values["gpus"], bool):
            wrong.append(f"expected.{name}.gpus = {values.get('gpus')!r}; allowed: a whole number")
        wrong += [
            f"expected.{name}.{key} = {values[key]!r}; allowed: a number"
            for key in _EXPECTED_KEYS
            if key != "gpus" and not _is_number(values.get(key, 0))
        ]
    return wrong


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
