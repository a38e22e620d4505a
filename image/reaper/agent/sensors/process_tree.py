"""Use of one process and all its descendants, for a rehearsal or a machine shared with others."""

import psutil

from image.reaper.agent.sensors.machine import Counters
from image.reaper.errors import ConfigurationError


class TreeCounters:
    """Reads the counters of a process tree.

    Args:
        pid: root of the tree.

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
