"""Types of command-line options that several commands share."""

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


class Name(click.types.StringParamType):
    """Text that must not be empty on the command line: `--branch "$NAME"` with an unset NAME is an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
        if not value and source is ParameterSource.COMMANDLINE:
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FolderPath(click.Path):
    """Path of a folder; an empty path would mean the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """Range without NaN: comparisons with NaN are false, so click's own range accepts it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number
