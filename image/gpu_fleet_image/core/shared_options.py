"""Options that commands for users and commands for stacks share."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

STACK_VARIABLE = "GPU_FLEET_STACK"
QUIET = "GPU_FLEET_QUIET"  # `gpu-fleet -q` sets it
TABLE, JSON, CSV = "table", "json", "csv"
# What a terminal obeys instead of showing it: controls (ECMA-48), Unicode's line ends, and its marks that
# reorder a line (UAX 9).
OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def inert(text: str, kept: str = "\n\t") -> str:
    """Return a text that others may have written, where what a terminal would obey reads as ``\\x1b``. Pure.

    Args:
        kept: characters that stay as they are.
    """
    return OBEYED.sub(lambda letter: letter[0] if letter[0] in kept else ascii(letter[0])[1:-1], text)


def inert_log(text: str) -> str:
    """Return a program's output likewise, without its colours; a bar that redraws becomes lines. Pure."""
    return inert(COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def note(text: str) -> None:
    """Print a warning or a remark on standard error, unless the user wants results and errors alone."""
    if not os.environ.get(QUIET):
        click.echo(inert(text), err=True)


def form_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``-o json`` and ``-o csv``, as the parameter ``form``."""
    return click.option(
        *("-o", "--output", "form"),
        type=click.Choice([TABLE, JSON, CSV]),
        default=TABLE,
        help="A form for programs: json or csv. The documentation (JSON and CSV output) has the keys.",
    )(command)


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``-o json``, as the parameter ``as_json``."""
    return click.option(
        *("-o", "--output", "as_json"),
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        callback=lambda _, __, form: form == JSON,
        help="A form for programs: json. The documentation (JSON and CSV output) has the keys.",
    )(command)


class OutputFile(click.Path):
    """A file that a command writes at its end; the command line is refused where nothing can be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Refuse a new file in a folder that is missing, or in which this user may not write."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.exists() and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            self.fail(f"{str(path)!r}: {path.parent} is no folder in which you may write", param, ctx)
        return path


class FiniteRange(click.FloatRange):
    """A range that holds no NaN: every comparison with one is false, so click's own lets it in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse a number outside of the range, NaN and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number


MOST_MONEY = 1_000_000_000  # sums keep their cents
AMOUNT = FiniteRange(0, MOST_MONEY, min_open=True)
CNY_PER_USD = FiniteRange(1, 100)
