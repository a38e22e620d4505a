"""Types of command-line options that several commands share."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range that holds no NaN: every comparison with one is false, so click's own lets it in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what is outside of the range, and what is no number or no end."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} must be a finite number", param, ctx)
        return number
