"""Regions of both clouds, read from regions.toml."""

import datetime
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.catalog.instance_types import Cloud

FILE = Path(__file__).with_name("regions.toml")


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def of_cloud(cloud: Cloud) -> tuple[str, ...]:
    """Return the regions that a stack on this cloud may be in."""
    return tuple(_content()[cloud]["regions"])


def read_from(cloud: Cloud) -> tuple[datetime.date, str]:
    """Return when they were read, and where."""
    table = _content()[cloud]
    return table["date"], table["source"]
