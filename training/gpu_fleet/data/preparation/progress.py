"""The progress bar of long commands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error, and yield a function that advances it by one of `total`.

    Rich's `track` does not fit. It is a generator: after an error the garbage collector closes it at any
    time, perhaps inside its own thread, where it waits for itself and hangs.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)
