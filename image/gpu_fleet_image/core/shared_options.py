"""Options that commands for users and commands for stacks share."""

import math
import os
from collections.abc import Callable
from typing import Any

import click

STACK_VARIABLE = "GPU_FLEET_STACK"
QUIET = "GPU_FLEET_QUIET"  # `gpu-fleet -q` sets it
TABLE, JSON, CSV = "table", "json", "csv"


def note(text: str) -> None:
    """Print a warning or a remark on standard error, unless the user wants results and errors alone."""
    if not os.environ.get(QUIET):
        click.echo(text, err=True)


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


class FiniteRange(click.FloatRange):
    """A range that holds no NaN: every comparison with one is false, so click's own lets it in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse a number outside of the range, NaN and infinity."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number
