"""``python -m gpu_fleet_image.queue.controller``: what the controller does beside slurmctld.

``prepare`` lays munge's key and Slurm's configuration; ``wait`` waits for slurmdbd; ``watch`` keeps the
partitions those of the stack's policy, says to the mover what waits for instances, and forgets nodes whose
instances are gone, so that their jobs go on elsewhere at once instead of after slurmd's own timeout.
"""

import logging
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_fleet_image.core import instance_file, paths, queue_file
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.errors import CloudError, InstanceError
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.policy import KEY as POLICY
from gpu_fleet_image.core.queue_errors import NotReadyError, PolicyUnreadError, SlurmError
from gpu_fleet_image.core.queue_need import QUEUE, to_json
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.queue import (
    accounting,
    cloud,
    configuration,
    database,
    folders,
    job_records,
    munge,
    slurm,
)
from gpu_fleet_image.queue.accounting import TeamLimits
from gpu_fleet_image.queue.answers import PENDING, JobList, ListedJob
from gpu_fleet_image.queue.configuration import DATABASE_PORT, Cluster
from gpu_fleet_image.queue.database import KeptAccounts
from gpu_fleet_image.queue.demand import QueueDemand, needs
from gpu_fleet_image.queue.exclusion import exclusions, named
from gpu_fleet_image.queue.job_records import JobRecords
from gpu_fleet_image.queue.refusals import Refusals, described
from gpu_fleet_image.queue.sizes import NodeSize, QueuePool

FOLDER = Path("/etc/slurm")
# In Debian's slurm-wlm-basic-plugins; one that is named and is not there keeps slurmctld from starting.
LIBRARIES, SUBMIT_PLUGIN = Path("/usr/lib"), "*/slurm-wlm/job_submit_lua.so"
LOOK_EVERY_S = 15.0
ACCOUNTS_EVERY_S = 60.0
# systemd gives each command before the start of slurmctld 90 s
ACCOUNTS_WAIT_S, ACCOUNTS_PAUSE_S = 60.0, 1.0
LIVING = ("pending", "running")
# Without any word of the cloud in two looks in a row; once may be an answer of before it started.
LOOKS_BEFORE_GONE = 2
# slurmctld 22.05 ends with a segmentation fault where a node is deleted while it still tries to reach it.
FORGET_AFTER = timedelta(minutes=5)
LOG = logging.getLogger(__name__)


def pools_of(policy: dict[str, Any]) -> dict[str, QueuePool]:
    """Pools of the queue, as the stack's policy has them.

    Raises:
        PolicyUnreadError: it says too little of one.
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


def cluster_of(stack: str, address: str, pools: Mapping[str, QueuePool]) -> Cluster:
    """The queue of this controller."""
    state = str(configuration.state_of(stack))
    memory = {name: pool.size.memory_per_gpu for name, pool in sorted(pools.items())}
    has_lua = any(LIBRARIES.glob(SUBMIT_PLUGIN))
    return Cluster(stack, socket.gethostname(), address, memory, state, has_lua)


def lay(cluster: Cluster, folder: Path) -> bool:
    """Write the configuration; whether it was another."""
    texts = {
        "slurm.conf": configuration.slurm_conf(cluster),
        "gres.conf": configuration.gres_conf(),
        "cgroup.conf": configuration.cgroup_conf(),
        "job_submit.lua": configuration.job_submit(),
    }
    changed = False
    for name, text in texts.items():
        file = folder / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(file, text)
            changed = True
    return changed


@dataclass
class ControllerWatch:
    """The controller's look, again and again.

    Attributes:
        policy: reads the stack's policy; None where it is not there.
        states: of instances by their ids, those that the cloud still knows.
        say: writes what the mover reads.
        configured: lays the configuration of these pools; whether it changed.
        keep: writes what users read of all jobs.
        written: what it wrote last, or the controller before this one.
        limits: reads what each team gets.
        ask: calls Slurm.
    """

    policy: Callable[[], dict[str, Any] | None]
    states: Callable[[list[str]], dict[str, str]]
    say: Callable[[dict[str, Any]], None]
    configured: Callable[[Mapping[str, QueuePool]], bool]
    keep: Callable[[dict[str, Any]], None]
    written: JobRecords | None = None
    ask: slurm.Run = slurm.run
    limits: Callable[[], Mapping[str, TeamLimits]] = dict
    _missed: dict[str, int] = field(default_factory=dict)
    _gone_since: dict[str, datetime] = field(default_factory=dict)
    _unread: bool = False  # a configuration that slurmctld has not read
    _known: frozenset[str] = frozenset()  # nodes of the last look

    def __post_init__(self) -> None:
        self._refusals = Refusals(self._ask)

    def _ask(self, words: Sequence[str]) -> str:
        return self.ask(words)

    def once(self, now: datetime) -> None:
        """One look.

        Raises:
            CloudError, SlurmError: what is there could not be read; nothing was decided by it.
        """
        policy = self.policy()
        pools = pools_of(policy) if policy else {}
        teams = self.limits()
        self._unread = bool(pools and self.configured(pools)) or self._unread
        if self._unread:
            slurm.start_anew(self.ask)
            self._unread = False
            LOG.info("event=queue-reconfigured pools=%s", ",".join(pools))
            return  # the next look finds it
        nodes = slurm.nodes(self.ask)
        gone = self._gone(nodes)
        self._gone_since = {name: self._gone_since.get(name, now) for name in gone}
        for node in nodes:
            if node.name in gone:
                self._part_with(node, gone[node.name], now)
        left = [node for node in nodes if node.name not in gone]
        said = slurm.jobs(self.ask)
        for why in said.unread:
            LOG.error("event=queue-job-unread reason=%r", why)
        excluded = self._keep_away(said.jobs, nodes, left, pools)
        demand = self._count(left, said, pools, teams, excluded=excluded, now=now) if pools else None
        self.written = job_records.after(self.written, described(said.jobs, demand), now)
        self.keep(job_records.to_json(self.written))

    def _count(
        self,
        nodes: list[slurm.Node],
        said: JobList,
        pools: Mapping[str, QueuePool],
        teams: Mapping[str, TeamLimits],
        *,
        excluded: Mapping[str, Sequence[str]],
        now: datetime,
    ) -> QueueDemand:
        """Count what the jobs need; say it to the mover, and to jobs why no instance would help."""
        self._refusals.judge(said.jobs, nodes, excluded)
        names = frozenset(node.name for node in nodes)
        demand = needs(
            nodes,
            said.jobs,
            pools,
            now,
            excluded=excluded,
            limits={name: team.max_gpus for name, team in teams.items() if team.max_gpus is not None},
            given_up=self._refusals.given_up,
            fresh=names - self._known,
        )
        self._known = names
        self.say(to_json(demand.needs, now, said.unread))
        self._refusals.say(said.jobs, nodes, excluded, demand)
        return demand

    def _keep_away(
        self,
        jobs: Sequence[ListedJob],
        known: Sequence[slurm.Node],
        left: Sequence[slurm.Node],
        pools: Mapping[str, QueuePool],
    ) -> dict[str, tuple[str, ...]]:
        """Keep jobs away from nodes on which they failed; one that has begun meanwhile runs where it is.

        Nobody stays away from an instance that is gone: Slurm would keep the job from another that comes.

        Args:
            known: nodes with those whose instances are gone.
            left: those whose instances run.

        Returns:
            Job that waits -> the nodes that it is kept away from now.
        """
        wanted = exclusions(jobs, left, {name: pool.most for name, pool in pools.items()})
        for listed in jobs:
            job, now = listed.job.id, named(listed.excluded, [node.name for node in known])
            names = wanted.get(job, ())
            if listed.job.state != PENDING or {*names} == {*now}:
                continue
            try:
                slurm.keep_away(job, names, self.ask)
                LOG.info("event=queue-job-kept-away job=%s nodes=%s", job, ",".join(names))
            except SlurmError as error:
                wanted[job] = now
                LOG.warning("event=queue-job-not-kept-away job=%s reason=%r", job, str(error))
        return wanted

    def _part_with(self, node: slurm.Node, why: str, now: datetime) -> None:
        if "DOWN" not in node.flags:
            slurm.give_up(node.name, why, self.ask)
            LOG.info("event=queue-node-down node=%s reason=%r", node.name, why)
        elif not node.flags & slurm.BUSY_FLAGS and now - self._gone_since[node.name] >= FORGET_AFTER:
            slurm.forget(node.name, self.ask)
            LOG.info("event=queue-node-forgotten node=%s", node.name)

    def _gone(self, nodes: Iterable[slurm.Node]) -> dict[str, str]:
        """Nodes whose instances run no more -> why; what the cloud does not say is not gone."""
        names = [node.name for node in nodes]
        states = self.states(names) if names else {}
        self._missed = {name: self._missed.get(name, 0) + 1 for name in names if name not in states}
        gone = {name: f"instance is {state}" for name, state in states.items() if state not in LIVING}
        lost = [name for name, looks in self._missed.items() if looks >= LOOKS_BEFORE_GONE]
        return gone | dict.fromkeys(lost, "instance is gone")


def prepare() -> None:
    """Lay what slurmctld needs; raises InstanceError, OSError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    if not os.path.ismount(configuration.HOMES):
        raise NotReadyError(
            f"{configuration.HOMES} is not mounted: the queue's state would be lost with this instance"
        )
    key = cloud.of(instance).key(queue.secret, may_make=True)
    munge.lay(key)
    lay_state(configuration.state_of(instance.stack))
    replace_text(Path(configuration.NODE_GPUS), "")  # which gres.conf includes; a controller has none
    policy = _store(instance).newest(POLICY)
    pools = pools_of(policy.content) if policy else {}
    if not pools:
        raise NotReadyError(f"{POLICY} of the stack names no pool of the queue")
    lay(cluster_of(instance.stack, queue.address, pools), FOLDER)
    LOG.info("event=queue-controller-prepared pools=%s", ",".join(pools))


def lay_state(state: Path, account: str = "slurm") -> None:
    """slurmctld's folder and the one above it, for its account, which had another number elsewhere.

    Raises:
        OSError: one cannot be laid, or is a link.
    """
    owner = pwd.getpwnam(account)
    with folders.made(state.parent) as parent, folders.made(state.name, parent) as own:
        for folder in (parent, own):
            folders.give(folder, owner.pw_uid, owner.pw_gid)


def _store(instance: instance_file.InstanceFile) -> Store:
    return cloud.of(instance).store()


def limits_of(store: Store) -> dict[str, TeamLimits]:
    """What the stack gives each team. Raises CloudError, RosterUnreadError."""
    roster = store.newest(accounting.ROSTER)
    return accounting.limits_of(roster.content) if roster else {}


def kept_records(store: Store) -> JobRecords | None:
    """What the controller before this one wrote of all jobs; a damaged one is none. Raises CloudError."""
    try:
        stored = store.newest(job_records.JOBS, job_records.LONGEST)
        return job_records.records_of(stored.content) if stored else None
    except CloudError as error:
        # S3 says "denied" of what is not there to a role that may not list
        if error.code not in (*DENIED, "Malformed"):
            raise
        LOG.info("event=queue-books-new reason=%r", str(error))
        return None


def keep_accounts(store: Store, kept: KeptAccounts, tried: set[str], ask: slurm.Run = slurm.run) -> bool:
    """Let each user work for their team, and keep what the database holds; whether both could be done.

    Neither waits for the other: without a dump MariaDB's log on the shared homes grows for ever.

    Args:
        kept: where that outlives this controller.
        tried: as of ``find_users``.
    """
    registered = _done("queue-accounts-failed", lambda: _register_users(store, tried, ask))
    return _done("queue-accounting-not-kept", lambda: _keep_database(kept)) and registered


def _done(event: str, step: Callable[[], None]) -> bool:
    """Whether a step could be done; the log says why not. Nothing that it raises goes any further."""
    try:
        step()
    except (InstanceError, OSError) as error:
        LOG.warning("event=%s reason=%r", event, str(error))
        return False
    except Exception:  # a fault of ours: no job's content may end the watch
        LOG.exception("event=%s reason=unknown", event)
        return False
    return True


def _register_users(store: Store, tried: set[str], ask: slurm.Run) -> None:
    """Raises InstanceError, OSError: not all of them are."""
    known = slurm.associations(ask)
    roster = store.newest(accounting.ROSTER)
    teams = accounting.teams_of(roster.content) if roster else {}
    there = {name: team for name, team in teams.items() if has_account(name)}
    limits = accounting.limits_of(roster.content) if roster else {}
    qualities = accounting.qualities(slurm.preempted(ask))
    for words in (*qualities, *accounting.shares(there, known, limits)):
        slurm.change_accounts(words, ask)
        LOG.info("event=queue-account-changed change=%r", " ".join(words))
    find_users(there, tried, ask)
    if roster:
        part_with_leavers(roster.content, known, ask)


def part_with_leavers(
    roster: Mapping[str, Any], known: Iterable[slurm.Association], ask: slurm.Run = slurm.run
) -> None:
    """End the jobs of those whom the roster names no more, and let Slurm forget them.

    A job may hand itself in again as it ends: so first Slurm takes none of theirs. It forgets who has none.

    Raises:
        SlurmError, RosterUnreadError: what is left is done at the next look.
    """
    jobs = accounting.leavers_jobs(slurm.jobs(ask).jobs, accounting.numbers_of(roster))
    for words in accounting.partings(accounting.teams_of(roster), known, have_jobs=bool(jobs)):
        slurm.change_accounts(words, ask)
        LOG.info("event=queue-account-changed change=%r", " ".join(words))
    for job in jobs:
        slurm.cancel(job, saves=False, ask=ask)
        LOG.info("event=queue-leaver-job-cancelled job=%s", job)


def _keep_database(kept: KeptAccounts) -> None:
    """Raises DatabaseError, OSError: the dump before stays, with the log since."""
    if database.keep(kept, time.time()):
        LOG.info("event=queue-accounting-kept file=%s", kept.dump)


def has_account(user: str) -> bool:
    """Whether this instance has made the user's account."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def find_users(there: Iterable[str], tried: set[str], ask: slurm.Run = slurm.run) -> None:
    """Let slurmctld know users whom it missed.

    It looks for an account once, when it reads who works for which team, and does not hear of a user who is
    registered while it starts; their jobs have neither team nor share. ``scontrol reconfigure`` finds the
    account, not the user's team, nor the jobs that wait; a new start does.

    Args:
        there: users who have an account on this instance now: so one start finds them.
        tried: those for whom it was started anew and whom it has not found since; kept up to date.

    Raises:
        SlurmError: slurmctld does not answer.
    """
    missed = {*there} - slurm.known_users(ask)
    tried &= missed
    if missed - tried:
        slurm.start_anew(ask)
        LOG.info("event=queue-started-anew users=%s", ",".join(sorted(missed - tried)))
        tried |= missed


def poll(watching: ControllerWatch, now: datetime) -> bool:
    """One look of many; whether it could be done.

    Whatever one fails by, another comes: the mover raises its alarm where the controller has said nothing of
    the queue for a while.
    """
    return _done("queue-look-failed", lambda: watching.once(now))


def watch() -> None:
    """Look until systemd ends it; raises InstanceError where it cannot begin."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    store, states = _store(instance), cloud.of(instance).states

    def policy() -> dict[str, Any] | None:
        stored = store.newest(POLICY)
        return stored.content if stored else None

    def configured(pools: Mapping[str, QueuePool]) -> bool:
        return lay(cluster_of(instance.stack, queue.address, pools), FOLDER)

    watching = ControllerWatch(
        policy,
        states,
        lambda content: store.put(QUEUE, content),
        configured,
        lambda content: store.put(job_records.JOBS, content),
        kept_records(store),
        limits=lambda: limits_of(store),
    )
    accounts_at_s, tried = float("-inf"), set[str]()
    while True:
        poll(watching, datetime.now(UTC))
        kept = accounting.kept_of(instance.stack)
        if time.monotonic() - accounts_at_s >= ACCOUNTS_EVERY_S and keep_accounts(store, kept, tried):
            accounts_at_s = time.monotonic()
        time.sleep(LOOK_EVERY_S)


def wait_for_accounts(
    address: str,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    connect: Callable[..., socket.socket] = socket.create_connection,
) -> bool:
    """Wait until slurmdbd answers, which a new controller fills first; whether it does.

    slurmctld that starts before it counts by what it remembers of the accounts. Jobs wait for neither long:
    without slurmdbd the queue works all the same.
    """
    until = clock() + ACCOUNTS_WAIT_S
    while True:
        try:
            connect((address, DATABASE_PORT), timeout=ACCOUNTS_PAUSE_S).close()
        except OSError as error:
            if clock() >= until:
                LOG.warning("event=queue-accounts-away reason=%r", str(error))
                return False
            pause(ACCOUNTS_PAUSE_S)
        else:
            return True


def wait() -> None:
    """As ``wait_for_accounts``, on this controller; raises InstanceError."""
    wait_for_accounts(queue_file.load(queue_file.path()).address)


def main(words: list[str]) -> int:
    """Exit status for the unit."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    programs = {"prepare": prepare, "wait": wait, "watch": watch}
    if len(words) != 1 or words[0] not in programs:
        LOG.error("event=usage words=%r allowed=%r", words, ", ".join(programs))
        return 2
    try:
        programs[words[0]]()
    except (InstanceError, OSError) as error:
        LOG.error("event=queue-controller-failed reason=%r", str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
