"""Use of CPU, disks and network as rates between two looks: of the instance, or of one process tree.

What the agent itself uses is no sign of anybody's work. It needs next to nothing, except while it copies
what users keep before a marked instance is terminated: were that taken for use, the mark would be removed
again, day after day.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from gpu_fleet_image.core.reaper_errors import ConfigurationError, SensorError
from gpu_fleet_image.instance.agent.sensors.reading import Rates

# Other block devices (md, dm, loop, zram) only pass on what these count, or never leave memory.
PHYSICAL_DISKS = ("nvme", "sd", "vd", "xvd", "hd")
SLICE = "gpu-fleet.slice"  # of our units, by systemd: agent, gate, accounts, logs; nobody else is in it
SHORTEST_INTERVAL_S = 0.05  # five ticks of /proc/stat; a shorter one shows nothing
LOOKED_OVER_S = 5.0  # a look takes no burst for a rate: the system's own 0.1 CPU s within a second, say


@dataclass(frozen=True)
class Counters:
    """Totals since boot.

    Attributes:
        cpu_s: CPU time of all cores, waiting for disks and stolen time left out.
        disk_bytes: read and written by physical disks.
        network_bytes: received and sent, RDMA adapters (EFA, eRDMA) included, loopback left out.
    """

    cpu_s: float
    disk_bytes: float
    network_bytes: float


def rates_between(before: Counters, after: Counters, over_s: float) -> Rates:
    """Mean rates over an interval; a counter that went down (reset, device removed) counts as 0."""
    return Rates(
        cpu_cores=max(0.0, after.cpu_s - before.cpu_s) / over_s,
        disk_bytes_per_s=max(0.0, after.disk_bytes - before.disk_bytes) / over_s,
        network_bytes_per_s=max(0.0, after.network_bytes - before.network_bytes) / over_s,
    )


class RateSensor:
    """Turns counters into rates over real time, whatever the agent's clock shows.

    Args:
        count: reads the counters; may raise ``SensorError`` or ``OSError``.
        real_s: real seconds, monotonic.
    """

    def __init__(self, count: Callable[[], Counters], real_s: Callable[[], float]) -> None:
        self._count = count
        self._real_s = real_s
        self._rates = Rates()
        self._before: Counters | None = None
        self._before_s = 0.0

    def read(self, *, keep: bool = False) -> Rates:
        """Rates since the read before; the first read has nothing to compare with and gives zeros.

        Args:
            keep: the next read compares with what this one did.

        Raises:
            SensorError: naming what could not be read.
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
            rates = rates_between(self._before, counters, max(over_s, LOOKED_OVER_S) if keep else over_s)
        if not keep or self._before is None:
            self._rates, self._before, self._before_s = rates, counters, now_s
        return rates


class OwnUse:
    """Counts the agent's CPU time and disk bytes; of the network it knows only when it copies.

    On an instance its slice holds our other units too (gate, accounts, logs): their CPU time is no work.

    Args:
        cgroup: of this process, ``/gpu-fleet.slice/gpu-reaper.service``; None asks the kernel.
        cgroups: where the kernel shows them (cgroup v2).
    """

    def __init__(self, cgroup: str | None = None, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._process = psutil.Process()
        parts = PurePosixPath(_own_cgroup() if cgroup is None else cgroup).parts
        self._slice = cgroups / SLICE / "cpu.stat" if SLICE in parts[:2] else None
        self._copies = 0
        self._copied = False

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Around a copy; another thread may ask meanwhile."""
        self._copies += 1
        self._copied = True
        try:
            yield
        finally:
            self._copies -= 1

    def copied_since_asked(self) -> bool:
        """Whether a copy ran at any time since this was last asked."""
        copied, self._copied = self._copied, self._copies > 0
        return copied

    def cpu_s(self) -> float:
        """CPU time so far of the slice, or of the agent with what it started (``wall``, ``idle.command``)."""
        if self._slice is not None:
            with suppress(OSError, ValueError, IndexError):
                return int(self._slice.read_text().split("usage_usec", 1)[1].split(None, 1)[0]) / 1e6
            self._slice = None  # a kernel without it: the agent's own from now on
        return sum(self._process.cpu_times()[:4])

    def disk_bytes(self) -> float:
        """Bytes that the agent made disks read and write."""
        moved = self._process.io_counters()
        return moved.read_bytes + moved.write_bytes


def _own_cgroup() -> str:
    """This process's, as cgroup v2 has it; empty where there is none (cgroups(7), /proc/PID/cgroup)."""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    return ""


class InstanceCounters:
    """Reads the whole instance's counters, less what the agent uses itself.

    While the agent copies, the network is left out altogether: who sent which bytes is not known. CPU, disk,
    GPU and users still show work then; behind the shut door there is a look each second after the copy.

    Args:
        own: what the agent uses.
        sysfs: where sysfs is mounted.
    """

    def __init__(self, own: OwnUse, sysfs: Path = Path("/sys")) -> None:
        self._own = own
        self._network_before = 0.0
        self._network_left_out = 0.0
        # EFA has rx_bytes, tx_bytes and rdma_*_bytes here; eRDMA has hw_tx_bytes_cnt and hw_rx_bytes_cnt.
        self._rdma = tuple(sysfs.glob("class/infiniband/*/ports/*/hw_counters/*bytes*"))

    def __call__(self) -> Counters:
        """One look.

        Raises:
            OSError: when a counter cannot be read.
        """
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
    # A partition's name begins with its disk's; the disk counts for both.
    whole = [name for name in disks if name.startswith(PHYSICAL_DISKS) and not _is_partition(name, disks)]
    return sum(disks[name].read_bytes + disks[name].write_bytes for name in whole)


def _is_partition(name: str, disks: Iterable[str]) -> bool:
    return any(
        name != disk and name.startswith(disk) and name[len(disk) :].lstrip("p").isdigit() for disk in disks
    )


def _network_bytes() -> float:
    cards = psutil.net_io_counters(pernic=True, nowrap=False) or {}
    return sum(card.bytes_recv + card.bytes_sent for name, card in cards.items() if name != "lo")


def _sum_of_files(paths: Iterable[Path]) -> float:
    return sum(int(path.read_text(encoding="ascii")) for path in paths)


class TreeCounters:
    """Reads the counters of a process tree.

    Raises:
        ConfigurationError: when there is no such process.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ConfigurationError(f"--watch-pid {pid}: there is no such process") from error

    def pids(self) -> frozenset[int]:
        """Live processes of the tree; none once the root has ended."""
        try:
            return frozenset({self._root.pid, *(child.pid for child in self._root.children(recursive=True))})
        except psutil.NoSuchProcess:
            return frozenset()

    def __call__(self) -> Counters:
        """One look. A tree that has ended counts nothing, which is idle.

        ``disk_bytes`` is what the processes read and wrote through system calls, so that files on a network
        file system and in the page cache count as well. Time of children that ended is in their parent's.
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
            ):  # ended between the list and the look: the next look has it in its parent
                continue
        return Counters(cpu_s, moved_bytes, 0.0)
