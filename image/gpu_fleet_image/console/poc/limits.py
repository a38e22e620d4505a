"""Least figures that a pool must reach, from a TOML file; each with its source."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from gpu_fleet_image.core.document import TEXT, number, read
from gpu_fleet_image.core.reaper_errors import ConfigurationError

SHIPPED = Path(__file__).with_name("limits.toml")
_OF_FOLDERS = ("read", "write", "random_read", "random_write")
IN_NODE, BETWEEN_NODES = "in_node", "between_nodes"
_OF_MODELS = (f"efficiency_{IN_NODE}", f"efficiency_{BETWEEN_NODES}", "samples_per_usd")
ALLOWED = {
    "scratch": _OF_FOLDERS,
    "home": _OF_FOLDERS,
    "shared_scratch": _OF_FOLDERS,
    "bucket": ("put", "get"),
    "all_reduce": (IN_NODE, BETWEEN_NODES),
    "resnet50": _OF_MODELS,
    "gpt2_124m": _OF_MODELS,
}


@dataclass(frozen=True)
class Limit:
    """The least figure that passes, in the unit of the figure."""

    least: Annotated[float, number(1e-9, 1e18)]
    source: Annotated[str, TEXT]


Limits = Mapping[str, Limit]  # "scratch.read" and the like
# The file as a dataclass: a table for each subject, with a limit or none for each of its figures.
_TABLES = {
    subject: make_dataclass(subject, [(metric, Limit | None, None) for metric in metrics], frozen=True)
    for subject, metrics in ALLOWED.items()
}
_FILE: Any = make_dataclass("File", [(subject, table, table()) for subject, table in _TABLES.items()])


def load(path: Path, flag: str = "--limits") -> Limits:
    """Read a file of limits. Raises ConfigurationError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{flag} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise ConfigurationError(f"{flag} {path}: is no TOML: {error}") from error
    problems: list[str] = []
    file = read(_FILE, content, "", problems)
    if problems:
        raise ConfigurationError("\n".join(f"{flag} {path}: {problem}" for problem in problems))
    return {
        f"{subject}.{metric}": Limit(float(limit.least), limit.source)
        for subject, metrics in ALLOWED.items()
        for metric in metrics
        if (limit := getattr(getattr(file, subject), metric)) is not None
    }
