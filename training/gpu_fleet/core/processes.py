"""Processes as the kernel lists them in /proc (proc_pid_stat(5)); none without /proc."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")
ZOMBIE = "Z"


class ListedProcess(NamedTuple):
    """A process, running or a zombie."""

    id: int
    state: str
    parent: int
    session: int
    begun: str  # clock ticks since boot: the kernel reuses ids


def running(session: int) -> list[ListedProcess]:
    seen = (process_of(int(entry.name)) for entry in PROCESSES.glob("[0-9]*"))
    return [process for process in seen if process and process.session == session and process.state != ZOMBIE]


def orphans(processes: list[ListedProcess]) -> Iterator[int]:
    """Yield the ids of those whose parent is not among `processes`: it has ended."""
    ids = {process.id for process in processes}
    return (process.id for process in processes if process.parent not in ids)


def reap(ours: int) -> None:
    """Reap zombies that this process has adopted, as the first process of a container or as a subreaper.

    Not `ours`, and no child in this session: this process started them and waits for them.
    """
    lists = (PROCESSES / "self/task").glob("*/children")
    for number in [int(word) for file in lists for word in _text(file).split()]:
        process = process_of(number)
        if process and process.state == ZOMBIE and number != ours and process.session != os.getsid(0):
            os.waitpid(number, os.WNOHANG)


def process_of(number: int) -> ListedProcess | None:
    fields = _text(PROCESSES / str(number) / "stat").rpartition(")")[2].split()  # a name may have blanks
    return ListedProcess(number, fields[0], int(fields[1]), int(fields[3]), fields[19]) if fields else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
