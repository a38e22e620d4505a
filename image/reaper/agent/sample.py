"""What one look at a machine gives: plain values, no judgement."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Rates:
    """Use of the machine, or of the watched process tree, as a mean since the look before.

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
            where the GPU does not tell (MIG).
        memory_used_gib: in use.
        memory_total_gib: fitted.
        power_w: mean power since the look before where the energy counter is there, else at this moment; None
            where the GPU tells neither.
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
    """Somebody is logged in.

    Attributes:
        kind: ``terminal``, ``ssh``, ``session-manager`` or ``jupyter``.
        who: user and terminal, for people.
        unused_s: real seconds since the last input or output; 0 for one that counts while it is open.
    """

    kind: str
    who: str
    unused_s: float = 0.0


@dataclass(frozen=True)
class People:
    """What the process table says: who is there and which watched programs run.

    Attributes:
        sessions: logged-in people.
        watched: programs of the watch list, ``name (pid)``.
        working: GPU processes and Jupyter kernels that used CPU or moved data since the look before.
    """

    sessions: tuple[Session, ...] = ()
    watched: tuple[str, ...] = ()
    working: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One look at everything.

    Attributes:
        at: when, on the agent's clock.
        rates: use of CPU, disk and network; None when those could not be read.
        gpus: every GPU that could be read.
        people: the process table; None when it could not be read.
        failures: ``sensor: why`` for each sensor that failed.
    """

    at: datetime
    rates: Rates | None
    gpus: tuple[Gpu, ...] = ()
    people: People | None = None
    failures: tuple[str, ...] = ()
