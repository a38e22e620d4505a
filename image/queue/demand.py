"""How many instances the jobs that wait need, and which of them none would help. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from image.capacity.queue_need import PoolNeed
from image.queue.answers import ENDED, PENDING, ListedJob
from image.queue.sizes import Fit, NodeSize, QueuePool, fit
from image.queue.slurm import Node

# Why a job waits that no instance more would start (squeue(1), "JOB REASON CODES").
NOT_FOR_ROOM = frozenset(
    {
        *("DeadLine", "Dependency", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"),
        *("JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser", "Licenses", "PartitionDown"),
        *("PartitionInactive", "PartitionTimeLimit", "Reservation", "launch_failed_requeued_held"),
    }
)
OF_LIMITS = ("Assoc", "QOS")  # how reasons begin that are limits of an account or of a QoS
# Slurm has looked at the nodes that there are, could run the job on none, and holds it.
GIVEN_UP = "BadConstraints"
# Slurm has looked at what its nodes have left, and found too little.
TRIED = "Resources"
# A job without a reason is one that Slurm has not looked at: it does within seconds, or after many others.
LOOKED_AT_S = 20
# An instance takes minutes to boot: what may begin within one is asked for now.
LEAD = timedelta(minutes=1)
NOT_HERE = "Slurm finds no instance of {pool} that could run it, though there are enough"


@dataclass(frozen=True)
class QueueDemand:
    """What the jobs that wait come to.

    Attributes:
        needs: pool -> what it needs.
        refused: job -> why no number of instances would run it.
        fits: job -> how many instances it takes, of all others that wait.
    """

    needs: dict[str, PoolNeed]
    refused: dict[str, str] = field(default_factory=dict)
    fits: dict[str, int] = field(default_factory=dict)


@dataclass
class Room:
    """What a pool has, and is to get.

    Attributes:
        standing: instances that are at work, or take no jobs.
        free: those that run no job and take one, as Slurm has tried them; less those that jobs are to have.
        partly: node -> what jobs have left of it.
        new: what is left of each instance that was asked for.
        wanted: instances of each job that needs new ones.
    """

    pool: QueuePool
    standing: int = 0
    free: int = 0
    partly: dict[str, NodeSize] = field(default_factory=dict)
    new: list[NodeSize] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    def take(self, wants: Fit, *, besides: Collection[str], is_tried: bool, more: int) -> bool:
        """Find room for a job; whether the pool may be large enough.

        Args:
            besides: nodes that it is kept away from.
            is_tried: Slurm has found no room for it on the nodes that there are.
            more: instances that it needs beside its own, since free ones are none for it.
        """
        partly = {name: left for name, left in self.partly.items() if name not in besides}
        there, coming, missing = self._placed(wants, partly)
        if is_tried and there and len(missing) <= self.free:  # as Slurm has tried it
            there, coming, missing = self._placed(wants, {})
        number = len(missing) + more if missing else 0
        if self.standing + sum(self.wanted) + number > self.pool.most:
            return False
        for name, part in there.items():
            self.partly[name] = self.partly[name].without(part)
        for index, part in coming.items():
            self.new[index] = self.new[index].without(part)
        if number:
            self.wanted.append(number)
            self.new += [self.pool.size.without(part) for part in missing]
            self.free -= min(self.free, number)
        return True

    def _placed(
        self, wants: Fit, partly: Mapping[str, NodeSize]
    ) -> tuple[dict[str, NodeSize], dict[int, NodeSize], list[NodeSize]]:
        """Which part goes on which node, on which instance that was asked for, and on none of them."""
        there: dict[str, NodeSize] = {}
        coming: dict[int, NodeSize] = {}
        missing: list[NodeSize] = []
        for part in wants.parts:
            name = next((name for name, left in partly.items() if name not in there and left.holds(part)), "")
            new = enumerate(self.new)
            index = next((index for index, left in new if index not in coming and left.holds(part)), None)
            if name:
                there[name] = part
            elif index is not None:
                coming[index] = part
            else:
                missing.append(part)
        return there, coming, missing


def rooms_of(
    nodes: Iterable[Node], pools: Mapping[str, QueuePool], fresh: Collection[str]
) -> dict[str, Room]:
    """Each pool as it is."""
    rooms = {name: Room(pool) for name, pool in pools.items()}
    for node in nodes:
        if node.pool not in rooms:
            continue
        room = rooms[node.pool]
        room.free += node.is_free and node.name not in fresh
        room.standing += not node.is_free
        if node.is_partly_free:
            room.partly[node.name] = node.left
    return rooms


def needs(
    nodes: Sequence[Node],
    jobs: Sequence[ListedJob],
    pools: Mapping[str, QueuePool],
    now: datetime,
    *,
    excluded: Mapping[str, Collection[str]] = MappingProxyType({}),
    room: Mapping[str, int] = MappingProxyType({}),
    given_up: Collection[str] = frozenset(),
    fresh: Collection[str] = frozenset(),
) -> QueueDemand:
    """What each pool needs. A job gets instances only where those could run it.

    Args:
        nodes: all that Slurm knows.
        jobs: likewise.
        excluded: job -> nodes that it is kept away from: one that is free is none for this job.
        room: team -> GPUs that its limit leaves to its jobs that wait: no instance would start one more.
        given_up: jobs that Slurm could not place though there were enough nodes.
        fresh: nodes that Slurm may not have tried yet.
    """
    rooms, left = rooms_of(nodes, pools, fresh), dict(room)
    jobs = [_in_its_pool(job, pools) for job in jobs]
    free = {node.name for node in nodes if node.is_free}
    there = Counter(node.pool for node in nodes if node.is_there)
    fits, refused = _sorted_out(jobs, pools, given_up)
    for job, number in _due(jobs, now):
        wants = fits.get(job.job.id)
        if wants is None or (job.job.reason == GIVEN_UP and wants.nodes <= there[job.job.pool]):
            continue  # of the second it is to look at the nodes that there are first
        besides = excluded.get(job.job.id, ())
        for _ in range(number):
            if wants.gpus > left.get(job.team, wants.gpus):
                break
            more = len(free.intersection(besides))
            is_tried = job.job.reason == TRIED
            if not rooms[job.job.pool].take(wants, besides=besides, is_tried=is_tried, more=more):
                break
            if job.team in left:
                left[job.team] -= wants.gpus
    wanted = {name: PoolNeed(room.standing, tuple(room.wanted)) for name, room in rooms.items()}
    return QueueDemand(wanted, refused, {name: wants.nodes for name, wants in fits.items()})


def _in_its_pool(job: ListedJob, pools: Mapping[str, QueuePool]) -> ListedJob:
    """The job in the first of its pools whose instances could run it, else as it is."""
    if len(job.pools) <= 1:
        return job
    for name in job.pools:
        if name in pools and isinstance(fit(job.request, f"pool {name}", pools[name]), Fit):
            return replace(job, job=replace(job.job, pool=name))
    return job


def _sorted_out(
    jobs: Iterable[ListedJob], pools: Mapping[str, QueuePool], given_up: Collection[str]
) -> tuple[dict[str, Fit], dict[str, str]]:
    """Jobs that wait: how each fits on instances, or why it never does; of a group all parts or none."""
    fits: dict[str, Fit] = {}
    refused: dict[str, str] = {}
    groups: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        known = job.job
        if known.state != PENDING or known.pool not in pools:
            continue
        name = f"pool {known.pool}"
        outcome = fit(job.request, name, pools[known.pool])
        outcome = NOT_HERE.format(pool=name) if known.id in given_up else outcome
        if isinstance(outcome, Fit):
            fits[known.id] = outcome
        else:
            refused[known.id] = outcome
        groups[job.group or known.id].append(known.id)
    for parts in groups.values():
        why = next((refused[part] for part in parts if part in refused), "")
        for part in parts if why else ():
            fits.pop(part, None)
            refused.setdefault(part, f"another part of it {why}")
    return fits, refused


def _due(jobs: Sequence[ListedJob], now: datetime) -> Iterator[tuple[ListedJob, int]]:
    """Jobs that instances would start now, and how many tasks of each; those that come first first."""
    running = Counter(job.array for job in jobs if job.array and job.job.state not in (PENDING, *ENDED))
    for job in sorted(jobs, key=lambda job: (-job.priority, int(job.job.id))):
        reason = job.job.reason
        is_held = job.priority == 0 and reason != GIVEN_UP
        if job.job.state != PENDING or is_held or reason in NOT_FOR_ROOM or reason.startswith(OF_LIMITS):
            continue
        is_new = not reason and now.timestamp() - job.submitted_s < LOOKED_AT_S
        if is_new or job.eligible_s > (now + LEAD).timestamp():
            continue
        number = min(job.tasks, max(0, job.at_once - running[job.array])) if job.at_once else job.tasks
        yield job, number
