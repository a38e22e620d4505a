"""Regions of both clouds, read from regions.toml."""

import tomllib
from functools import cache
from pathlib import Path

from gpu_fleet_stacks.catalog.instance_types import Cloud

FILE = Path(__file__).with_name("regions.toml")


@cache
def of_cloud(cloud: Cloud) -> tuple[str, ...]:
    """Return the regions that a stack on this cloud may be in."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(content[cloud]["regions"])
