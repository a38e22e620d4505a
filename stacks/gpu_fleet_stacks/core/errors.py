"""The exceptions of the stacks room: one tree, whose messages are for users."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

LONGEST_VALUE = 200


class StacksError(Exception):
    """A refusal of this room; its message needs no traceback."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a stack file.

    Attributes:
        key: the path of the key as in the YAML, such as ``pools[0].volume_gib``.
        value: the value there, as written.
        allowed: a sentence fragment on what is allowed instead.
    """

    key: str
    value: object
    allowed: str

    def __str__(self) -> str:
        key = self.key if self.key.isprintable() else ascii(self.key)
        return f"{key} = {shown(self.value)}: {self.allowed}"


def shown(value: object) -> str:
    """Return a value as written in a stack file, and only the beginning of a long one."""
    text = _as_yaml(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _as_yaml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_as_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_yaml, value))}]"
    if value is None or isinstance(value, bool):
        return str(json.dumps(value))
    return str(value) if isinstance(value, date | Decimal) else repr(value)


class SettingsError(StacksError):
    """A stack file that cannot be built; the error has every problem of the file, not only the first."""

    def __init__(self, stack: str, problems: tuple[Problem, ...], older: str = "") -> None:
        """Write the message.

        Args:
            older: the release that the file names, where it is older than this program.
        """
        self.stack = stack
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  - {problem}" for problem in problems)
        hint = (
            f"\n`gpu-fleet upgrade-notes {older}` says what changed since this file's version"
            if older
            else ""
        )
        super().__init__(f"stack {stack!r} has {count}:\n{lines}{hint}")
