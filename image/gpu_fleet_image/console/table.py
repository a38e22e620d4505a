"""Every command of ``gpu-fleet``, read from ``commands.toml``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
        target: ``module:attribute`` of a click command or group.
        line: its line in the help.
    """

    target: str
    line: str


@dataclass(frozen=True)
class Rows:
    """A group that has no module of its own.

    Attributes:
        commands: name -> row.
    """

    line: str
    example: str
    commands: Mapping[str, Row]


def _row(entry: Any) -> Row | Rows:
    if isinstance(entry, list):
        return Row(*entry)
    return Rows(entry["line"], entry["example"], {name: Row(*row) for name, row in entry["commands"].items()})


# For units of an instance: neither help nor completion shows them.
INTERNAL = "On an instance, by systemd"
_FILE = Path(__file__).with_name("commands.toml")
# Audience -> its commands, in the order of the help.
SECTIONS: Mapping[str, Mapping[str, Row | Rows]] = {
    title: {name: _row(entry) for name, entry in commands.items()}
    for title, commands in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}
