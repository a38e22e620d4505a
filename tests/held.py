"""A run on several ranks that cannot be over before a test has done something to it.

The runs of tests last seconds, and what interrupts them comes from a process that has no more of the cores
than they: on a busy computer a run ended first. A checkpoint goes up when nothing else wants the core
(``gpu_fleet.checkpoint.uploader``), so it may come to the bucket after the run's last step.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

# Of a held rank: seconds that it runs, and that it stands still.
MOMENT_S, STILL_S = 0.03, 0.06


def rank_process(launcher: int, rank: int) -> psutil.Process | None:
    """A rank below the process that started it, by its environment; None while there is none.

    Args:
        launcher: process id of torchrun, ``launch`` or what started them.
    """
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(launcher).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # what a rank asked in passing has ended meanwhile
                if child.environ().get("RANK") == str(rank):
                    return child
    return None


@contextmanager
def slowly(launcher: int, stands_still: Callable[[], bool]) -> Iterator[None]:
    """In the block a run makes a few steps at a time, and none while it is to stand still.

    Rank 1 is stopped and the others wait for it in their next collective: what else they do goes on, such as
    uploads and looks for a notice.

    Args:
        launcher: as of ``rank_process``.
        stands_still: asked while the rank is stopped.
    """
    over, started = threading.Event(), psutil.Process(launcher)

    def hold() -> None:
        rank: psutil.Process | None = None
        while not over.wait(MOMENT_S) and started.is_running():
            if rank is None or not rank.is_running():
                rank = rank_process(launcher, 1)
            if rank is not None:
                _still_for_a_moment(rank, over, stands_still)

    holder = threading.Thread(target=hold, name="holds rank 1", daemon=True)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()


def _still_for_a_moment(
    rank: psutil.Process, over: threading.Event, stands_still: Callable[[], bool]
) -> None:
    with suppress(psutil.NoSuchProcess):
        rank.send_signal(signal.SIGSTOP)
        try:
            while not over.wait(STILL_S) and stands_still():
                pass
        finally:
            rank.send_signal(signal.SIGCONT)
