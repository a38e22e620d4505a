"""The progress bar of commands that take a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows a bar on standard error and hands out what advances it by one of `total`.

    Not rich's `track`: as a generator it stops its thread whenever the collector finds it after an error,
    which may be inside that very thread, and then hangs.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)
