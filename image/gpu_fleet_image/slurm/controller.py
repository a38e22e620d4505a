"""``python -m gpu_fleet_image.slurm.controller``: the controller's programs beside slurmctld.

``prepare`` writes munge's key and Slurm's configuration; ``wait`` waits for slurmdbd. ``watch`` keeps the
partitions in line with the stack's policy, reports the demand for instances to the mover, and removes nodes
whose instances are gone, so that their jobs continue elsewhere at once instead of after slurmd's timeout.
"""

import logging
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from gpu_fleet_image.core import instance_file, job_use, keys, paths, queue_file
from gpu_fleet_image.core.errors import CloudError, InstanceError
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.job_use import DayUse
from gpu_fleet_image.core.keys import POLICY
from gpu_fleet_image.core.queue_errors import NotReadyError, SlurmError
from gpu_fleet_image.core.queue_need import QUEUE, to_json
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.slurm import (
    accounting,
    cloud,
    configuration,
    database,
    folders,
    job_records,
    munge,
    slurm,
)
from gpu_fleet_image.slurm.accounting import TeamLimits
from gpu_fleet_image.slurm.answers import JobList, ListedJob
from gpu_fleet_image.slurm.configuration import DATABASE_PORT, Cluster
from gpu_fleet_image.slurm.database import KeptAccounts
from gpu_fleet_image.slurm.demand import QueueDemand, needs
from gpu_fleet_image.slurm.exclusion import KeptAway
from gpu_fleet_image.slurm.job_records import JobRecords
from gpu_fleet_image.slurm.refusals import Refusals, described
from gpu_fleet_image.slurm.sizes import QueuePool, pools_of
from gpu_fleet_image.slurm.use_record import UseRecord

FOLDER = Path("/etc/slurm")
# In Debian's slurm-wlm-basic-plugins; slurmctld does not start if a named plugin is missing.
LIBRARIES, SUBMIT_PLUGIN = Path("/usr/lib"), "*/slurm-wlm/job_submit_lua.so"
# 22.05 has none of these. It calls GPUs otherwise than versions that have them, which refuse its name.
PARSERS = "*/slurm-wlm/data_parser_*.so"
LOOK_EVERY_S = 15.0
ACCOUNTS_EVERY_S = 60.0
# systemd allows each command before the start of slurmctld 90 s
ACCOUNTS_WAIT_S, ACCOUNTS_PAUSE_S = 60.0, 1.0
LIVING = ("pending", "running")
# Polls in a row in which the cloud does not know an instance; one may be an answer from before it started.
LOOKS_BEFORE_GONE = 2
# slurmctld 22.05 crashes with a segmentation fault if a node is deleted while it still tries to reach it.
FORGET_AFTER = timedelta(minutes=5)
LONGEST_GROWTH = 1 << 20  # bytes of the mover's report
LOG = logging.getLogger(__name__)
Read = TypeVar("Read")


def cluster_of(stack: str, address: str, pools: Mapping[str, QueuePool]) -> Cluster:
    """Return the settings of this controller's queue."""
    state = str(configuration.state_of(stack))
    memory = {name: pool.size.memory_per_gpu for name, pool in sorted(pools.items())}
    has_lua, named = any(LIBRARIES.glob(SUBMIT_PLUGIN)), gpus_named(LIBRARIES, PARSERS)
    drained = frozenset(name for name, pool in pools.items() if pool.most == 0)
    return Cluster(stack, socket.gethostname(), address, memory, state, has_lua, named, drained)


def gpus_named(libraries: Path, parsers: str) -> str:
    """Return the name of GPUs in a job, by the version of Slurm whose plugins are in these libraries."""
    return "gres/gpu" if any(libraries.glob(parsers)) else "gres:gpu"


def lay(cluster: Cluster, folder: Path) -> bool:
    """Write the configuration; return whether it changed."""
    texts = {
        "slurm.conf": configuration.slurm_conf(cluster),
        "gres.conf": configuration.gres_conf(),
        "cgroup.conf": configuration.cgroup_conf(),
        "job_submit.lua": configuration.job_submit(cluster.gpus_named),
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
    """The controller's repeated poll.

    Attributes:
        policy: returns the stack's policy; None if it is not there.
        states: returns instances' states by their ids, of those that the cloud still knows.
        say: writes the demand that the mover reads.
        configured: writes the configuration of these pools; returns whether it changed.
        limits: returns each team's limits.
        use: records the jobs' time for chargeback; None for no record.
        refused: Slurm's answers to the changes of accounts that it refused last.
    """

    policy: Callable[[], dict[str, Any] | None]
    states: Callable[[list[str]], dict[str, str]]
    say: Callable[[dict[str, Any]], None]
    configured: Callable[[Mapping[str, QueuePool]], bool]
    keep: Callable[[dict[str, Any]], None]
    written: JobRecords | None = None
    ask: slurm.Run = slurm.run
    limits: Callable[[], Mapping[str, TeamLimits]] = dict
    use: UseRecord | None = None
    refused: list[str] = field(default_factory=list)
    _missed: dict[str, int] = field(default_factory=dict)
    _gone_since: dict[str, datetime] = field(default_factory=dict)
    _unread: bool = False  # slurmctld has not read the latest configuration yet
    _demand: QueueDemand | None = None  # of the last poll that could count it

    def __post_init__(self) -> None:
        self._refusals, self._kept_away = Refusals(self._ask), KeptAway(self._ask)

    def _ask(self, words: Sequence[str]) -> str:
        return self.ask(words)

    def once(self, now: datetime) -> None:
        """Poll once; the jobs' time counts also while the bucket or the cloud does not answer.

        Raises:
            CloudError, SlurmError: some input could not be read; nothing was decided.
        """
        try:
            seen = self._look(now)
        except SlurmError:
            raise  # nobody knows which jobs run
        except InstanceError:
            self._note(slurm.jobs(self.ask).jobs, slurm.nodes(self.ask), now)
            raise
        if seen is not None:
            self._note(*seen, now)

    def _look(self, now: datetime) -> tuple[Sequence[ListedJob], Sequence[slurm.Node]] | None:
        """Act on the nodes, and return the jobs and nodes; None after Slurm began anew."""
        policy = self.policy()
        pools = pools_of(policy) if policy else {}
        teams = self.limits()
        self._unread = bool(pools and self.configured(pools)) or self._unread
        if self._unread:
            slurm.start_anew(self.ask)
            self._unread = False
            LOG.info("event=queue-reconfigured pools=%s", ",".join(pools))
            return None  # the next poll sees the nodes
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
        most = {name: pool.most for name, pool in pools.items()}
        excluded = self._kept_away.update(said.jobs, nodes, left, most)
        if pools:
            self._count(left, said, pools, teams, excluded=excluded, now=now)
        else:
            self._demand = None
        return said.jobs, nodes

    def _note(self, jobs: Sequence[ListedJob], nodes: Iterable[slurm.Node], now: datetime) -> None:
        """Record the jobs for users, and their time for chargeback; raises CloudError, and loses nothing."""
        self.written = job_records.after(self.written, described(jobs, self._demand), now)
        try:
            self.keep(job_records.to_json(self.written))
        finally:
            if self.use is not None:
                self.use.note(jobs, [node.name for node in nodes], now)

    def _count(
        self,
        nodes: list[slurm.Node],
        said: JobList,
        pools: Mapping[str, QueuePool],
        teams: Mapping[str, TeamLimits],
        *,
        excluded: Mapping[str, Sequence[str]],
        now: datetime,
    ) -> None:
        """Count what the jobs need; report it to the mover, and notify jobs why no instance would help."""
        self._refusals.judge(said.jobs, nodes, excluded)
        demand = needs(
            nodes,
            said.jobs,
            pools,
            now,
            excluded=excluded,
            limits={name: team.max_gpus for name, team in teams.items() if team.max_gpus is not None},
            given_up=self._refusals.given_up,
            frozen={name: team.frozen for name, team in teams.items() if team.frozen},
            roomy=self._demand.roomy if self._demand else {},
        )
        self._demand = demand
        self.say(to_json(demand.needs, now, said.unread, self.refused))
        self._refusals.say(said.jobs, nodes, excluded, demand, now)

    def _part_with(self, node: slurm.Node, why: str, now: datetime) -> None:
        """Put a node down, later delete it; one that Slurm keeps, say in a reservation, stops no other."""
        try:
            if "DOWN" not in node.flags:
                slurm.give_up(node.name, why, self.ask)
                LOG.info("event=queue-node-down node=%s reason=%r", node.name, why)
            elif not node.flags & slurm.BUSY_FLAGS and now - self._gone_since[node.name] >= FORGET_AFTER:
                slurm.forget(node.name, self.ask)
                LOG.info("event=queue-node-forgotten node=%s", node.name)
        except SlurmError as error:
            LOG.warning("event=queue-node-kept node=%s reason=%r", node.name, str(error))

    def _gone(self, nodes: Iterable[slurm.Node]) -> dict[str, str]:
        """Return nodes whose instances no longer run -> why.

        A state that the cloud does not report is not gone.
        """
        names = [node.name for node in nodes]
        states = self.states(names) if names else {}
        self._missed = {name: self._missed.get(name, 0) + 1 for name in names if name not in states}
        gone = {name: f"instance is {state}" for name, state in states.items() if state not in LIVING}
        lost = [name for name, looks in self._missed.items() if looks >= LOOKS_BEFORE_GONE]
        return gone | dict.fromkeys(lost, "instance is gone")


def prepare() -> None:
    """Write what slurmctld needs; raises InstanceError, OSError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    if not os.path.ismount(configuration.HOMES):
        raise NotReadyError(
            f"{configuration.HOMES} is not mounted: the queue's state would be lost with this instance"
        )
    key = cloud.of(instance).key(queue.secret, may_make=True)
    munge.lay(key)
    folders.lay_state(configuration.state_of(instance.stack))
    replace_text(Path(configuration.NODE_GPUS), "")  # gres.conf includes it; a controller has no GPUs
    policy = _store(instance).newest(POLICY)
    pools = pools_of(policy.content) if policy else {}
    if not pools:
        raise NotReadyError(f"{POLICY} of the stack names no pool of the queue")
    lay(cluster_of(instance.stack, queue.address, pools), FOLDER)
    LOG.info("event=queue-controller-prepared pools=%s", ",".join(pools))


def _store(instance: instance_file.InstanceFile) -> Store:
    return cloud.of(instance).store()


def limits_of(store: Store) -> dict[str, TeamLimits]:
    """Return the limits of each team. Raises CloudError, RosterUnreadError."""
    roster = store.newest(keys.ACCOUNTS)
    limits = accounting.limits_of(roster.content) if roster else {}
    for team, why in frozen_teams(store).items():
        limits[team] = replace(limits.get(team, TeamLimits()), frozen=why)
    return limits


def frozen_teams(store: Store) -> dict[str, str]:
    """Return team that starts nothing -> why, in the mover's words; empty without any.

    Raises CloudError, also for a damaged report, which the mover replaces within a minute: until then a
    frozen team stays frozen.
    """
    stored = store.newest(keys.GROWTH, LONGEST_GROWTH)
    return {str(team): str(why) for team, why in stored.content.get("teams", {}).items()} if stored else {}


def kept_records(store: Store) -> JobRecords | None:
    """Return the previous controller's record of all jobs; None if it is damaged. Raises CloudError."""

    def read() -> JobRecords | None:
        stored = store.newest(job_records.JOBS, job_records.LONGEST)
        return job_records.JobRecords.from_json(stored.content, job_records.JOBS) if stored else None

    return _unless_damaged("queue-books-new", read)


def kept_use(store: Store, day: str) -> DayUse | None:
    """Return an earlier controller's record of a day: empty if there is none, None if it is damaged.

    Raises CloudError if the bucket does not answer.
    """
    return _unless_damaged(f"queue-use-unread day={day}", lambda: job_use.load(store, day) or DayUse(day))


def _unless_damaged(event: str, read: Callable[[], Read]) -> Read | None:
    """Return what is read; None if it is damaged, with an error in the log. Raises CloudError."""
    try:
        return read()
    except CloudError as error:
        if error.code != "Malformed":
            raise
        LOG.error("event=%s reason=%r", event, str(error))
        return None


def keep_accounts(
    store: Store,
    kept: KeptAccounts,
    tried: set[str],
    ask: slurm.Run = slurm.run,
    refused: list[str] | None = None,
) -> bool:
    """Assign users to their teams, and back the database up; return whether both succeeded.

    Both are always tried: without a dump MariaDB's log on the shared homes grows without end.

    Args:
        tried: as of ``find_users``.
        refused: gets Slurm's answers to the changes that it refused.
    """
    answers = [] if refused is None else refused
    registered = _done("queue-accounts-failed", lambda: _register_users(store, tried, ask, answers))
    return _done("queue-accounting-not-kept", lambda: _keep_database(kept)) and registered and not answers


def _done(event: str, step: Callable[[], None]) -> bool:
    """Run a step; return whether it succeeded, log any error, and raise nothing."""
    try:
        step()
    except (InstanceError, OSError) as error:
        LOG.warning("event=%s reason=%r", event, str(error))
        return False
    except Exception:  # a defect: no job's content may end the watch
        LOG.exception("event=%s reason=unknown", event)
        return False
    return True


def _register_users(store: Store, tried: set[str], ask: slurm.Run, refused: list[str]) -> None:
    """Register all users, as far as Slurm takes them; raises InstanceError, OSError."""
    known = slurm.associations(ask)
    roster = store.newest(keys.ACCOUNTS)
    teams = accounting.teams_of(roster.content) if roster else {}
    there = {name: team for name, team in teams.items() if has_account(name)}
    limits = limits_of(store)
    qualities = accounting.qualities(slurm.preempted(ask))
    refused.clear()  # not before: what was refused stays so while nobody answers
    refused += accounting.changed((*qualities, *accounting.shares(there, known, limits)), ask)
    find_users(there, tried, ask)
    if roster:
        refused += accounting.part_with_leavers(roster.content, known, ask)


def _keep_database(kept: KeptAccounts) -> None:
    """Back the database up; on DatabaseError or OSError the previous dump stays, with the log since."""
    if database.keep(kept, time.time()):
        LOG.info("event=queue-accounting-kept file=%s", kept.dump)


def has_account(user: str) -> bool:
    """Return whether this instance has the user's account."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def find_users(there: Iterable[str], tried: set[str], ask: slurm.Run = slurm.run) -> None:
    """Make slurmctld recognise users whom it missed.

    It looks an account up once, when it reads the users' teams, and misses a user who is registered while it
    starts; their jobs have neither team nor share. ``scontrol reconfigure`` finds the account, but not the
    user's team nor the waiting jobs; a restart finds all.

    Args:
        there: users who have an account on this instance now, so that one restart finds them.
        tried: users for whom it was restarted and whom it has not found since; updated.

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
    """Poll once; return whether that succeeded.

    A failed poll is followed by another: the mover raises its alarm if the controller has not reported for a
    while.
    """
    return _done("queue-look-failed", lambda: watching.once(now))


def watch() -> None:
    """Poll until systemd stops it; raises InstanceError if it cannot start."""
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
        use=UseRecord(lambda day: kept_use(store, day), store.put),
    )
    accounts_at_s, tried = float("-inf"), set[str]()
    while True:
        poll(watching, datetime.now(UTC))
        kept = accounting.kept_of(instance.stack)
        is_due = time.monotonic() - accounts_at_s >= ACCOUNTS_EVERY_S
        if is_due and keep_accounts(store, kept, tried, refused=watching.refused):
            accounts_at_s = time.monotonic()
        time.sleep(LOOK_EVERY_S)


def wait_for_accounts(
    address: str,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    connect: Callable[..., socket.socket] = socket.create_connection,
) -> bool:
    """Wait until slurmdbd answers, which a new controller restores first; return whether it does.

    A slurmctld that starts earlier uses the accounts in its memory. The wait is short, because the queue
    works without slurmdbd.
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
    """Wait for this controller's slurmdbd; raises InstanceError."""
    wait_for_accounts(queue_file.load(queue_file.path()).address)


def main(words: list[str]) -> int:
    """Run the unit's command; return its exit status."""
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
