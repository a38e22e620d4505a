"""Values of one look at an instance, without a judgement."""

from dataclasses import dataclass
from datetime import datetime

from gpu_fleet_image.core.model import Tie


@dataclass(frozen=True)
class Rates:
    """Use of the instance, or of the watched process tree, as a mean since the previous look.

    Attributes:
        cpu_cores: CPU time over real time; 2.0 is two busy cores.
        disk_bytes_per_s: read and written.
        network_bytes_per_s: received and sent, without loopback.
    """

    cpu_cores: float = 0.0
    disk_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: index and UUID, for messages.
        utilisation_percent: share of NVML's last sampling period (1/6 to 1 s) with a kernel running; None if
            the GPU does not report it (MIG).
        power_w: mean power since the previous look if there is an energy counter, else the present power;
            None if the GPU reports neither.
        power_limit_w: enforced limit; None if unknown.
        pids: processes with a compute context on it or on one of its MIG instances.
        sm_activity_percent: share of its multiprocessors with work, mean since the previous look; None if the
            GPU does not report it (older than Hopper, MIG).
    """

    name: str
    utilisation_percent: float | None
    memory_used_gib: float
    memory_total_gib: float
    power_w: float | None
    power_limit_w: float | None
    pids: tuple[int, ...] = ()
    sm_activity_percent: float | None = None


@dataclass(frozen=True)
class Session:
    """A user's log-in.

    Attributes:
        kind: ``terminal``, ``session-manager`` or ``jupyter``.
        who: user and terminal or kernel, for users.
        unused_s: real seconds since the last input, or since a kernel's last activity; 0 for a session that
            is in use while it is open.
    """

    kind: str
    who: str
    unused_s: float = 0.0
    user: str = ""


# A Python process that only waits (an open notebook with a CUDA context) needs under 0.5 % of a core.
_PROCESS_CPU_CORES = 0.02
_PROCESS_BYTES_PER_S = 16 * 1024
# An editor's remote connection at rest sends a keep-alive of some 80 bytes every 5 s each way
# (microsoft/vscode, src/vs/base/parts/ipc/common/ipc.net.ts, ProtocolConstants.KeepAliveSendTime).
_SSH_BYTES_PER_S = 512


@dataclass(frozen=True)
class ProcessUse:
    """A process whose presence alone is no activity, and its use since the previous look.

    Attributes:
        kind: ``gpu``, ``kernel`` (of a notebook) or ``ssh`` (a connection without a terminal).
        who: name, id and user, for users.
        age_s: real seconds since its start.
        cpu_cores: CPU time over real time.
        bytes_per_s: moved through system calls.
        ranks: size of the distributed job of which it is a rank; 1 if it makes progress, or is no rank.
        peers: connections of such a rank to other instances.
    """

    kind: str
    who: str
    age_s: float
    cpu_cores: float = 0.0
    bytes_per_s: float = 0.0
    ranks: int = 1
    peers: int = 0
    user: str = ""

    @property
    def gets_on(self) -> bool:
        """True if it did more than wait."""
        if self.kind == "ssh":
            return self.bytes_per_s >= _SSH_BYTES_PER_S
        return self.cpu_cores >= _PROCESS_CPU_CORES or self.bytes_per_s >= _PROCESS_BYTES_PER_S


@dataclass(frozen=True)
class Started:
    """A user's process; of an older one only identity and age are known.

    Attributes:
        age_s: real seconds since its start.
        began_s: its start, in seconds after the boot.
        command: a digest of all its arguments, which may be long, and hold secrets.
        parent: its nearest ancestor that did not start lately, as (id, seconds after the boot).
        cpu_s: CPU time, with that of all its descendants.
        on_gpu: it or a descendant holds a GPU.
        repeats: it only repeats runs without result (``habits.py``).
    """

    pid: int
    name: str
    user: str
    age_s: float
    began_s: float = 0.0
    command: str = ""
    parent: tuple[int, float] = (0, 0.0)
    cpu_s: float = 0.0
    on_gpu: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Presence:
    """State of process table, terminals and notebooks.

    Attributes:
        sessions: logged-in users.
        watched: programs that count as activity while they run: ``name (pid, user)``.
        processes: programs that count as activity while they make progress.
        started: users' processes that started within the last quarter of an hour.
        older: users' processes that started before.
        unknown: what could not be read.
        users: login names of all users seen, with what each did.
    """

    sessions: tuple[Session, ...] = ()
    watched: tuple[str, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    started: tuple[Started, ...] = ()
    older: tuple[Started, ...] = ()
    unknown: tuple[str, ...] = ()
    users: tuple[tuple[str, Tie], ...] = ()


@dataclass(frozen=True)
class Reading:
    """One look at all sensors.

    Attributes:
        rates: use of CPU, disk and network; None if those could not be read.
        gpus: every GPU that could be read.
        presence: log-ins and processes; None if they were not read, or could not be.
        failures: ``sensor: why`` for each sensor that failed.
    """

    at: datetime
    rates: Rates | None
    gpus: tuple[Gpu, ...] = ()
    presence: Presence | None = None
    failures: tuple[str, ...] = ()
