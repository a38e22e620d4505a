"""Number of instances that the waiting jobs need, and the jobs that no instance would help. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.slurm.answers import ENDED, PENDING, ListedJob
from gpu_fleet_image.slurm.kept_back import Outlook, is_kept_back
from gpu_fleet_image.slurm.sizes import Fit, NodeSize, QueuePool, fit
from gpu_fleet_image.slurm.slurm import Node

# Reasons of waiting that no further instance would change (squeue(1), "JOB REASON CODES").
NOT_FOR_ROOM = frozenset(
    {
        *("DeadLine", "Dependency", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"),
        *("JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser", "Licenses", "PartitionDown"),
        *("PartitionInactive", "PartitionTimeLimit", "Reservation", "launch_failed_requeued_held"),
    }
)
OF_LIMITS = ("Assoc", "QOS")  # prefixes of reasons that are limits of an account or of a QoS
# Slurm has tried the present nodes, could run the job on none, and holds it.
GIVEN_UP = "BadConstraints"
# Slurm has tried its nodes, and found too little left on them. The reason stays while nodes come or become
# free, until Slurm tries the job again: with ``last_sched_evaluation``, "the last time the job was evaluated
# for scheduling" (squeue(1), LastSchedEval). Both schedulers set it before they try a job
# (``job_scheduler.c``, ``backfill.c``, 22.05 and 23.11). The first one sets it also of a heterogeneous job,
# which it never tries: there, and where Slurm does not say it, only time counts.
TRIED = "Resources"
DOUBTED_FOR_S = 120  # four rounds of the second scheduler (bf_interval)
# Slurm's reasons for a job that it has not tried, or that others precede: its second scheduler tries all of
# them each half minute (bf_interval), and may find room in the remains of several nodes.
NOT_TRIED = ("", "Priority")
TRIED_AFTER_S = 35
# 22.05 reports "Resources" right after a submission, and the true reason a second later: "Dependency".
TRUE_AFTER_S = 3
# An instance takes minutes to boot: jobs that may start within this time count now.
LEAD = timedelta(minutes=1)
# A job that must start sooner gets no instance: boots take many minutes where Slurm is installed at boot.
LONGEST_BOOT = timedelta(minutes=10)
TOO_LATE = "must start by {by:%Y-%m-%d %H:%M} UTC, before another instance could be ready (--deadline)"
NOT_HERE = "Slurm finds no instance of {pool} that could run it, though there are enough"


@dataclass(frozen=True)
class QueueDemand:
    """Demand of the waiting jobs.

    Attributes:
        needs: pool -> what it needs.
        refused: job -> why no number of instances would run it.
        fits: job -> number of instances that it takes, of all other waiting jobs.
        kept_back: parts of heterogeneous jobs that Slurm should not try for now.
        retried: jobs that Slurm gave up and should try again.
        roomy: job -> since when it seems to have room on nodes that others use, in seconds since 1970.
    """

    needs: dict[str, PoolNeed]
    refused: dict[str, str] = field(default_factory=dict)
    fits: dict[str, int] = field(default_factory=dict)
    kept_back: frozenset[str] = frozenset()
    retried: frozenset[str] = frozenset()
    roomy: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Room:
    """Capacity of a pool: what it has, and what it will get.

    Attributes:
        standing: instances that are busy, or take no jobs.
        free: nodes that run no job and accept one, less those that are planned for jobs.
        partly: node -> the part that jobs leave free.
        known: all nodes.
        new: node -> the part left of each planned node: a free one, or a requested one.
        counted: free nodes that ``wanted`` includes.
        wanted: number of instances of each job that needs new ones.
    """

    pool: QueuePool
    standing: int = 0
    free: list[str] = field(default_factory=list)
    partly: dict[str, NodeSize] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    new: dict[str, NodeSize] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    wanted: list[int] = field(default_factory=list)

    def copy(self) -> "Room":
        """Return an independent copy."""
        return replace(
            self,
            free=[*self.free],
            partly={**self.partly},
            new={**self.new},
            counted={*self.counted},
            wanted=[*self.wanted],
        )

    def take(self, wants: Fit, besides: Collection[str], *, buys: bool) -> set[str] | None:
        """Find room for a job; return its nodes, or None if the pool's limit does not allow it.

        Args:
            besides: nodes that it is kept away from.
            buys: whether it may have nodes that do not exist yet.
        """
        there, missing = self._placed(wants.parts, besides)
        free = [name for name in self.free if name not in besides][: len(missing)]
        bought = [f"asked for: {len(self.new) + number}" for number in range(len(missing) - len(free))]
        # with free ones that this job must not use, once: more are requested only beyond all that exist
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
        """Take these parts of what nodes have left; return their names."""
        for name, part in there.items():
            left = self.partly if name in self.partly else self.new
            left[name] = left[name].without(part)
        return {*there}

    def _spread(self, wants: Fit, besides: Collection[str]) -> dict[str, NodeSize]:
        """Find room on the remains of more nodes, as Slurm does; empty without room."""
        for parts in wants.spread:
            there, missing = self._placed(parts, besides)
            if not missing:
                return there
        return {}

    def _placed(
        self, parts: Sequence[NodeSize], besides: Collection[str]
    ) -> tuple[dict[str, NodeSize], list[NodeSize]]:
        """Return the parts that fit on nodes with some capacity left, and those that fit on none."""
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
    """Capacity of all pools.

    Attributes:
        left: team -> GPUs that its limit leaves for its waiting jobs.
        given: jobs with room, or with instances that were requested.
        limited: jobs for which their team's limit leaves too little now.
        now_s: time of this count, in seconds since 1970.
        before: ``roomy`` of the count before.
        roomy: as of ``QueueDemand``.
    """

    pools: dict[str, Room]
    left: dict[str, int]
    now_s: float = 0.0
    before: Mapping[str, float] = field(default_factory=dict)
    roomy: dict[str, float] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    limited: set[str] = field(default_factory=set)

    def may_start(self, job: ListedJob) -> bool:
        """Return whether a job has room, or takes none that another pending job was given."""
        return job.job.id in self.given or not self.pools[job.job.pool].wanted

    def place(
        self,
        parts: Sequence[ListedJob],
        fits: Mapping[str, Fit],
        excluded: Mapping[str, Collection[str]],
        *,
        buys: bool,
    ) -> bool:
        """Find room for all parts of a job, or for none; return whether there may be enough."""
        placed = self._placed(parts, fits, excluded, buys=buys)
        if placed and placed[1] and self._has_failed(parts):
            beside = {part.job.pool: [*self.pools[part.job.pool].partly] for part in parts}
            kept = {part.job.id: (*excluded.get(part.job.id, ()), *beside[part.job.pool]) for part in parts}
            placed = self._placed(parts, fits, kept, buys=buys)
        if placed is None:
            return False
        self.pools |= placed[0].pools
        self.left |= placed[0].left
        self.given |= {part.job.id for part in parts}
        return True

    def _has_failed(self, parts: Sequence[ListedJob]) -> bool:
        """Return whether Slurm found no room for a job since there seems to be some; note since when."""
        key, tried_s = parts[0].job.id, parts[0].tried_s
        # a try that began before that, and ended after it, proves nothing
        since_s = self.roomy[key] = self.before.get(key, max(self.now_s, tried_s))
        is_tried = len(parts) == 1 and tried_s > since_s
        is_believed = is_tried or self.now_s - since_s >= DOUBTED_FOR_S
        return is_believed and all(part.job.reason == TRIED for part in parts)

    def _placed(
        self,
        parts: Sequence[ListedJob],
        fits: Mapping[str, Fit],
        excluded: Mapping[str, Collection[str]],
        *,
        buys: bool,
    ) -> tuple["Rooms", bool] | None:
        """Return the capacity left, and whether the job shares nodes, all of which exist.

        None without room.
        """
        after = Rooms({part.job.pool: self.pools[part.job.pool].copy() for part in parts}, {**self.left})
        taken: dict[str, set[str]] = {name: set() for name in after.pools}
        for part in parts:
            name, wants = part.job.pool, fits[part.job.id]
            if len(parts) > 1:  # their places depend on one another
                wants = replace(wants, spread=())
            # in 22.05 no two parts of a job share a node
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
        return after, is_beside and all(nodes <= after.pools[name].known for name, nodes in taken.items())


def rooms_of(nodes: Iterable[Node], pools: Mapping[str, QueuePool]) -> dict[str, Room]:
    """Return the present capacity of each pool."""
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
        room.known.add(node.name)
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
    roomy: Mapping[str, float] = MappingProxyType({}),
    frozen: Mapping[str, str] = MappingProxyType({}),
) -> QueueDemand:
    """Return the demand of each pool. A job gets instances only in pools that could run it.

    Args:
        jobs: all jobs in Slurm.
        excluded: job -> nodes that it is kept away from, which count as not free for it.
        limits: team -> GPUs of its running jobs at most: beyond it no instance helps.
        given_up: jobs that Slurm could not place although there were enough nodes.
        roomy: of the count before.
        frozen: team that starts nothing -> why.
    """
    rooms = Rooms(rooms_of(nodes, pools), _left(limits, jobs), now.timestamp(), roomy)
    jobs = [_in_its_pool(job, pools) for job in jobs]
    fits, refused = _sorted_out(jobs, pools, limits, given_up, now)
    for job in jobs:
        if job.job.state == PENDING and job.team in frozen:
            fits.pop(job.job.id, None)
            refused[job.job.id] = frozen[job.team]
    for parts, number in _due(jobs, now):
        if any(part.job.id not in fits for part in parts):
            continue
        is_to_be_tried = any(_is_to_be_tried(part, fits, nodes, excluded) for part in parts)
        for _ in range(number):
            if not rooms.place(parts, fits, excluded, buys=not is_to_be_tried):
                break
    wanted = {
        name: PoolNeed(room.standing, tuple(room.wanted), frozenset(room.known))
        for name, room in rooms.pools.items()
    }
    tried = [job for job in jobs if job.job.id in fits and _is_to_be_tried(job, fits, nodes, excluded)]
    return QueueDemand(
        wanted,
        refused,
        {name: wants.nodes for name, wants in fits.items()},
        _kept_back(nodes, jobs, rooms, refused, now),
        # not where it would start on an instance that another job was given
        frozenset(job.job.id for job in tried if rooms.may_start(job)),
        rooms.roomy,
    )


def _kept_back(
    nodes: Iterable[Node],
    jobs: Iterable[ListedJob],
    rooms: Rooms,
    refused: Collection[str],
    now: datetime,
) -> frozenset[str]:
    """Return the parts of heterogeneous jobs that cannot start, and would keep nodes from others."""
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
    """Return the present nodes of its pool, without those that a job is kept away from."""
    beside = excluded.get(job.job.id, ())
    known = (node.name for node in nodes if node.is_there and node.pool == job.job.pool)
    return frozenset(name for name in known if name not in beside)


def _is_to_be_tried(
    job: ListedJob, fits: Mapping[str, Fit], nodes: Iterable[Node], excluded: Mapping[str, Collection[str]]
) -> bool:
    """Return whether Slurm gave the job up although enough nodes are there: try it before buying."""
    return job.job.reason == GIVEN_UP and fits[job.job.id].nodes <= len(nodes_for(job, nodes, excluded))


def _in_its_pool(job: ListedJob, pools: Mapping[str, QueuePool]) -> ListedJob:
    """Return the job in the first of its pools whose instances could run it, else unchanged."""
    if len(job.pools) <= 1:
        return job
    for name in job.pools:
        if name in pools and isinstance(fit(job.request, f"pool {name}", pools[name]), Fit):
            return replace(job, job=replace(job.job, pool=name))
    return job


def _left(limits: Mapping[str, int], jobs: Iterable[ListedJob]) -> dict[str, int]:
    """Return team with a limit -> GPUs that its jobs may have besides those in use."""
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
    """Return, for waiting jobs, how each fits on instances, or why not; all parts of a group or none."""
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
    """Return how a job fits on instances of its pool, or why no further instance would start it."""
    name = f"pool {job.job.pool}"
    if job.job.id in given_up:
        return NOT_HERE.format(pool=name)
    if job.begin_by_s and job.begin_by_s < (now + LONGEST_BOOT).timestamp():
        return TOO_LATE.format(by=datetime.fromtimestamp(job.begin_by_s, UTC))
    return fit(job.request, name, pool)


def _too_many(parts: Sequence[ListedJob], fits: Mapping[str, Fit], pools: Mapping[str, QueuePool]) -> str:
    """Return why a pool can never have as many instances as a job's parts need; empty if it can."""
    needed: Counter[str] = Counter()
    for part in parts:
        needed[part.job.pool] += fits[part.job.id].nodes
    for name, number in needed.items():
        if number > (most := pools[name].most):
            return (
                f"asks for {counted(number, 'instance')}{_in_all(parts)}, size.max of pool {name} is {most}"
            )
    return ""


def _beyond(parts: Sequence[ListedJob], fits: Mapping[str, Fit], limits: Mapping[str, int]) -> str:
    """Return why a team can never have as many GPUs as a job's parts need; empty if it can."""
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
    """Yield the jobs that instances would start now, as their parts, with the number of tasks, in order."""
    running = Counter(job.array for job in jobs if job.array and job.job.state not in (PENDING, *ENDED))
    groups: dict[str, list[ListedJob]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: (-job.priority, int(job.job.id))):
        if job.job.state == PENDING:
            groups[job.group or job.job.id].append(job)
    for parts in groups.values():
        if all(_is_due(part, now) for part in parts):
            job = parts[0]
            number = min(job.tasks, max(0, job.at_once - running[job.array])) if job.at_once else job.tasks
            yield parts, number


def _is_due(job: ListedJob, now: datetime) -> bool:
    """Return whether a job waits for capacity, now or within an instance's boot."""
    if not job.is_whole:
        return False
    reason = job.job.reason
    is_held = job.priority == 0 and reason != GIVEN_UP
    if is_held or reason in NOT_FOR_ROOM or reason.startswith(OF_LIMITS) or _is_new(job, now):
        return False
    return is_kept_back(job, now) or job.eligible_s <= (now + LEAD).timestamp()


def _is_new(job: ListedJob, now: datetime) -> bool:
    """Return whether Slurm may not have given the true reason yet."""
    least_s = TRIED_AFTER_S if job.job.reason in NOT_TRIED else TRUE_AFTER_S
    return now.timestamp() - job.submitted_s < least_s
