"""Release numbers: the one of this program, and their order."""

import re
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

from gpu_fleet_stacks.core import naming

CHECKOUT = Path(__file__).resolve().parents[3]
PATTERN = r"[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}"


@cache
def running() -> str:
    """Return the release that this program is, or that its checkout prepares, such as 0.2.0.

    An installation in place keeps the number of the day when it was made, so a checkout says its own.
    """
    project = CHECKOUT / "pyproject.toml"
    if project.is_file():
        settings = tomllib.loads(project.read_text(encoding="utf-8"))
        return _release(settings["tool"]["setuptools_scm"]["fallback_version"])
    return _release(metadata.version(naming.PROJECT))


def _release(number: str) -> str:
    """Return the release of a version; a version such as 0.2.0.dev7 prepares 0.2.0."""
    hit = re.match(PATTERN, number)
    if hit is None:
        raise ValueError(f"{number!r} does not begin with a release, such as 0.2.0")
    return hit[0]


def order(release: str) -> tuple[int, ...]:
    """Return the sort key of a release."""
    return tuple(map(int, release.split(".")))


def is_newer(release: object) -> bool:
    """Return whether this is a release, and newer than this program."""
    return _is_release(release) and order(str(release)) > order(running())


def is_older(release: object) -> bool:
    """Return whether this is a release, and older than this program."""
    return _is_release(release) and order(str(release)) < order(running())


def _is_release(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(PATTERN, value) is not None
