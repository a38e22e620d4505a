"""Processes that outlive the program which started them: those that run on, and those that wait to be reaped.

Fields as of proc_pid_stat(5). Where there is no /proc nothing is seen.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")
ZOMBIE = "Z"


class Descendant(NamedTuple):
    """A process that a program has started, as the kernel lists it."""

    id: int
    state: str
    parent: int
    session: int


def running(session: int) -> list[Descendant]:
    """All of a session but its zombies."""
    numbers = (entry.name for entry in _entries(PROCESSES) if entry.name.isdigit())
    seen = (_process(int(number)) for number in numbers)
    return [process for process in seen if process and process.session == session and process.state != ZOMBIE]


def orphans(processes: list[Descendant]) -> Iterator[int]:
    """Those that none of `processes` has started: the end of their parent left them behind."""
    ids = {process.id for process in processes}
    return (process.id for process in processes if process.parent not in ids)


def reap(ours: int) -> None:
    """Takes leave of zombies that came to this process as the first of a container, or as a subreaper.

    What this process starts itself is in its own session, but `ours`, and is waited for here.
    """
    for number in _children():
        process = _process(number)
        if process and process.state == ZOMBIE and number != ours and process.session != os.getsid(0):
            os.waitpid(number, os.WNOHANG)


def _children() -> list[int]:
    lists = (task / "children" for task in _entries(PROCESSES / "self/task"))
    return [int(number) for file in lists for number in _text(file).split()]


def _process(number: int) -> Descendant | None:
    """None of one that has ended."""
    fields = _text(PROCESSES / str(number) / "stat").rpartition(")")[2].split()  # a name may have blanks
    return Descendant(number, fields[0], int(fields[1]), int(fields[3])) if fields else None


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
