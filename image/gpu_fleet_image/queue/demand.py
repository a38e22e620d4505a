"""How many instances the jobs that wait need, and which of them none would help. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.queue.answers import ENDED, PENDING, ListedJob
from gpu_fleet_image.queue.kept_back import Outlook, is_kept_back
from gpu_fleet_image.queue.sizes import Fit, NodeSize, QueuePool, fit
from gpu_fleet_image.queue.slurm import Node

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
# What Slurm says of a job that it has not looked at, or that others wait before: its second scheduler looks
# at all each half minute (bf_interval), and may find room on what others left of several nodes.
NOT_LOOKED_AT = ("", "Priority")
LOOKED_AT_S = 35
# 22.05 says "Resources" of a job right after it was handed in, and a second later what is so: "Dependency".
TRUE_AFTER_S = 3
# An instance takes minutes to boot: what may begin within one is asked for now.
LEAD = timedelta(minutes=1)
# What must begin sooner than this gets none: boots of many minutes are seen where Slurm is installed at boot.
LONGEST_BOOT = timedelta(minutes=10)
TOO_LATE = "must begin by {by:%Y-%m-%d %H:%M} UTC, before an instance more would be there (--deadline)"
NOT_HERE = "Slurm finds no instance of {pool} that could run it, though there are enough"


@dataclass(frozen=True)
class QueueDemand:
    """What the jobs that wait come to.

    Attributes:
        needs: pool -> what it needs.
        refused: job -> why no number of instances would run it.
        fits: job -> how many instances it takes, of all others that wait.
        kept_back: parts of heterogeneous jobs at which Slurm is not to look for now.
    """

    needs: dict[str, PoolNeed]
    refused: dict[str, str] = field(default_factory=dict)
    fits: dict[str, int] = field(default_factory=dict)
    kept_back: frozenset[str] = frozenset()


@dataclass
class Room:
    """What a pool has, and is to get.

    Attributes:
        standing: instances that are at work, or take no jobs.
        free: nodes that run no job and take one, less those that jobs are to have.
        partly: node -> what jobs have left of it.
        tried: nodes of both kinds on which Slurm has looked for room already.
        new: node -> what is left of each that jobs are to have: a free one, or one that was asked for.
        counted: free nodes that ``wanted`` has.
        wanted: instances of each job that needs new ones.
    """

    pool: QueuePool
    standing: int = 0
    free: list[str] = field(default_factory=list)
    partly: dict[str, NodeSize] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    new: dict[str, NodeSize] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    wanted: list[int] = field(default_factory=list)

    def copy(self) -> "Room":
        """One that changes by itself."""
        return replace(
            self,
            free=[*self.free],
            partly={**self.partly},
            new={**self.new},
            counted={*self.counted},
            wanted=[*self.wanted],
        )

    def take(self, wants: Fit, besides: Collection[str], *, buys: bool) -> set[str] | None:
        """Find room for a job; the nodes that it is to have, None where the pool may not be large enough.

        Args:
            besides: nodes that it is kept away from.
            buys: it may have nodes that are not there.
        """
        there, missing = self._placed(wants.parts, besides)
        free = [name for name in self.free if name not in besides][: len(missing)]
        bought = [f"asked for: {len(self.new) + number}" for number in range(len(missing) - len(free))]
        # beside free ones that this job may not have, once: more are only asked for beyond all that there are
        counted = {*(self.free if bought else free)} - self.counted
        number = len(counted) + len(bought)
        if self.standing + sum(self.wanted) + number > self.pool.most:
            return None
        if bought and (spread := self._spread(wants, besides)):
            return self._fill(spread)
        if bought and not buys:
            return None
        self._fill(there)
        coming = dict(zip([*free, *bought], missing, strict=True))
        self.new |= {name: self.pool.size.without(part) for name, part in coming.items()}
        self.free = [name for name in self.free if name not in coming]
        self.counted |= counted
        self.wanted += [number] * bool(number)
        return {*there, *coming}

    def _fill(self, there: Mapping[str, NodeSize]) -> set[str]:
        """Take these parts of what nodes have left; gives their names."""
        for name, part in there.items():
            left = self.partly if name in self.partly else self.new
            left[name] = left[name].without(part)
        return {*there}

    def _spread(self, wants: Fit, besides: Collection[str]) -> dict[str, NodeSize]:
        """As Slurm does, on more nodes where those have enough left; empty where they have not."""
        for parts in wants.spread:
            there, missing = self._placed(parts, besides)
            if not missing:
                return there
        return {}

    def _placed(
        self, parts: Sequence[NodeSize], besides: Collection[str]
    ) -> tuple[dict[str, NodeSize], list[NodeSize]]:
        """Which part goes on which node that has some left, and which on none of them."""
        there: dict[str, NodeSize] = {}
        missing: list[NodeSize] = []
        some_left = {name: left for name, left in (self.partly | self.new).items() if name not in besides}
        for part in parts:
            holding = (name for name, left in some_left.items() if name not in there and left.holds(part))
            if name := next(holding, ""):
                there[name] = part
            else:
                missing.append(part)
        return there, missing


@dataclass
class Rooms:
    """What all pools have.

    Attributes:
        pools: by name.
        left: team -> GPUs that its limit leaves to its jobs that wait.
        given: jobs that have room, or instances that are asked for.
        limited: jobs for which their team's limit leaves too little now.
    """

    pools: dict[str, Room]
    left: dict[str, int]
    given: set[str] = field(default_factory=set)
    limited: set[str] = field(default_factory=set)

    def place(
        self,
        parts: Sequence[ListedJob],
        fits: Mapping[str, Fit],
        excluded: Mapping[str, Collection[str]],
        *,
        buys: bool,
    ) -> bool:
        """Find room for all parts of a job, or for none; whether there may be enough."""
        placed = self._placed(parts, fits, excluded, buys=buys)
        if placed and placed[1] and all(part.job.reason == TRIED for part in parts):
            beside = {part.job.pool: [*self.pools[part.job.pool].partly] for part in parts}
            kept = {part.job.id: (*excluded.get(part.job.id, ()), *beside[part.job.pool]) for part in parts}
            placed = self._placed(parts, fits, kept, buys=buys)
        if placed is None:
            return False
        self.pools |= placed[0].pools
        self.left |= placed[0].left
        self.given |= {part.job.id for part in parts}
        return True

    def _placed(
        self,
        parts: Sequence[ListedJob],
        fits: Mapping[str, Fit],
        excluded: Mapping[str, Collection[str]],
        *,
        buys: bool,
    ) -> tuple["Rooms", bool] | None:
        """What would be left, and whether all of it is beside jobs and on nodes that Slurm has tried."""
        after = Rooms({part.job.pool: self.pools[part.job.pool].copy() for part in parts}, {**self.left})
        taken: dict[str, set[str]] = {name: set() for name in after.pools}
        for part in parts:
            name, wants = part.job.pool, fits[part.job.id]
            if len(parts) > 1:  # their places depend on one another
                wants = replace(wants, spread=())
            # of 22.05 no two parts of a job share a node
            besides = {*excluded.get(part.job.id, ()), *taken[name]}
            nodes = after.pools[name].take(wants, besides, buys=buys)
            if wants.gpus > after.left.get(part.team, wants.gpus):
                self.limited |= {part.job.id for part in parts}
                return None
            if nodes is None:
                return None
            taken[name] |= nodes
            if part.team in after.left:
                after.left[part.team] -= wants.gpus
        for name, room in after.pools.items():
            before = len(self.pools[name].wanted)
            room.wanted[before:] = [sum(room.wanted[before:])] * (len(room.wanted) > before)
        is_beside = any(nodes & after.pools[name].partly.keys() for name, nodes in taken.items())
        return after, is_beside and all(nodes <= after.pools[name].tried for name, nodes in taken.items())


def rooms_of(
    nodes: Iterable[Node], pools: Mapping[str, QueuePool], fresh: Collection[str]
) -> dict[str, Room]:
    """Each pool as it is."""
    rooms = {name: Room(pool) for name, pool in pools.items()}
    for node in nodes:
        if node.pool not in rooms:
            continue
        room = rooms[node.pool]
        room.standing += not node.is_free
        if node.is_free:
            room.free.append(node.name)
        if node.is_partly_free:
            room.partly[node.name] = node.left
        if node.is_partly_free or node.name not in fresh:
            room.tried.add(node.name)
    return rooms


def needs(
    nodes: Sequence[Node],
    jobs: Sequence[ListedJob],
    pools: Mapping[str, QueuePool],
    now: datetime,
    *,
    excluded: Mapping[str, Collection[str]] = MappingProxyType({}),
    limits: Mapping[str, int] = MappingProxyType({}),
    given_up: Collection[str] = frozenset(),
    fresh: Collection[str] = frozenset(),
) -> QueueDemand:
    """What each pool needs. A job gets instances only where those could run it.

    Args:
        nodes: all that Slurm knows.
        jobs: likewise.
        excluded: job -> nodes that it is kept away from: one that is free is none for this job.
        limits: team -> GPUs that its jobs may have at once: no instance would start one more.
        given_up: jobs that Slurm could not place though there were enough nodes.
        fresh: nodes that Slurm may not have tried yet.
    """
    rooms = Rooms(rooms_of(nodes, pools, fresh), _left(limits, jobs))
    jobs = [_in_its_pool(job, pools) for job in jobs]
    fits, refused = _sorted_out(jobs, pools, limits, given_up, now)
    for parts, number in _due(jobs, now):
        if any(part.job.id not in fits for part in parts):
            continue
        is_to_be_tried = any(_is_to_be_tried(part, fits, nodes, excluded) for part in parts)
        for _ in range(number):
            if not rooms.place(parts, fits, excluded, buys=not is_to_be_tried):
                break
    wanted = {name: PoolNeed(room.standing, tuple(room.wanted)) for name, room in rooms.pools.items()}
    nodes_of = {name: wants.nodes for name, wants in fits.items()}
    return QueueDemand(wanted, refused, nodes_of, _kept_back(nodes, jobs, rooms, refused, now))


def _kept_back(
    nodes: Iterable[Node],
    jobs: Iterable[ListedJob],
    rooms: Rooms,
    refused: Collection[str],
    now: datetime,
) -> frozenset[str]:
    """Parts of heterogeneous jobs that cannot start, and would keep nodes from others."""
    there = Counter(node.pool for node in nodes)
    groups: dict[str, list[ListedJob]] = defaultdict(list)
    for job in jobs:
        if job.group and job.job.state == PENDING and job.is_whole:
            groups[job.group].append(job)
    known = [parts for parts in groups.values() if not any(_is_new(part, now) for part in parts)]
    outlook = Outlook(
        due={part.job.id for parts in known for part in parts if _is_due(part, now)},
        placed=rooms.given,
        hopeless={*refused, *rooms.limited},
        busy={name for name, room in rooms.pools.items() if room.wanted or there[name] < room.pool.most},
    )
    return outlook.kept_back(known)


def nodes_for(
    job: ListedJob, nodes: Iterable[Node], excluded: Mapping[str, Collection[str]]
) -> frozenset[str]:
    """Nodes of its pool that are there, less those that a job is kept away from."""
    beside = excluded.get(job.job.id, ())
    known = (node.name for node in nodes if node.is_there and node.pool == job.job.pool)
    return frozenset(name for name in known if name not in beside)


def _is_to_be_tried(
    job: ListedJob, fits: Mapping[str, Fit], nodes: Iterable[Node], excluded: Mapping[str, Collection[str]]
) -> bool:
    """Whether Slurm gave it up, and is to look at the nodes that there are by now first."""
    return job.job.reason == GIVEN_UP and fits[job.job.id].nodes <= len(nodes_for(job, nodes, excluded))


def _in_its_pool(job: ListedJob, pools: Mapping[str, QueuePool]) -> ListedJob:
    """The job in the first of its pools whose instances could run it, else as it is."""
    if len(job.pools) <= 1:
        return job
    for name in job.pools:
        if name in pools and isinstance(fit(job.request, f"pool {name}", pools[name]), Fit):
            return replace(job, job=replace(job.job, pool=name))
    return job


def _left(limits: Mapping[str, int], jobs: Iterable[ListedJob]) -> dict[str, int]:
    """Team with a limit -> GPUs that its jobs may have beside those that they have."""
    used: Counter[str] = Counter()
    for job in jobs:
        if job.job.state not in (PENDING, *ENDED):
            used[job.team] += job.gpus
    return {team: max(0, most - used[team]) for team, most in limits.items()}


def _sorted_out(
    jobs: Iterable[ListedJob],
    pools: Mapping[str, QueuePool],
    limits: Mapping[str, int],
    given_up: Collection[str],
    now: datetime,
) -> tuple[dict[str, Fit], dict[str, str]]:
    """Jobs that wait: how each fits on instances, or why it never does; of a group all parts or none."""
    fits: dict[str, Fit] = {}
    refused: dict[str, str] = {}
    groups: dict[str, list[ListedJob]] = defaultdict(list)
    for job in jobs:
        known = job.job
        if known.state != PENDING or known.pool not in pools:
            continue
        outcome = _outcome(job, pools[known.pool], given_up, now)
        if isinstance(outcome, Fit):
            fits[known.id] = outcome
        else:
            refused[known.id] = outcome
        groups[job.group or known.id].append(job)
    for parts in groups.values():
        ids = [part.job.id for part in parts]
        why = next((f"another part of it {refused[part]}" for part in ids if part in refused), "")
        why = why or _too_many(parts, fits, pools) or _beyond(parts, fits, limits)
        for part in ids if why else ():
            fits.pop(part, None)
            refused.setdefault(part, why)
    return fits, refused


def _outcome(job: ListedJob, pool: QueuePool, given_up: Collection[str], now: datetime) -> Fit | str:
    """How a job fits on instances of its pool, or why no instance more would start it."""
    name = f"pool {job.job.pool}"
    if job.job.id in given_up:
        return NOT_HERE.format(pool=name)
    if job.begin_by_s and job.begin_by_s < (now + LONGEST_BOOT).timestamp():
        return TOO_LATE.format(by=datetime.fromtimestamp(job.begin_by_s, UTC))
    return fit(job.request, name, pool)


def _too_many(parts: Sequence[ListedJob], fits: Mapping[str, Fit], pools: Mapping[str, QueuePool]) -> str:
    """Why a pool may never have as many instances as all parts of a job need; empty where it may."""
    needed: Counter[str] = Counter()
    for part in parts:
        needed[part.job.pool] += fits[part.job.id].nodes
    for name, number in needed.items():
        if number > (most := pools[name].most):
            return f"asks for {number} instances{_in_all(parts)}, size.max of pool {name} is {most}"
    return ""


def _beyond(parts: Sequence[ListedJob], fits: Mapping[str, Fit], limits: Mapping[str, int]) -> str:
    """Why a team may never have as many GPUs as all parts of a job need; empty where it may."""
    needed: Counter[str] = Counter()
    for part in parts:
        needed[part.team] += fits[part.job.id].gpus
    for team, gpus in needed.items():
        if gpus > (most := limits.get(team, gpus)):
            return f"asks for {gpus} GPUs{_in_all(parts)}, teams.{team}.max_gpus of the stack file is {most}"
    return ""


def _in_all(parts: Sequence[ListedJob]) -> str:
    return " in all its parts" * (len(parts) > 1)


def _due(jobs: Sequence[ListedJob], now: datetime) -> Iterator[tuple[list[ListedJob], int]]:
    """Jobs that instances would start now as their parts, and how many tasks of each; in their order."""
    running = Counter(job.array for job in jobs if job.array and job.job.state not in (PENDING, *ENDED))
    groups: dict[str, list[ListedJob]] = defaultdict(list)
    for job in sorted(jobs, key=_place_in_line):
        if job.job.state == PENDING:
            groups[job.group or job.job.id].append(job)
    for parts in groups.values():
        if all(_is_due(part, now) for part in parts):
            job = parts[0]
            number = min(job.tasks, max(0, job.at_once - running[job.array])) if job.at_once else job.tasks
            yield parts, number


def _place_in_line(job: ListedJob) -> tuple[bool, int, int]:
    """For sorting: what Slurm gave up has no priority until it is released, and mostly comes first then."""
    return job.job.reason != GIVEN_UP, -job.priority, int(job.job.id)


def _is_due(job: ListedJob, now: datetime) -> bool:
    """Whether room is what it waits for, now or within an instance's boot."""
    if not job.is_whole:
        return False
    reason = job.job.reason
    is_held = job.priority == 0 and reason != GIVEN_UP
    if is_held or reason in NOT_FOR_ROOM or reason.startswith(OF_LIMITS) or _is_new(job, now):
        return False
    return is_kept_back(job, now) or job.eligible_s <= (now + LEAD).timestamp()


def _is_new(job: ListedJob, now: datetime) -> bool:
    """Whether Slurm may not have said yet what it waits for."""
    least_s = LOOKED_AT_S if job.job.reason in NOT_LOOKED_AT else TRUE_AFTER_S
    return now.timestamp() - job.submitted_s < least_s
