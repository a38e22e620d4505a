"""Types of command-line options that several commands share."""

import math
from typing import Any

import click
from click.core import ParameterSource


class Name(click.ParamType):
    """A text that is not empty where it is given: `--branch "$NAME"` of an unset NAME is no run without."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty one; a default is not looked at."""
        given = ctx is not None and param is not None and param.name is not None
        if not value and given and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            self.fail("is empty", param, ctx)
        return str(value)


class FiniteRange(click.FloatRange):
    """A range that holds no NaN: every comparison with one is false, so click's own lets it in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what is outside of the range, and what is no number or no end."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number
