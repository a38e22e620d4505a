"""Corrupt raw samples of a `prepare` command: named, counted, and skipped up to a limit."""

import click

from gpu_fleet.errors import DataError


class Skipped:
    """Counter of the samples that one `prepare` command leaves out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def add(self, defect: str) -> None:
        """Count and name a skipped sample; raises DataError above the limit."""
        self.count += 1
        click.echo(f"skipped {self.count} of at most {self._limit}: {defect}", err=True)
        if self.count > self._limit:
            raise DataError(
                f"{self.count} samples cannot be read, --corrupt-limit allows {self._limit}; last: {defect}"
            )


corrupt_limit_option = click.option(
    "--corrupt-limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Samples that may be left out because they cannot be read.",
)
