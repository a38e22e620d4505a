"""Use of the whole machine: CPU, disks and network, as rates between two looks at the kernel's counters."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from image.reaper.agent.sample import Rates
from image.reaper.agent.sensors.own_use import OwnUse
from image.reaper.errors import SensorError

# Other block devices (md, dm, loop, zram) only pass on what these count, or never leave memory.
PHYSICAL_DISKS = ("nvme", "sd", "vd", "xvd", "hd")
SHORTEST_INTERVAL_S = 0.05  # five ticks of /proc/stat; a shorter one tells nothing


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

    def read(self) -> Rates:
        """Rates since the read before; the first read has nothing to compare with and gives zeros.

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
        if self._before is not None:
            self._rates = rates_between(self._before, counters, now_s - self._before_s)
        self._before, self._before_s = counters, now_s
        return self._rates


class MachineCounters:
    """Reads the whole machine's counters, less what the agent uses itself.

    While the agent copies, the network is left out altogether: who sent which bytes is not known. CPU, disk,
    GPU and people still tell of work then, and no mark is acknowledged before a minute without a copy.

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
