"""Words of a `prepare` command: its progress, the raw samples that it skips, and its census."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress

from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import Census, shown


class Skipped:
    """Counter of the samples that one `prepare` command skips, and census of other files."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.census = Census()

    def add(self, defect: str) -> None:
        """Count and name a skipped sample; raises DataError above the limit."""
        self.count += 1
        defect = shown(defect)
        click.echo(f"skipped {self.count} of at most {self._limit}: {defect}", err=True)
        if self.count > self._limit:
            raise DataError(
                f"{self.count} samples cannot be read, --corrupt-limit allows {self._limit}; last: {defect}"
            )

    def say(self, what: str) -> None:
        click.echo(f"{self.count} {what} skipped; left out: {self.census}")


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error, and yield a function that advances it by one of `total`.

    Rich's `track` is a generator: the garbage collector may close it inside its own thread, where it hangs.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


corrupt_limit_option = click.option(
    "--corrupt-limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Samples that may be left out because they cannot be read.",
)
