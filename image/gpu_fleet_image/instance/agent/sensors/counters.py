"""Use of CPU, disks and network as rates between two looks: of the instance, or of one process tree.

The agent's own use is no sign of activity. It needs next to nothing, except while it copies kept files before
a marked instance is terminated: if that counted as use, the mark would be removed again, day after day.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from gpu_fleet_image.core.reaper_errors import ConfigurationError, SensorError
from gpu_fleet_image.instance.agent.sensors.reading import Rates

# Other block devices (md, dm, loop, zram) only pass on the traffic of these, or stay in memory.
_PHYSICAL_DISKS = ("nvme", "sd", "vd", "xvd", "hd")
_SLICE = "gpu-fleet.slice"  # of the fleet's units: agent, gate, accounts, logs; nothing else runs in it
SHORTEST_INTERVAL_S = 0.05  # five ticks of /proc/stat; a shorter interval is too imprecise
_LOOKED_OVER_S = 5.0  # minimum interval of a look's rates: a burst, say 0.1 CPU s in 1 s, is no rate


@dataclass(frozen=True)
class Counters:
    """Totals since boot.

    Attributes:
        cpu_s: CPU time of all cores, without I/O wait and stolen time.
        disk_bytes: read and written by physical disks.
        network_bytes: received and sent, with RDMA adapters (EFA, eRDMA), without loopback.
    """

    cpu_s: float
    disk_bytes: float
    network_bytes: float


def _rates_between(before: Counters, after: Counters, over_s: float) -> Rates:
    """Return mean rates over an interval; a counter that decreased (reset, device removed) counts as 0."""
    return Rates(
        cpu_cores=max(0.0, after.cpu_s - before.cpu_s) / over_s,
        disk_bytes_per_s=max(0.0, after.disk_bytes - before.disk_bytes) / over_s,
        network_bytes_per_s=max(0.0, after.network_bytes - before.network_bytes) / over_s,
    )


class RateSensor:
    """Sensor that turns counters into rates over real time, whatever the agent's clock shows.

    Args:
        count: returns the counters; may raise ``SensorError`` or ``OSError``.
        real_s: returns real seconds, monotonic.
    """

    def __init__(self, count: Callable[[], Counters], real_s: Callable[[], float]) -> None:
        self._count = count
        self._real_s = real_s
        self._rates = Rates()
        self._before: Counters | None = None
        self._before_s = 0.0

    def read(self, *, keep: bool = False) -> Rates:
        """Return rates since the previous read; zeros for the first read.

        Args:
            keep: the next read compares with the same earlier read as this one.

        Raises SensorError, which names what could not be read.
        """
        now_s = self._real_s()
        if self._before is not None and now_s - self._before_s < SHORTEST_INTERVAL_S:
            return self._rates
        try:
            counters = self._count()
        except (OSError, psutil.Error, ValueError, NotImplementedError) as error:
            raise SensorError(f"counters of CPU, disk and network: {error}") from error
        rates = self._rates
        if self._before is not None:
            over_s = now_s - self._before_s
            rates = _rates_between(self._before, counters, max(over_s, _LOOKED_OVER_S) if keep else over_s)
        if not keep or self._before is None:
            self._rates, self._before, self._before_s = rates, counters, now_s
        return rates


class OwnUse:
    """Meter of the agent's own CPU time and disk bytes; of the network it knows only when it copies.

    On an instance its slice also holds the fleet's other units (gate, accounts, logs), whose CPU time is no
    activity.

    Args:
        cgroup: of this process, say ``/gpu-fleet.slice/gpu-reaper.service``; None asks the kernel.
        cgroups: mount point of cgroup v2.
    """

    def __init__(self, cgroup: str | None = None, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._process = psutil.Process()
        parts = PurePosixPath(_own_cgroup() if cgroup is None else cgroup).parts
        self._slice = cgroups / _SLICE / "cpu.stat" if _SLICE in parts[:2] else None
        self._copies = 0
        self._copied = False

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Mark the time of a copy; another thread may ask meanwhile."""
        self._copies += 1
        self._copied = True
        try:
            yield
        finally:
            self._copies -= 1

    def copied_since_asked(self) -> bool:
        """Return whether a copy ran at any time since the last call."""
        copied, self._copied = self._copied, self._copies > 0
        return copied

    def cpu_s(self) -> float:
        """Return the CPU time of the slice, or of the agent and its children (``wall``, ``idle.command``)."""
        if self._slice is not None:
            with suppress(OSError, ValueError, IndexError):
                return int(self._slice.read_text().split("usage_usec", 1)[1].split(None, 1)[0]) / 1e6
            self._slice = None  # a kernel without it: use the agent's own from now on
        return sum(self._process.cpu_times()[:4])

    def disk_bytes(self) -> float:
        """Return the bytes that the agent read from and wrote to disks."""
        moved = self._process.io_counters()
        return moved.read_bytes + moved.write_bytes


def _own_cgroup() -> str:
    """Return this process's cgroup (v2); empty if there is none (cgroups(7), /proc/PID/cgroup)."""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    return ""


class InstanceCounters:
    """Counters of the whole instance, without the agent's own use.

    While the agent copies, the network is ignored: whose bytes they are is unknown. CPU, disk, GPU and users
    still show activity then, and while log-ins are refused there is a look each second after the copy.
    """

    def __init__(self, own: OwnUse, sysfs: Path = Path("/sys")) -> None:
        self._own = own
        self._network_before = 0.0
        self._network_left_out = 0.0
        # EFA has rx_bytes, tx_bytes and rdma_*_bytes here; eRDMA has hw_tx_bytes_cnt and hw_rx_bytes_cnt.
        self._rdma = tuple(sysfs.glob("class/infiniband/*/ports/*/hw_counters/*bytes*"))

    def __call__(self) -> Counters:
        """Read the counters. Raises OSError if a counter cannot be read."""
        cpu = psutil.cpu_times()
        return Counters(
            cpu_s=cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq - self._own.cpu_s(),
            disk_bytes=_disk_bytes() - self._own.disk_bytes(),
            network_bytes=self._network(),
        )

    def _network(self) -> float:
        now = _network_bytes() + _sum_of_files(self._rdma)
        if self._own.copied_since_asked():
            self._network_left_out += now - self._network_before
        self._network_before = now
        return now - self._network_left_out


def _disk_bytes() -> float:
    disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    # A partition's name begins with its disk's; the disk's counters include it.
    whole = [name for name in disks if name.startswith(_PHYSICAL_DISKS) and not _is_partition(name, disks)]
    return sum(disks[name].read_bytes + disks[name].write_bytes for name in whole)


def _is_partition(name: str, disks: Iterable[str]) -> bool:
    ends = (name[len(disk) :].lstrip("p") for disk in disks if name != disk and name.startswith(disk))
    return any(end.isascii() and end.isdigit() for end in ends)


def _network_bytes() -> float:
    cards = psutil.net_io_counters(pernic=True, nowrap=False) or {}
    return sum(card.bytes_recv + card.bytes_sent for name, card in cards.items() if name != "lo")


def _sum_of_files(paths: Iterable[Path]) -> float:
    return sum(int(path.read_text(encoding="ascii")) for path in paths)


class TreeCounters:
    """Counters of a process tree. Raises ConfigurationError if there is no such process."""

    def __init__(self, pid: int) -> None:
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ConfigurationError(f"--watch-pid {pid}: there is no such process") from error

    def pids(self) -> frozenset[int]:
        """Return the live processes of the tree; empty once the root has ended."""
        try:
            return frozenset({self._root.pid, *(child.pid for child in self._root.children(recursive=True))})
        except psutil.NoSuchProcess:
            return frozenset()

    def __call__(self) -> Counters:
        """Read the counters. A tree that has ended counts nothing, which is idle.

        ``disk_bytes`` counts reads and writes through system calls, so that files on a network file system
        and in the page cache count as well. The time of children that ended is in their parent's.
        """
        cpu_s = moved_bytes = 0.0
        for pid in self.pids():
            try:
                process = psutil.Process(pid)
                cpu_s += sum(process.cpu_times()[:4])  # own and waited-for children's, user and system
                moved = process.io_counters()
                moved_bytes += moved.read_chars + moved.write_chars
            except (
                psutil.NoSuchProcess
            ):  # ended since the list was made: its parent's time has it at the next look
                continue
        return Counters(cpu_s, moved_bytes, 0.0)
