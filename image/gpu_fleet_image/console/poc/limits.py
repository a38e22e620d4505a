"""Least figures that a pool must reach, from a TOML file; each with its source."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.reaper_errors import ConfigurationError, nearest

SHIPPED = Path(__file__).with_name("limits.toml")
MOST = 1e18
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

    least: float
    source: str


Limits = Mapping[str, Limit]  # "scratch.read" and the like


def load(path: Path, flag: str = "--limits") -> Limits:
    """Read a file of limits.

    Raises:
        ConfigurationError: names every wrong key, its value and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{flag} {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise ConfigurationError(f"{flag} {path}: is no TOML: {error}") from error
    if problems := list(_problems(table)):
        raise ConfigurationError("\n".join(f"{flag} {path}: {problem}" for problem in problems))
    return {
        f"{subject}.{metric}": Limit(float(limit["least"]), limit["source"])
        for subject, metrics in table.items()
        for metric, limit in metrics.items()
    }


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    for subject, metrics in table.items():
        if subject not in ALLOWED:
            yield f"{subject}: no such key{nearest(subject, ALLOWED)}; allowed: {', '.join(ALLOWED)}"
        elif not isinstance(metrics, dict):
            yield f"{subject} = {metrics!r}; allowed: a table of {', '.join(ALLOWED[subject])}"
        else:
            for metric, limit in metrics.items():
                yield from _problems_of(subject, metric, limit)


def _problems_of(subject: str, metric: str, limit: object) -> Iterator[str]:
    key, known = f"{subject}.{metric}", ALLOWED[subject]
    if metric not in known:
        yield f"{key}: no such key{nearest(metric, known)}; allowed: {', '.join(known)}"
        return
    if not isinstance(limit, dict) or limit.keys() != {"least", "source"}:
        yield f"{key} = {limit!r}; allowed: {{ least = NUMBER, source = TEXT }}"
        return
    least, source = limit["least"], limit["source"]
    if type(least) not in (int, float) or not 0 < least <= MOST:
        yield f"{key}.least = {least!r}; allowed: a number above 0, up to {MOST:g}"
    if not isinstance(source, str) or not source.strip():
        yield f"{key}.source = {source!r}; allowed: where the number comes from, as text"
