"""Command-line options that several commands share."""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from image.reaper.sweep.environment import LEDGER_URI
from image.reaper.times import parse_time

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class IsoTime(click.ParamType[datetime]):
    """A time with its zone."""

    name = "ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse it, or fail naming what is allowed."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r}; allowed: ISO 8601 with a zone, say 2026-11-21T18:00:00+01:00", param, ctx)


policy_option: Decorator = click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    help="The stack's policy; default: policy.json.",
)
now_option: Decorator = click.option("--now", type=IsoTime(), help="As of this time instead of the present.")
ledger_option: Decorator = click.option(
    "--ledger", metavar="URI", help=f"Where the ledger lies; by default {LEDGER_URI}."
)


def environment_with(ledger: str | None) -> dict[str, str]:
    """The process's environment, with the ledger that a flag names."""
    return {**os.environ, LEDGER_URI: ledger} if ledger else dict(os.environ)
