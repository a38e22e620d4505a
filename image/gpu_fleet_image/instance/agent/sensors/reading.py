"""What one look at an instance gives: plain values, no judgement."""

from dataclasses import dataclass
from datetime import datetime

from gpu_fleet_image.core.model import Tie


@dataclass(frozen=True)
class Rates:
    """Use of the instance, or of the watched process tree, as a mean since the look before.

    Attributes:
        cpu_cores: CPU time over real time; 2.0 is two busy cores.
        disk_bytes_per_s: read and written.
        network_bytes_per_s: received and sent, loopback left out.
    """

    cpu_cores: float = 0.0
    disk_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: index and UUID, for messages.
        utilisation_percent: share of NVML's last sampling period (1/6 to 1 s) with a kernel running; None
            where the GPU does not report it (MIG).
        power_w: mean power since the look before where the energy counter is there, else at this moment; None
            where the GPU reports neither.
        power_limit_w: enforced limit; None where unknown.
        pids: processes with a compute context on it or on one of its MIG instances.
    """

    name: str
    utilisation_percent: float | None
    memory_used_gib: float
    memory_total_gib: float
    power_w: float | None
    power_limit_w: float | None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Session:
    """A user is logged in.

    Attributes:
        kind: ``terminal``, ``session-manager`` or ``jupyter``.
        who: user and terminal or kernel, for users.
        unused_s: real seconds since the last input, or since a kernel last ran something; 0 for one that is
            in use while it is open.
    """

    kind: str
    who: str
    unused_s: float = 0.0
    user: str = ""


# A Python process that only waits (an open notebook with a CUDA context) needs under 0.5 % of a core.
PROCESS_CPU_CORES = 0.02
PROCESS_BYTES_PER_S = 16 * 1024
# An editor's remote connection at rest sends a keep-alive of some 80 bytes every 5 s each way
# (microsoft/vscode, src/vs/base/parts/ipc/common/ipc.net.ts, ProtocolConstants.KeepAliveSendTime).
SSH_BYTES_PER_S = 512


@dataclass(frozen=True)
class ProcessUse:
    """A process whose presence alone is no activity, and what it used since the look before.

    Attributes:
        kind: ``gpu``, ``kernel`` (of a notebook) or ``ssh`` (a connection without a terminal).
        who: name, id and user, for users.
        age_s: real seconds since it began.
        cpu_cores: CPU time over real time.
        bytes_per_s: moved through system calls.
        ranks: of the distributed job that it is one rank of; 1 where it gets on, or is no rank.
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
        """Whether it did more than wait."""
        if self.kind == "ssh":
            return self.bytes_per_s >= SSH_BYTES_PER_S
        return self.cpu_cores >= PROCESS_CPU_CORES or self.bytes_per_s >= PROCESS_BYTES_PER_S


@dataclass(frozen=True)
class Started:
    """A user's process; of one that did not begin lately, only who it is and its age are known.

    Attributes:
        age_s: real seconds since it began.
        began_s: when it began, in seconds after the boot.
        command: a digest of all its arguments, which may be long, and hold secrets.
        parent: its nearest ancestor that did not begin lately, as (id, seconds after the boot).
        cpu_s: CPU time, with that of everything below it.
        on_gpu: it, or something below it, holds a GPU.
        repeats: it only does again what came to nothing (``habits.py``).
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
    """What process table, terminals and notebooks say.

    Attributes:
        sessions: logged-in users.
        watched: programs that are work while they run: ``name (pid, user)``.
        processes: programs that are work while they get on.
        started: users' processes that began within the last quarter of an hour.
        older: users' processes that began before.
        unknown: what could not be read of one of them.
        users: login names of everybody seen, each with what they did.
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
    """One look at everything.

    Attributes:
        at: when, on the agent's clock.
        rates: use of CPU, disk and network; None when those could not be read.
        gpus: every GPU that could be read.
        presence: who and what is there; None where that was not looked at, or could not be.
        failures: ``sensor: why`` for each sensor that failed.
    """

    at: datetime
    rates: Rates | None
    gpus: tuple[Gpu, ...] = ()
    presence: Presence | None = None
    failures: tuple[str, ...] = ()
