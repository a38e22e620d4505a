"""Types of command-line options that several commands share."""

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


class Name(click.types.StringParamType):
    """A text that is not empty where it is given: `--branch "$NAME"` of an unset NAME is no run without."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty one; a default is not looked at."""
        source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
        if not value and source is ParameterSource.COMMANDLINE:
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FolderPath(click.Path):
    """A folder by its path; "" would be the one where the caller stands."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty path."""
        if value == "":
            self.fail("is empty", param, ctx)
        return super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A range that holds no NaN: every comparison with one is false, so click's own lets it in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what is outside of the range, and what is no number or no end."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number
