"""Number of a pool's instances that a job needs, and its part of each, as Slurm's ``cons_tres`` counts.

Pure.
"""

import math
from dataclasses import dataclass
from typing import Any

from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.keys import POLICY
from gpu_fleet_image.core.queue_errors import PolicyUnreadError

# Slurm allocates whole cores (CR_Core), and a core of the clouds' instances is two of their vCPUs.
THREADS = 2
MIB_PER_GIB = 1024
# Room is looked for on this many nodes more than a job needs: a look at thousands of jobs is to take seconds.
MOST_MORE = 3


@dataclass(frozen=True)
class NodeSize:
    """Size of an instance, or of a part of one.

    Attributes:
        free_mib: free memory without which Slurm places a part nowhere, though it takes less.
    """

    gpus: int
    cpus: int
    memory_mib: int
    free_mib: int = 0

    def holds(self, other: "NodeSize") -> bool:
        """Return whether this has room for the other."""
        memory_mib = max(other.memory_mib, other.free_mib)
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory_mib >= memory_mib

    def without(self, other: "NodeSize") -> "NodeSize":
        """Return the difference to the other."""
        return NodeSize(self.gpus - other.gpus, self.cpus - other.cpus, self.memory_mib - other.memory_mib)

    @property
    def memory_per_gpu(self) -> int:
        """Default memory of a job for each GPU, in MiB; 0 without GPUs."""
        return self.memory_mib // self.gpus if self.gpus else 0


NOTHING = NodeSize(0, 0, 0)


@dataclass(frozen=True)
class QueuePool:
    """A pool as the queue counts it.

    Attributes:
        size: the smallest of its types.
        most: maximum number of instances.
    """

    size: NodeSize
    most: int


def pools_of(policy: dict[str, Any]) -> dict[str, QueuePool]:
    """Return the pools of the queue in the stack's policy.

    Raises PolicyUnreadError if values of a pool are missing.
    """
    pools = policy.get("pools", {})
    queued = {
        name: pool["capacity"]
        for name, pool in sorted(pools.items())
        if isinstance(pool, dict) and (pool.get("capacity") or {}).get("queue_gpus") is not None
    }
    try:
        return {name: _pool_of(capacity) for name, capacity in queued.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise PolicyUnreadError(f"{POLICY}: capacity of a pool of the queue: {error!r}") from error


def _pool_of(capacity: dict[str, Any]) -> QueuePool:
    gpus, cpus, memory, most = (
        int(capacity[key]) for key in ("queue_gpus", "queue_cpus", "queue_memory_mib", "max_size")
    )
    return QueuePool(NodeSize(gpus, cpus, memory), most)


@dataclass(frozen=True)
class JobRequest:
    """Resources that a job asks for; 0 for no request.

    Attributes:
        max_nodes: maximum number of nodes.
        whole_tasks: all CPUs of a task are on one node.
        cpus: for all its tasks.
        min_cpus: on each node.
        single_threads: one thread of each core only.
        gpus: in total.
        memory: MiB on each node.
        memory_per_gpu: MiB, or what Slurm needs free beside a named memory.
        whole_memory: all memory of each node.
        exclusive: no other job may share its nodes.
        unpromised: a requirement of its nodes that is unknown of an instance before it starts.
    """

    min_nodes: int = 1
    max_nodes: int = 0
    tasks: int = 1
    tasks_per_node: int = 0
    cpus: int = 1
    min_cpus: int = 0
    single_threads: bool = False
    gpus: int = 0
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    whole_tasks: bool = False
    cpus_per_gpu: int = 0
    memory: int = 0
    memory_per_cpu: int = 0
    memory_per_gpu: int = 0
    whole_memory: bool = False
    exclusive: bool = False
    unpromised: str = ""

    @property
    def least(self) -> int:
        """Minimum number of nodes, however large they are."""
        by_tasks = math.ceil(self.tasks / self.tasks_per_node) if self.tasks_per_node else 1
        by_gpus = math.ceil(self.gpus / self.gpus_per_node) if self.gpus_per_node else 1
        return max(1, self.min_nodes, by_tasks, by_gpus)

    def parts(self, number: int, whole: NodeSize) -> tuple[NodeSize, ...]:
        """Return its parts of each of this many nodes, the largest first."""
        return tuple(self._part(index, number, whole) for index in range(number))

    def largest(self, number: int, whole: NodeSize) -> NodeSize:
        """Return the first of its parts of this many nodes: in every resource no other is larger."""
        return self._part(0, number, whole)

    def _part(self, index: int, number: int, whole: NodeSize) -> NodeSize:
        tasks = _dealt(self.tasks, index, number)
        gpus = self.gpus_per_node or max(_dealt(self.gpus, index, number), self.gpus_per_task * tasks)
        # whole tasks only if it says how many a node has; fewer CPUs than tasks is --overcommit
        by_task = (self.tasks_per_node or self.whole_tasks) and self.cpus >= self.tasks
        of_tasks = tasks * math.ceil(self.cpus / self.tasks) if by_task else _dealt(self.cpus, index, number)
        cpus = max(of_tasks, 1, self.min_cpus, self.cpus_per_gpu * gpus)
        cores = cpus if self.single_threads else math.ceil(cpus / THREADS)
        of_gpus = (self.memory_per_gpu or whole.memory_per_gpu) * gpus
        return NodeSize(gpus, cores * THREADS, self._memory(of_gpus, cores * THREADS, whole), of_gpus)

    def _memory(self, of_gpus: int, cpus: int, whole: NodeSize) -> int:
        if named := max(self.memory, self.memory_per_cpu * cpus):
            return named
        takes_default = not self.whole_memory and (self.gpus or self.gpus_per_node or self.gpus_per_task)
        return of_gpus if takes_default else whole.memory_mib


@dataclass(frozen=True)
class Fit:
    """Placement of a job on instances of a pool.

    Attributes:
        parts: its part of each node, the largest first.
        gpus: in total.
        spread: likewise on some nodes more than it needs.
    """

    parts: tuple[NodeSize, ...]
    gpus: int
    spread: tuple[tuple[NodeSize, ...], ...] = ()

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.parts)


def _dealt(number: int, index: int, among: int) -> int:
    """Return the share of one among several when a number is dealt out evenly."""
    return number // among + (index < number % among)


def fit(request: JobRequest, name: str, pool: QueuePool) -> Fit | str:
    """Return how a job fits on as few instances of a pool as possible; else why no number of them runs it."""
    if request.unpromised:
        return f"names {request.unpromised}, which is unknown of an instance of {name} before it starts"
    least, most = request.least, min(pool.most, request.max_nodes or pool.most)
    number = max(least, most)
    for number in range(least, most + 1):
        # the largest part alone is looked at: a large pool has many numbers, and a user many jobs
        if pool.size.holds(request.largest(number, pool.size)):
            parts = request.parts(number, pool.size)
            gpus = request.gpus or sum(part.gpus for part in parts)
            if request.exclusive:
                return Fit((pool.size,) * number, gpus)
            more = range(number + 1, min(most, number + MOST_MORE) + 1)
            return Fit(parts, gpus, tuple(request.parts(other, pool.size) for other in more))
    return _why_not(request, number, name, pool)


def _why_not(request: JobRequest, number: int, name: str, pool: QueuePool) -> str:
    """Return the first resource that is too small on each of this many instances, in words."""
    if request.least > pool.most:  # by as much as a user likes: its parts are not made
        return f"asks for {counted(request.least, 'instance')}, size.max of {name} is {pool.most}"
    size, largest = pool.size, request.largest(number, pool.size)
    if largest.gpus > size.gpus:
        asked, has = counted(largest.gpus, "GPU"), f"{size.gpus}"
    elif largest.cpus > size.cpus:
        asked, has = counted(largest.cpus, "CPU"), f"{size.cpus}"
    else:
        asked, has = f"{_gib(largest.memory_mib)} of memory", _gib(size.memory_mib)
    where = "one instance" if number == 1 else f"one of {number} instances"
    return f"asks for {asked} on {where}, one of {name} has {has}"


def _gib(mib: int) -> str:
    return f"{mib / MIB_PER_GIB:.0f} GiB"
