"""The process table: who is logged in, which watched programs run, and which GPU processes get on."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from image.reaper.agent.sample import People, Session
from image.reaper.agent.sessions import Process, sessions, terminal_user
from image.reaper.agent.watch_list import is_jupyter_kernel, is_trainer, is_watched
from image.reaper.errors import SensorError

# A Python process that only waits (an open notebook with a CUDA context) needs under 0.5 % of a core.
WORKING_CPU_CORES = 0.02
WORKING_BYTES_PER_S = 16 * 1024


@dataclass(frozen=True)
class Progress:
    """What a process used since it began: CPU time, and bytes through system calls."""

    at_s: float
    began_s: float
    cpu_s: float
    moved_bytes: float


class ProcessTable:
    """Reads the process table.

    Args:
        gpu_pids: processes on a GPU, as NVML told last.
        real_s: real seconds, monotonic.
        devices: where terminals lie.
    """

    def __init__(
        self,
        gpu_pids: Callable[[], frozenset[int]],
        real_s: Callable[[], float],
        devices: Path = Path("/dev"),
    ) -> None:
        self._gpu_pids = gpu_pids
        self._real_s = real_s
        self._devices = devices
        self._before: dict[int, Progress] = {}

    def read(self) -> People:
        """One look.

        Raises:
            SensorError: when the table cannot be read.
        """
        try:
            processes = list(_processes())
            terminals = {user.terminal: user.name for user in psutil.users() if user.terminal}
        except (OSError, psutil.Error) as error:
            raise SensorError(f"process table: {error}") from error
        terminals |= dict(filter(None, map(terminal_user, processes)))
        return People(
            sessions=tuple(self._terminal_sessions(terminals)) + tuple(sessions(processes)),
            watched=tuple(_shown(process) for process in processes if is_watched(process.command)),
            working=tuple(self._working(processes)),
        )

    def _terminal_sessions(self, terminals: dict[str, str]) -> Iterator[Session]:
        for terminal, user in sorted(terminals.items()):
            try:  # as `w` does: a terminal's access time is that of its last input
                unused_s = time.time() - (self._devices / terminal).stat().st_atime
            except FileNotFoundError:  # the record outlived its terminal
                continue
            except OSError as error:
                raise SensorError(f"terminal {terminal}: {error.strerror}") from error
            yield Session("terminal", f"{user} on {terminal}", max(0.0, unused_s))

    def _working(self, processes: list[Process]) -> Iterator[str]:
        gpu_pids = self._gpu_pids()
        watched = [p for p in processes if p.pid in gpu_pids or is_jupyter_kernel(p.command)]
        before, self._before = self._before, {}
        for process in watched:
            progress = self._progress(process.pid)
            if progress is None:
                continue
            self._before[process.pid] = progress
            if process.pid in before and _got_on(before[process.pid], progress):
                yield _shown(process)

    def _progress(self, pid: int) -> Progress | None:
        try:
            process = psutil.Process(pid)
            used, moved = process.cpu_times(), process.io_counters()
            began_s = process.create_time()
        except psutil.NoSuchProcess:  # it ended meanwhile
            return None
        except psutil.Error as error:
            raise SensorError(f"process {pid}: {error}") from error
        return Progress(self._real_s(), began_s, sum(used[:4]), moved.read_chars + moved.write_chars)


def trainers(among: Callable[[], frozenset[int]] | None = None) -> list[str]:
    """Training processes that run now, for people.

    Args:
        among: in a rehearsal, the processes that are watched; None for all.
    """
    chosen = among() if among is not None else None
    found = [process for process in _processes() if is_trainer(process.command)]
    return [_shown(process) for process in found if chosen is None or process.pid in chosen]


def _got_on(before: Progress, now: Progress) -> bool:
    over_s = now.at_s - before.at_s
    if over_s <= 0 or now.began_s != before.began_s:
        return False
    cpu_cores = (now.cpu_s - before.cpu_s) / over_s
    return (
        cpu_cores >= WORKING_CPU_CORES
        or (now.moved_bytes - before.moved_bytes) / over_s >= WORKING_BYTES_PER_S
    )


def _processes() -> Iterator[Process]:
    # The command line alone: with name and user, thousands of processes would cost three times as much.
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"]:
            yield Process(process.pid, tuple(process.info["cmdline"]))


def _shown(process: Process) -> str:
    """A process for people: name, id and whose it is."""
    try:
        user = psutil.Process(process.pid).username()
    except psutil.Error:  # it ended meanwhile
        user = "?"
    return f"{process.name} ({process.pid}, {user})"
