"""Process table: programs that are work, their progress, log-ins, and the last input of each terminal.

The last input of a terminal counts: when a program reads it, the kernel sets its access time, to eight
seconds (``tty_update_time`` in drivers/tty/tty_io.c). That holds for every pseudo terminal: of ssh, tmux,
JupyterLab, a code tunnel, and of a container, whose terminals are found through its processes.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from pwd import getpwuid

import psutil

from gpu_fleet_image.core.model import Tie
from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors.commands import base_name, is_trainer, is_watched, kernel_id
from gpu_fleet_image.instance.agent.sensors.reading import Presence, ProcessUse, Session, Started
from gpu_fleet_image.instance.agent.sensors.slow_answer import SlowAnswer

LOG_IN_PROMPTS = frozenset({"agetty", "getty", "mingetty"})
# Variables of a rank of a distributed job: torch, Open MPI, MPICH and Slurm.
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
WORLD_SIZE = re.compile("[0-9]{1,9}")  # any other value is not a launcher's; int() refuses 4301 digits
# OpenSSH names its process "sshd: bob@pts/3" or "sshd: bob@notty"; from 9.8 on "sshd-session: ...".
_SSH_WITHOUT_TERMINAL = re.compile(r"sshd(?:-session)?: (?P<user>[^@\s]+)@notty")
_SESSION_MANAGER = "ssm-session-worker"  # one for each open session (AWS Systems Manager agent)
_CONTAINERS = re.compile(rb"docker|libpod|kubepods|containerd|crio")
_SETTLED_S = 60.0  # after its start: a container's start moves its process there within a second
FIRST_PERSON = 1000  # first user id of human users (login.defs, UID_MIN)
STARTED_LATELY_S = 900.0
# If notebooks' servers answered more slowly, the table is read again: it must show what began meanwhile.
_NEW_TABLE_AFTER_S = 1.0
_TTY_STEP_S = 8.0
_PROC_CHUNK = 1 << 16
PSEUDO_TERMINALS, _CONSOLES, _FIRST_SERIAL = 136, 4, 64  # majors, and a minor (admin-guide/devices.txt)


@dataclass(frozen=True)
class Process:
    """One entry of the process table.

    Attributes:
        terminal: device number of its terminal; 0 without one.
        cpu_s: CPU time, with that of children that it waited for.
        began_s: its start, in seconds after the boot.
        line: the arguments as the kernel has them, to distinguish any two command lines.
    """

    pid: int
    command: tuple[str, ...]
    parent: int = 0
    terminal: int = 0
    cpu_s: float = 0.0
    began_s: float = 0.0
    uid: int = 0
    line: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """Name of the program without its folder; for a process with its own title, the title's first word.

        Names are logged and shown to everybody; the rest of a title may hold arguments with secrets.
        """
        first = self.command[0] if self.command else ""
        return base_name(first.split(" ")[0] if len(self.command) == 1 else first)

    @property
    def user(self) -> str:
        """Login name, or the number of a user without one."""
        return user_name(self.uid)

    @property
    def shown(self) -> str:
        """Text for users: name, id and user."""
        return f"{self.name} ({self.pid}, {self.user})"


def user_name(uid: int) -> str:
    """Return the login name of a user id."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:  # of a container
        return str(uid)


def _kernels(table: Mapping[int, Process]) -> list[Process]:
    """Return the processes of notebooks' kernels."""
    return [process for process in table.values() if kernel_id(process.command)]


@dataclass(frozen=True)
class _Used:
    """Use of a process until a moment: CPU time, and bytes through system calls."""

    at_s: float
    began_s: float
    cpu_s: float
    moved_bytes: float

    def rates_since(self, before: "_Used") -> tuple[float, float]:
        """Return cores and bytes per second since an earlier look.

        Zeros if its id belonged to another process.
        """
        over_s = self.at_s - before.at_s
        if before.began_s != self.began_s or over_s <= 0:
            return 0.0, 0.0
        moved_bytes = max(0.0, self.moved_bytes - before.moved_bytes)
        return max(0.0, self.cpu_s - before.cpu_s) / over_s, moved_bytes / over_s


class ProcessTable:
    """Sensor of the process table.

    Args:
        gpu_pids: returns the processes on a GPU, from NVML's last reading.
        real_s: returns real seconds, monotonic.
        kernels: returns Jupyter's sessions with each kernel's last activity, and errors.
        words: returns program names that the stack adds.
        root: folder of /proc and /dev.
    """

    def __init__(
        self,
        gpu_pids: Callable[[], frozenset[int]],
        real_s: Callable[[], float],
        kernels: Callable[[Sequence[Process], Mapping[int, Process]], tuple[list[Session], list[str]]],
        words: Callable[[], frozenset[str]] = frozenset,
        root: Path = Path("/"),
    ) -> None:
        self._gpu_pids = gpu_pids
        self._real_s = real_s
        self._kernels = kernels
        self._words = words
        self._root = root
        self._notebooks = SlowAnswer[tuple[list[Session], list[str]]](real_s)
        self._before: dict[int, _Used] = {}
        self._world: dict[tuple[int, float], int] = {}
        self._in_container: dict[tuple[int, float], bool] = {}

    def read(self, *, keep: bool = False) -> Presence:
        """Read the table once.

        Args:
            keep: the next read compares with the same earlier read.

        Raises:
            SensorError: the table cannot be read.
        """
        table, began_s = self._table(), self._real_s()
        notebooks, unknown = self._notebooks.get(partial(self._kernels, _kernels(table), table))
        if self._real_s() - began_s > _NEW_TABLE_AFTER_S:
            table = self._table()
        uses = self._uses(table.values(), _kernels(table), keep=keep)
        open_sessions = [*self._terminals(table.values()), *notebooks, *_managed_sessions(table.values())]
        of_users = self._of_users(table)
        started, older = self._started(table, of_users), _older(table, of_users)
        words = self._words()
        watched = [process for process in table.values() if is_watched(process.command, words)]
        users = [(process.user, Tie.LAUNCHED) for process in watched] + [
            (process.user, Tie.RUNS) for process in started
        ]
        users += [(session.user, Tie.LOGGED_IN) for session in open_sessions]
        users += [(use.user, Tie.LOGGED_IN if use.kind == "ssh" else Tie.RUNS) for use in uses]
        return Presence(
            sessions=tuple(open_sessions),
            watched=tuple(process.shown for process in watched),
            processes=tuple(uses),
            started=tuple(started),
            older=tuple(older),
            unknown=tuple(unknown),
            users=tuple(sorted((name, tie) for name, tie in set(users) if name)),
        )

    def _table(self) -> dict[int, Process]:
        try:
            return {process.pid: process for process in processes(self._root)}
        except OSError as error:
            raise SensorError(f"process table: {error}") from error

    def _terminals(self, table: Iterable[Process]) -> Iterator[Session]:
        """Yield every terminal with its last input."""
        paths = dict.fromkeys((self._root / "dev/pts").glob("[0-9]*"))
        for process in table:
            if (path := terminal_path(process, self._root)) is not None:
                paths[path] = None
        seen = set[tuple[int, int]]()
        for path in paths:
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError, ProcessLookupError):  # it was closed meanwhile
                continue
            except OSError as error:
                raise SensorError(f"terminal {path}: {error.strerror}") from error
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                unused_s = max(0.0, time.time() - status.st_atime - _TTY_STEP_S)
                user = user_name(status.st_uid)
                yield Session("terminal", f"{user} on {path.parent.name}/{path.name}", unused_s, user)

    def _uses(self, table: Iterable[Process], kernels: Sequence[Process], *, keep: bool) -> list[ProcessUse]:
        """Return use since the previous look, of GPU processes, kernels, connections without a terminal."""
        gpu_pids, kernel_pids = self._gpu_pids(), {kernel.pid for kernel in kernels}
        now: dict[int, _Used] = {}
        uses = []
        for process in table:
            ssh = _SSH_WITHOUT_TERMINAL.match(process.command[0])
            kind = "gpu" if process.pid in gpu_pids else "kernel" if process.pid in kernel_pids else "ssh"
            if kind == "ssh" and ssh is None:
                continue
            used = self._used(process)
            if used is None:
                continue
            now[process.pid] = used
            who = f"{ssh['user']} without a terminal ({process.pid})" if ssh else process.shown
            uses.append(self._use(kind, who, process, used))
        known = {(pid, used.began_s) for pid, used in now.items()}
        self._world = {key: self._world[key] for key in self._world.keys() & known}
        if not keep:
            self._before = now
        return uses

    def _used(self, process: Process) -> _Used | None:
        """Return the use of a process; None if it ended meanwhile. Raises SensorError."""
        try:
            moved = (self._root / f"proc/{process.pid}/io").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise SensorError(f"process {process.pid}: {error.strerror}") from error
        return _Used(self._real_s(), process.began_s, process.cpu_s, float(moved[1]) + float(moved[3]))

    def _use(self, kind: str, who: str, process: Process, used: _Used) -> ProcessUse:
        cpu_cores, bytes_per_s = used.rates_since(self._before.get(process.pid, used))
        age_s = max(0.0, _uptime_s() - process.began_s)
        use = ProcessUse(kind, who, age_s, cpu_cores, bytes_per_s, user=process.user)
        ranks = self._ranks(process) if kind == "gpu" else 1
        if ranks == 1 or use.gets_on:
            return use
        return replace(use, ranks=ranks, peers=_peers(process))

    def _ranks(self, process: Process) -> int:
        """Return the number of ranks of the process's job; 1 for any other process."""
        key = (process.pid, process.began_s)
        if key not in self._world:
            try:
                environment = psutil.Process(process.pid).environ()
            except psutil.NoSuchProcess:
                return 1
            except psutil.Error as error:
                raise SensorError(f"environment of process {process.pid}: {error}") from error
            sizes = [
                environment[name] for name in _WORLD_SIZES if WORLD_SIZE.fullmatch(environment.get(name, ""))
            ]
            self._world[key] = max(map(int, sizes), default=1)
        return self._world[key]

    def _of_users(self, table: Mapping[int, Process]) -> frozenset[int]:
        """Return the ids of users' processes now."""
        keys = {(process.pid, process.began_s) for process in table.values()}
        self._in_container = {key: known for key, known in self._in_container.items() if key in keys}
        return frozenset(process.pid for process in table.values() if self._is_a_users(process))

    def _started(self, table: Mapping[int, Process], of_users: Collection[int]) -> list[Started]:
        uptime_s = _uptime_s()
        young = {
            pid: process for pid, process in table.items() if uptime_s - process.began_s < STARTED_LATELY_S
        }
        lines = {pid: list(_upwards(process, young)) for pid, process in young.items()}
        below: dict[int, list[Process]] = defaultdict(list)
        for pid, line in lines.items():
            for above in line:
                below[above.pid].append(young[pid])
        gpu_pids = self._gpu_pids()
        return [
            Started(
                process.pid,
                process.name,
                process.user,
                uptime_s - process.began_s,
                process.began_s,
                blake2b(process.line, digest_size=16).hexdigest(),
                _identity(table.get(lines[process.pid][-1].parent)),
                sum(each.cpu_s for each in below[process.pid]),
                any(each.pid in gpu_pids for each in below[process.pid]),
            )
            for process in young.values()
            if process.pid in of_users
        ]

    def _is_a_users(self, process: Process) -> bool:
        """Return whether the process is a user's now.

        Root's may become one (su, a queue's daemon), or a container's.
        """
        if process.uid >= FIRST_PERSON:
            return True
        if process.terminal:  # a log-in prompt has one from the boot on, before anyone logs in
            return process.name not in LOG_IN_PROMPTS
        key = (process.pid, process.began_s)
        if key not in self._in_container:
            inside = self._is_in_container(process.pid)
            if not inside and _uptime_s() - process.began_s < _SETTLED_S:
                return False
            self._in_container[key] = inside  # cached, because it takes reading a file
        return self._in_container[key]

    def _is_in_container(self, pid: int) -> bool:
        try:
            return _CONTAINERS.search(_read(f"{self._root}/proc/{pid}/cgroup")) is not None
        except OSError:  # it ended meanwhile
            return False


def _older(table: Mapping[int, Process], of_users: Collection[int]) -> list[Started]:
    """Return users' older processes, which matter only to a mark that has been due for long."""
    uptime_s = _uptime_s()
    older = [table[pid] for pid in of_users if uptime_s - table[pid].began_s >= STARTED_LATELY_S]
    return [
        Started(process.pid, process.name, process.user, uptime_s - process.began_s, process.began_s)
        for process in older
    ]


def _upwards(process: Process, among: Mapping[int, Process]) -> Iterator[Process]:
    """Yield a process, its parent, and so on, while they are among those given."""
    passed = set[int]()
    ancestor: Process | None = process
    while ancestor is not None and ancestor.pid not in passed:
        passed.add(ancestor.pid)  # ids that were reused while the table was read may make a cycle
        yield ancestor
        ancestor = among.get(ancestor.parent)


def _identity(process: Process | None) -> tuple[int, float]:
    return (process.pid, process.began_s) if process is not None else (0, 0.0)


def _peers(process: Process) -> int:
    """Return the number of a rank's connections to other instances.

    A rank that waits for its peers holds its GPU idle: in a barrier of the store, or polling for a peer that
    is not there yet. A connection lasts as long as both ranks live.
    """
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return 0
    except psutil.Error as error:
        raise SensorError(f"connections of process {process.pid}: {error}") from error
    alive = [
        connection
        for connection in connections
        if connection.status in (psutil.CONN_ESTABLISHED, psutil.CONN_SYN_SENT)
    ]
    return sum(bool(connection.raddr) and connection.raddr[0] != connection.laddr[0] for connection in alive)


def processes(root: Path = Path("/")) -> Iterator[Process]:
    """Yield every process but the kernel's own threads.

    psutil is not used: it needs three files and an object for what two reads give.

    Raises:
        OSError: /proc cannot be read.
    """
    tick = os.sysconf("SC_CLK_TCK")
    for entry in os.scandir(root / "proc"):
        if not (entry.name.isascii() and entry.name.isdecimal()):
            continue
        try:
            line = _read(f"{entry.path}/cmdline")
            command = _words(line)
            if not command:  # a kernel thread
                continue
            # proc_pid_stat(5): the second field may hold spaces and brackets; counted from the third
            fields = _read(f"{entry.path}/stat").rpartition(b")")[2].split()
            uid = entry.stat().st_uid
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        yield Process(
            int(entry.name),
            command,
            parent=int(fields[1]),
            terminal=int(fields[4]),
            cpu_s=sum(map(int, fields[11:15])) / tick,
            began_s=int(fields[19]) / tick,
            uid=uid,
            line=line,
        )


def _read(path: str) -> bytes:
    """Read a file of /proc without ``pathlib``, which takes longer than the kernel."""
    handle = os.open(path, os.O_RDONLY)
    try:
        whole = chunk = os.read(handle, _PROC_CHUNK)
        while len(chunk) == _PROC_CHUNK:
            chunk = os.read(handle, _PROC_CHUNK)
            whole += chunk
        return whole
    finally:
        os.close(handle)


def _words(line: bytes) -> tuple[str, ...]:
    return tuple(line.rstrip(b"\0").decode(errors="replace").split("\0")) if line.strip(b"\0") else ()


def terminal_path(process: Process, root: Path = Path("/")) -> Path | None:
    """Return the path of a process's terminal, which in a container lies below the process's own root."""
    number = process.terminal
    major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00  # MKDEV as the kernel packs it
    if major == PSEUDO_TERMINALS:
        return root / f"proc/{process.pid}/root/dev/pts/{minor}"
    if major == _CONSOLES:
        name = f"tty{minor}" if minor < _FIRST_SERIAL else f"ttyS{minor - _FIRST_SERIAL}"
        return root / "dev" / name
    return None


def _managed_sessions(table: Iterable[Process]) -> Iterator[Session]:
    """Yield open sessions of Session Manager, all in use: it closes unused ones itself (20 minutes)."""
    for process in table:
        if process.name == _SESSION_MANAGER:
            session = process.command[1] if len(process.command) > 1 else str(process.pid)
            yield Session("session-manager", session, user=process.user)


def trainers(among: Callable[[], frozenset[int]] | None = None) -> list[str]:
    """Return the training processes that run now, for users.

    Args:
        among: in a rehearsal, returns the watched processes; None for all.
    """
    chosen = among() if among is not None else None
    return [
        process.shown
        for process in processes()
        if is_trainer(process.command) and (chosen is None or process.pid in chosen)
    ]


def _uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
