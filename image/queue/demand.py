"""How many instances the jobs that wait need. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from image.capacity.queue_need import PoolNeed
from image.queue.slurm import Node, WaitingJob


def needs(
    nodes: Sequence[Node],
    jobs: Iterable[WaitingJob],
    gpus: Mapping[str, int],
    excluded: Mapping[str, Collection[str]] = MappingProxyType({}),
    room: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, PoolNeed]:
    """What each pool needs.

    A job for some GPUs of one instance shares it with others of its kind; any other gets whole instances.

    Args:
        nodes: all that Slurm knows.
        jobs: those that come first first.
        gpus: pool -> GPUs of each of its instances.
        excluded: job -> nodes that it is kept away from: one that is free is none for this job.
        room: team -> GPUs that its limit leaves to its jobs that wait: no instance would start one more.
    """
    free = {node.name for node in nodes if node.is_free}
    standing = dict.fromkeys(gpus, 0)
    for node in nodes:
        if node.pool in standing and not node.is_free:
            standing[node.pool] += 1
    wanted: dict[str, list[int]] = {pool: [] for pool in gpus}
    shared: dict[str, list[int]] = {
        pool: [] for pool in gpus
    }  # GPUs that are left on instances for small jobs
    left = dict(room)
    for job in jobs:
        if job.pool not in wanted or job.nodes * job.gpus > left.get(job.team, math.inf):
            continue
        if job.team in left:
            left[job.team] -= job.nodes * job.gpus
        whole = job.nodes > 1 or not 0 < job.gpus < gpus[job.pool]
        if whole:
            wanted[job.pool].append(job.nodes + len(free.intersection(excluded.get(job.id, ()))))
        elif not _fits(shared[job.pool], job.gpus):
            wanted[job.pool].append(1)
            shared[job.pool].append(gpus[job.pool] - job.gpus)
    return {pool: PoolNeed(standing[pool], tuple(wanted[pool])) for pool in gpus}


def _fits(left: list[int], gpus: int) -> bool:
    """Take the GPUs from the first instance that has as many left."""
    for index, number in enumerate(left):
        if number >= gpus:
            left[index] -= gpus
            return True
    return False
