"""Model of Slurm by its manuals, without a process, driven by the product's own files.

It reads its settings from the product's ``slurm.conf`` and its jobs from batch scripts. Its prolog and
health check are the product's own files, run by ``sh``. A ``Program`` is the work of a job. Only the engine
knows where its processes are alive; no command of Slurm shows it.
"""

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from gpu_fleet_image.core.queue_errors import SlurmError
from tests.ran import executable

LIBEXEC = Path(__file__).parents[3] / "image/gpu_fleet_image/recipe/rootfs/usr/libexec/gpu-fleet"
OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"})
FORGOTTEN_AFTER = timedelta(seconds=300)  # MinJobAge
# slurmctld 22.05 ends with a segmentation fault where a node is deleted while it still tries to reach it
REACHING_FOR = timedelta(minutes=4)
SAVES_EVERY_S = 120.0
RESTARTS_IN = timedelta(seconds=15)
SECOND = timedelta(seconds=1)
SECOND_EVERY = timedelta(seconds=30)  # bf_interval
HEALTH = "timeout 25 /usr/bin/python3 -I /opt/gpu-fleet/bin/run gpu_fleet_image.instance.gate health"
NEXT_PART = "#SBATCH hetjob"
NUMBERS = ("ntasks", "cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "mem", "mem-per-gpu")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORDED = json.loads(Path(__file__).with_name("squeue_22_05.json").read_text())["jobs"][0]


@cache
def prolog_passes(text: str, marks: frozenset[str]) -> bool:
    """Return whether the product's prolog admits a job on an instance with these files in /run/gpu-fleet."""
    with tempfile.TemporaryDirectory() as folder:
        for name in marks:
            Path(folder, name).touch()
        script = text.replace("/run/gpu-fleet", folder)
        return subprocess.run(["sh", "-c", script], check=False).returncode == 0


@cache
def health_says(text: str, marks: frozenset[str], state: str) -> tuple[tuple[str, ...], ...]:
    """Return the changes that the product's health check asks of Slurm for a node in ``state``.

    A mark ``broken`` holds the result of the GPU check.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in marks:
            Path(folder, name).write_text(name)
        said = Path(folder, "said")
        program = Path(folder, "scontrol")
        executable(
            program,
            f'#!/bin/sh\ncase "$*" in\n*"show node"*) echo {shlex.quote(state)} ;;\n'
            f'*) for word; do printf "%s\\n" "$word"; done >>{said}; echo >>{said} ;;\nesac\n',
        )
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "NODE"}
        look = f"sh -c 'cat {folder}/broken || true'"
        script = text.replace("/run/gpu-fleet", folder).replace(HEALTH, look)
        subprocess.run(["sh", "-c", script], check=True, env=environment)
        blocks = said.read_text().split("\n\n") if said.exists() else []
    return tuple(tuple(block.splitlines()) for block in blocks if block.strip())


@dataclass
class Program:
    """Work of a job.

    Attributes:
        work_s: seconds until it is done.
        errs: number of passing failures, on any node.
        dies_for_good: it fails at once, at every try.
    """

    work_s: float
    errs: int = 0
    dies_for_good: bool = False
    saved_s: float = 0.0


@dataclass(frozen=True)
class Part:
    """Part of a node: GPUs, CPUs and MiB of memory."""

    gpus: int
    cpus: int
    memory: int

    def holds(self, other: "Part") -> bool:
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory >= other.memory


@dataclass(frozen=True)
class Options:
    """Sizes in a submission, by sbatch's names and defaults."""

    nodes: int = 1
    most_nodes: int = 0
    ntasks: int = 0
    cpus_per_task: int = 1
    gpus: int = 0
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    mem: int | None = None
    mem_per_gpu: int = 0
    exclusive: bool = False
    overcommit: bool = False
    gpu_type: str = ""

    @classmethod
    def of(cls, words: dict[str, str]) -> "Options":
        """Parse the options in a script's lines."""
        given: dict[str, Any] = {
            name.replace("-", "_"): int(value) for name, value in words.items() if name in NUMBERS
        }
        least, _, most = words.get("nodes", "1").partition("-")
        kind, _, number = words.get("gres", "gpu:0").removeprefix("gpu:").rpartition(":")
        return cls(
            **{"gpus_per_node": int(number), **given},
            nodes=int(least),
            most_nodes=int(most or (least if "nodes" in words else 0)),
            exclusive="exclusive" in words,
            overcommit="overcommit" in words,
            gpu_type=kind,
        )

    @property
    def tasks(self) -> int:
        return self.ntasks or self.nodes

    def parts(self, number: int, whole: Part, per_gpu: int) -> list[Part]:
        """Return the parts that it takes of `number` nodes, largest first."""
        made = []
        for index in range(number):
            tasks = self.tasks // number + (index < self.tasks % number)
            even = self.gpus // number + (index < self.gpus % number)
            gpus = self.gpus_per_node or max(even, self.gpus_per_task * tasks)
            all_cpus = number if self.overcommit else self.tasks * self.cpus_per_task
            cpus = max(all_cpus // number + (index < all_cpus % number), self.cpus_per_task)
            memory = self.mem or (self.mem_per_gpu or per_gpu) * gpus * (self.mem is None) or whole.memory
            made.append(Part(gpus, cpus + cpus % 2, memory))  # a core is two of the clouds' CPUs
        return made


@dataclass
class Job:
    """One job, or a task of an array.

    Attributes:
        takes: part of each of its nodes.
        array: number of its array; empty for none.
        task: in that array.
        at_once: how many tasks of that array may run at once; 0 for all.
        group: number of the heterogeneous job that it is a part of; empty for none.
        given_up: Slurm holds it, since the present nodes could not run it.
        admin_comment: comment by root.
        comment: as `gpu-fleet submit` writes it; empty for a job of sbatch alone.
        requeues: it may be put back.
        on: its nodes; kept when it has ended.
        tries: (when, nodes) of each start.
        resumed_s: progress of its program when this try began.
        statuses: exit statuses of its program, of each try that ended by itself.
        wishes: its user cancelled it.
        tried_at: when a scheduler last looked at it, or its submission.
    """

    id: str
    name: str
    pool: str
    nodes: int
    comment: str
    requeues: bool
    program: Program
    state: str = "PENDING"
    reason: str = "None"
    on: tuple[str, ...] = ()
    begin_at: datetime | None = None
    ended_at: datetime | None = None
    excluded: tuple[str, ...] = ()
    restarts: int = 0
    held: bool = False
    began_at: datetime | None = None
    options: Options = Options()
    takes: dict[str, Part] = field(default_factory=dict)
    array: str = ""
    task: int = 0
    at_once: int = 0
    group: str = ""
    given_up: bool = False
    admin_comment: str = ""
    submitted_at: datetime = EPOCH
    tried_at: datetime = EPOCH
    resumed_s: float = 0.0
    wishes: bool = False
    tries: list[tuple[datetime, tuple[str, ...]]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@dataclass
class Node:
    """One node.

    Attributes:
        heard_at: time of the last answer of its slurmd.
        size: all of it.
        jobs: the part of each running job.
        completing: the part of each job whose processes may not have ended.
    """

    name: str
    pool: str
    heard_at: datetime
    size: Part
    down: bool = False
    drained: bool = False
    reason: str = ""
    jobs: dict[str, Part] = field(default_factory=dict)
    completing: dict[str, Part] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """State of the node, as scontrol shows it."""
        taken = "ALLOCATED" if self.left.cpus == 0 else "MIXED"
        word = "DOWN" if self.down else taken if self.jobs else "IDLE"
        flags = ["COMPLETING"] * bool(self.completing) + ["DRAIN"] * self.drained
        return "+".join([word, *flags, "DYNAMIC_NORM"])

    @property
    def is_open(self) -> bool:
        """True if a job that fits may begin here."""
        return not (self.down or self.drained)

    @property
    def takes_jobs(self) -> bool:
        """True if a job of any size may begin here."""
        return self.is_open and not self.jobs and not self.completing

    @property
    def left(self) -> Part:
        """Part of the node that no job has."""
        parts = [*self.jobs.values(), *self.completing.values()]
        return Part(
            self.size.gpus - sum(part.gpus for part in parts),
            self.size.cpus - sum(part.cpus for part in parts),
            self.size.memory - sum(part.memory for part in parts),
        )

    def line(self) -> str:
        """Return the line of ``scontrol --oneliner --details show node``."""
        reason = f" Reason={self.reason} [root@2026-03-02T08:00:00]" if self.reason else ""
        size, left = self.size, self.left
        return (
            f"NodeName={self.name} CPUAlloc={size.cpus - left.cpus} CPUTot={size.cpus} "
            f"AvailableFeatures={self.pool} Gres=gpu:{size.gpus} GresUsed=gpu:{size.gpus - left.gpus} "
            f"RealMemory={size.memory} AllocMem={size.memory - left.memory} State={self.state} "
            f"ThreadsPerCore=2 Partitions={self.pool}{reason}"
        )


class Instances(Protocol):
    """Interface of the engine to the instances behind its nodes."""

    def is_alive(self, name: str) -> bool:
        """Return whether the instance runs."""

    def marks(self, name: str) -> frozenset[str]:
        """Return the files in its /run/gpu-fleet."""

    def is_bad(self, name: str) -> bool:
        """Return whether programs fail there."""

    def works(self, name: str, *, on: bool) -> None:
        """Note that processes of a job begin or end there."""


class FakeSlurm:
    """The engine.

    Args:
        conf: the product's ``slurm.conf``.
        instances: behind the nodes.
        ended: (job, status, node to blame) -> exit status of the job's script; the product's own.
        chance: rolls dice.

    Attributes:
        alive: (job, node) -> until when its processes live; None: until the engine ends them.
        wrongs: descriptions of broken promises.
        back_at: time when a stopped slurmctld is back.
    """

    def __init__(
        self,
        conf: str,
        instances: Instances,
        ended: Callable[[Job, int, str], int],
        chance: Callable[[float], bool],
    ) -> None:
        self.instances, self.ended, self.chance = instances, ended, chance
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.alive: dict[tuple[str, str], datetime | None] = {}
        self.down_at: dict[str, datetime] = {}
        self.wrongs: list[str] = []
        self.prolog = (LIBEXEC / "queue-prolog").read_text()
        self.health = (LIBEXEC / "queue-health").read_text()
        self.is_up = True
        self.back_at: datetime | None = None
        self.now = datetime.min.replace(tzinfo=UTC)
        self._numbers = 0
        self._planned: set[str] = set()  # nodes that jobs keep which do not start
        self._second_at = self.now  # the second scheduler's next round
        self.configure(conf)

    def configure(self, conf: str) -> None:
        """Read ``slurm.conf``."""
        settings = dict(re.findall(r"^(\w+)=(.*)$", conf, re.MULTILINE))
        self.state = settings["StateSaveLocation"]
        self._requeues = settings.get("JobRequeue", "1") == "1"
        self._requeue_exits = [int(code) for code in settings.get("RequeueExit", "").split(",") if code]
        self._silent = timedelta(seconds=int(settings["SlurmdTimeout"]))
        self._holds = "nohold_on_prolog_fail" not in settings.get("SchedulerParameters", "")
        self._delay = timedelta(seconds=int(settings["AuthInfo"].partition("cred_expire=")[2] or 120))
        self._per_gpu = {
            pool: int(memory)
            for pool, memory in re.findall(r"^PartitionName=(\S+) .*DefMemPerGPU=(\d+)", conf, re.MULTILINE)
        }

    # what people and the product ask

    def submit(self, text: str, program: Program) -> list[Job]:
        """Submit a script, as sbatch does; return each task of an array and each part of a job in parts.

        ``begin`` is in seconds from now, ``mem`` in MiB.
        """
        if len(parts := text.split(NEXT_PART)) > 1:
            together = [self.submit(part, program)[0] for part in parts]
            for job in together:
                job.group = together[0].id
            return together
        words = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
        requeues = "requeue" in words or (self._requeues and "no-requeue" not in words)
        last, _, at_once = words.get("array", "0-0").partition("-")[2].partition("%")
        made: list[Job] = []
        for task in range(int(last) + 1):
            self._numbers += 1
            job = Job(
                str(self._numbers),
                words.get("job-name", "wrap"),
                words["partition"],
                int(words.get("nodes", "1").partition("-")[0]),
                words.get("comment", ""),
                requeues,
                replace(program),
                options=Options.of(words),
                array=made[0].id if made else str(self._numbers) if "array" in words else "",
                task=task,
                at_once=int(at_once or 0),
                excluded=tuple(filter(None, words.get("exclude", "").split(","))),
                submitted_at=self.now,
                tried_at=self.now,
            )
            if "begin" in words:
                job.begin_at, job.reason = self.now + timedelta(seconds=int(words["begin"])), "BeginTime"
            if "hold" in words:
                job.held, job.reason = True, "JobHeldUser"
            self.jobs[job.id] = job
            made.append(job)
        return made

    def cancel(self, job: Job) -> None:
        """Cancel a job, as scancel does."""
        job.wishes = True
        if job.state in OVER:
            return
        if job.state == "RUNNING":
            self._end_processes(job, SECOND * 5)
        self._over(job, "CANCELLED")

    def ask(self, command: Sequence[str]) -> str:
        """Run a command of Slurm. Raises SlurmError."""
        if not self.is_up:
            raise SlurmError(f"{' '.join(command)}: Unable to contact slurm controller (connect failure)")
        words = [word for word in command if not word.startswith("--")]
        if words == ["scontrol", "show", "nodes"]:
            return "\n".join(node.line() for node in self.nodes.values())
        if list(command) == ["squeue", "--json"]:
            return json.dumps({"meta": {}, "errors": [], "jobs": self._records()})
        if words[:2] == ["scontrol", "update"]:
            self._update(dict(word.split("=", 1) for word in words[2:]))
        elif words[:2] == ["scontrol", "release"]:
            job = self.jobs[words[2]]
            job.given_up, job.reason = False, "None"
        elif words[:2] == ["scontrol", "delete"]:
            self._delete(words[2].removeprefix("nodename="))
        elif words == ["scontrol", "shutdown", "slurmctld"]:
            self.is_up, self.back_at = False, self.now + RESTARTS_IN
        else:
            raise AssertionError(f"the product asked {command}")
        return ""

    def _records(self) -> list[dict[str, Any]]:
        """Return the jobs as 22.05 writes them; tasks of an array that have not begun are one record."""
        jobs = list(self.jobs.values())
        waits = lambda job: job.array and job.state == "PENDING" and not job.tries  # noqa: E731
        heads = {job.array: job for job in reversed(jobs) if waits(job)}
        tasks = {array: sum(1 for job in jobs if waits(job) and job.array == array) for array in heads}
        shown = [job for job in jobs if not waits(job) or heads[job.array] is job]
        return [
            record(
                job, self.now, self._per_gpu.get(job.pool, 0), tasks.get(job.array, 0) if waits(job) else 0
            )
            for job in shown
        ]

    def _update(self, changes: dict[str, str]) -> None:
        if "jobid" in changes:
            self._update_jobs(changes["jobid"], changes)
            return
        node = self.nodes[changes["nodename"]]
        state = changes["state"]
        if state == "down":
            self._down(node, changes["reason"])
        elif state == "drain":
            node.drained, node.reason = True, changes["reason"]
        elif state == "resume":
            node.drained, node.reason = False, ""
        else:
            raise AssertionError(f"no state of ours: {state}")

    def _update_jobs(self, number: str, changes: dict[str, str]) -> None:
        """Change a job, ``50_3`` a task, or all live tasks of an array by its number, as slurmctld does."""
        array, _, task = number.partition("_")
        tasks = [job for job in self.jobs.values() if job.array == array and task in ("", str(job.task))]
        live = [job for job in tasks or [self.jobs.get(number)] if job and job.state not in OVER]
        if not live:
            raise SlurmError("Invalid job id specified")
        refusals = []
        for job in live:
            try:
                self._update_job(job, changes)
            except SlurmError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _update_job(self, job: Job, changes: dict[str, str]) -> None:
        if "comment" in changes:
            job.comment = changes["comment"]
        if "admincomment" in changes:
            job.admin_comment = changes["admincomment"]
        if {"starttime", "excnodelist"} & changes.keys() and job.state != "PENDING":
            raise SlurmError("Job is no longer pending execution")
        if "starttime" in changes:
            job.begin_at = self.now + timedelta(seconds=int(changes["starttime"].partition("+")[2] or 0))
        if "excnodelist" in changes:
            job.excluded = tuple(filter(None, changes["excnodelist"].split(",")))

    def _delete(self, name: str) -> None:
        node = self.nodes[name]
        if node.jobs or node.completing:
            raise SlurmError(f"Node {name} is busy")
        if self.now - self.down_at.get(name, self.now) < REACHING_FOR:
            self.wrongs.append(f"slurmctld crashed: {name} was deleted while it was still reached for")
        del self.nodes[name]

    # what happens by itself

    def register(self, name: str, pool: str, size: Part) -> None:
        """Register an instance, as its slurmd does."""
        self.nodes[name] = Node(name, pool, self.now, size)

    def step(self, now: datetime) -> None:
        """Advance to `now`."""
        self.now = now
        self._processes_end()
        for job in list(self.jobs.values()):
            if job.state == "RUNNING":
                self._work(job)
        if self.back_at is not None and self.back_at <= now:
            self.is_up, self.back_at = True, None
        if not self.is_up:
            return
        for node in self.nodes.values():
            self._hear(node)
        self._schedule()
        for job in [job for job in self.jobs.values() if job.ended_at]:
            if now - (job.ended_at or now) >= FORGOTTEN_AFTER:
                del self.jobs[job.id]

    def _schedule(self) -> None:
        """Let the first scheduler, or each half minute the second one, look at all jobs."""
        if is_second := self.now >= self._second_at:
            self._planned, self._second_at = set(), self.now + SECOND_EVERY
        for job in list(self.jobs.values()):
            if job is (parts := self.parts_of(job))[0]:
                self._start(parts, is_second=is_second)

    def check_health(self) -> None:
        """Run the health check on every node, as slurmd does."""
        for node in self.nodes.values():
            if self.is_up and self.instances.is_alive(node.name):
                state = f"NodeName=NODE State={node.state} x=y Reason={node.reason or 'none'}"
                for words in health_says(self.health, self.instances.marks(node.name), state):
                    self.ask(["scontrol", *(word.replace("NODE", node.name) for word in words)])

    def parts_of(self, job: Job) -> list[Job]:
        """Return a job and all jobs that start together with it."""
        return [other for other in self.jobs.values() if other.group == job.group] if job.group else [job]

    def _may_start(self, job: Job) -> bool:
        waits = job.state == "PENDING" and not job.held and not job.given_up
        is_due = job.begin_at is None or job.begin_at <= self.now
        return waits and is_due and not self._completes(job)

    def _completes(self, job: Job) -> bool:
        return any(job.id in node.completing for node in self.nodes.values())

    def _hear(self, node: Node) -> None:
        if self.instances.is_alive(node.name):
            node.heard_at = self.now
            for job in [job for job in node.completing if (job, node.name) not in self.alive]:
                del node.completing[job]
        elif not node.down and self.now - node.heard_at >= self._silent:
            self._down(node, "Not responding")

    def _processes_end(self) -> None:
        for (job, name), until in list(self.alive.items()):
            if not self.instances.is_alive(name):
                del self.alive[job, name]
            elif until is not None and until <= self.now:
                del self.alive[job, name]
                self.instances.works(name, on=False)

    def _start(self, parts: list[Job], *, is_second: bool) -> None:
        """Start all parts of a job, or none; in 22.05 those before one that does not fit keep their nodes.

        The first scheduler notes that it has looked at a job in parts, and leaves it to the second.
        """
        job, placed = parts[0], dict[str, dict[str, Part]]()
        if len(parts) == 1 and not self._may_start(job):
            return
        for part in parts:
            part.reason = "Resources" if part.reason == "None" else part.reason
            part.tried_at = self.now if self._may_start(part) else part.tried_at
        if len(parts) > 1 and not is_second:
            return
        of_array = [
            other for other in self.jobs.values() if other.array == job.array and other.state == "RUNNING"
        ]
        if job.array and job.at_once and len(of_array) >= job.at_once:
            return
        for part in parts:
            # of 22.05 no two parts of a job share a node
            beside = {name for nodes in placed.values() for name in nodes}
            found = self._place(part, beside) if self._may_start(part) else None
            if found is None:
                self._planned |= beside
                return
            placed[part.id] = found
        chosen = [self.nodes[name] for nodes in placed.values() for name in nodes]
        refusing = [node for node in chosen if self._refuses(node)]
        for node in refusing:
            node.drained, node.reason = True, "Prolog error"
        for part in parts:
            if refusing:
                part.held = self._holds
                part.reason = "launch_failed_requeued_held" if self._holds else "BeginTime"
                self._wait(part)
            else:
                self._begin(part, placed[part.id])

    def _begin(self, job: Job, placed: dict[str, Part]) -> None:
        if twice := [name for (other, name) in self.alive if other == job.id]:
            self.wrongs.append(f"job {job.id} starts while it still works on {', '.join(twice)}")
        job.on, job.takes = tuple(placed), placed
        job.state, job.reason, job.began_at = "RUNNING", "", self.now
        job.resumed_s = job.program.saved_s
        job.tries.append((self.now, job.on))
        for name, part in placed.items():
            self.nodes[name].jobs[job.id] = part
            self.alive[job.id, name] = None
            self.instances.works(name, on=True)

    def _place(self, job: Job, beside: set[str]) -> dict[str, Part] | None:
        """Return its nodes, with the part of each; None if it waits. Hold a job that no node fits.

        Args:
            beside: nodes that it must not get now.
        """
        nodes = [node for node in self.nodes.values() if node.pool == job.pool]
        job.reason = "Priority" if self._planned else "Resources"
        if not nodes:
            job.reason = "PartitionConfig"
            return None
        if len(nodes) < job.options.nodes:
            job.reason = "PartitionNodeLimit"
            return None
        for is_now in (True, False):
            there = [
                (node.name, node.left if is_now else node.size, node.size)
                for node in nodes
                if node.name not in job.excluded
                and ((node.is_open and node.name not in beside | self._planned) or not is_now)
            ]
            placed = placed_on(job.options, there, self._per_gpu.get(job.pool, 0))
            if placed is not None:
                return placed if is_now else None
        job.given_up, job.reason = True, "BadConstraints"
        return None

    def _refuses(self, node: Node) -> bool:
        name = node.name
        return not self.instances.is_alive(name) or not prolog_passes(self.prolog, self.instances.marks(name))

    def _work(self, job: Job) -> None:
        """Advance a try, and end it if it is done."""
        program = job.program
        ran_s = (self.now - (job.began_at or self.now)).total_seconds()
        gone = [name for name in job.on if not self.instances.is_alive(name)]
        if gone:
            # what is left of a run on several nodes breaks down, mostly; where its first node is gone nobody
            # is left to say so
            if job.on[0] not in gone and self.chance(0.1):
                self._ends(job, 1, "-")
            return
        done_s = job.resumed_s + ran_s
        program.saved_s = max(program.saved_s, job.resumed_s + ran_s // SAVES_EVERY_S * SAVES_EVERY_S)
        stopping = [name for name in job.on if "stop" in self.instances.marks(name)]
        bad = [name for name in job.on if self.instances.is_bad(name)]
        if stopping and self.chance(0.5):
            program.saved_s = done_s
            self._ends(job, 85, "-")
        elif program.dies_for_good and ran_s >= SAVES_EVERY_S / 4:
            self._ends(job, 65, "-")
        elif (bad or program.errs) and ran_s >= SAVES_EVERY_S / 2:
            program.errs -= 0 if bad else 1
            self._ends(job, 1, bad[0] if bad else "-")
        elif done_s >= program.work_s:
            program.saved_s = program.work_s
            self._ends(job, 0, "-")

    def _ends(self, job: Job, status: int, blamed: str) -> None:
        """End the script as the product does; Slurm acts by its status, once slurmctld is up."""
        if not self.is_up:
            return
        done = self.ended(job, status, blamed)
        job.statuses.append(status)
        self._end_processes(job, SECOND * 2)
        if done in self._requeue_exits and job.requeues:
            self._put_back(job)
        else:
            self._over(job, "COMPLETED" if done == 0 else "FAILED")

    def _down(self, node: Node, why: str) -> None:
        node.down, node.reason = True, why
        self.down_at.setdefault(node.name, self.now)
        node.completing.clear()
        for name in list(node.jobs):
            job = self.jobs.get(name)
            if job is None or job.state != "RUNNING":
                node.jobs.pop(name, None)
                continue
            # a node that is down is told to end its job, and nobody waits whether it has
            self._end_processes(job, SECOND * 10, slow={node.name: SECOND * 90})
            node.completing.clear()
            if job.requeues:
                self._put_back(job)
            else:
                self._over(job, "NODE_FAIL")

    def _end_processes(self, job: Job, after: timedelta, slow: dict[str, timedelta] | None = None) -> None:
        for name in job.on:
            node = self.nodes.get(name)
            if node is not None:
                node.jobs.pop(job.id, None)
                node.completing[job.id] = job.takes[name]
            if (job.id, name) in self.alive:
                self.alive[job.id, name] = self.now + (slow or {}).get(name, after)

    def _put_back(self, job: Job) -> None:
        job.state, job.on, job.reason = "PENDING", (), "BeginTime"
        job.restarts += 1
        self._wait(job)

    def _wait(self, job: Job) -> None:
        job.begin_at = self.now + self._delay

    def _over(self, job: Job, state: str) -> None:
        job.state, job.ended_at = state, self.now


def placed_on(options: Options, there: list[tuple[str, Part, Part]], per_gpu: int) -> dict[str, Part] | None:
    """Return the fewest of these nodes (name, free part, all of it) on which a job fits; None for none."""
    if options.gpu_type:
        return None
    most = min(len(there), options.most_nodes or len(there))
    for number in range(options.nodes, most + 1):
        placed: dict[str, Part] = {}
        for index in range(number):
            for name, free, whole in there:
                part = options.parts(number, whole, per_gpu)[index]
                takes = whole if options.exclusive else part
                # 22.05 wants the default memory free, also for a job that names less
                least = max(takes.memory, per_gpu * part.gpus * (options.mem is not None))
                enough = free.memory >= least and free.holds(takes)
                if name not in placed and whole.holds(part) and enough:
                    placed[name] = takes
                    break
        if len(placed) == number:
            return placed
    return None


def record(job: Job, now: datetime, per_gpu: int = 0, tasks: int = 0) -> dict[str, Any]:
    """Return a job as ``squeue --json`` of 22.05 writes it.

    Args:
        per_gpu: default memory for each GPU, which Slurm lists of jobs with another too.
        tasks: number of an array's tasks that have not begun.
    """
    options = job.options
    gpus = {
        name: f"gres:gpu:{count}" if count else ""
        for name, count in (("tres_per_job", options.gpus), ("tres_per_task", options.gpus_per_task))
    }
    kind = f"{options.gpu_type}:" if options.gpu_type else ""
    of_node = f"gres:gpu:{kind}{options.gpus_per_node}" if options.gpus_per_node else ""
    memory_of_gpu = options.mem_per_gpu or (per_gpu if any(gpus.values()) or of_node else 0)
    given = sum(part.gpus for part in job.takes.values()) if job.on else 0
    cpus = options.nodes if options.overcommit else options.tasks * options.cpus_per_task
    return {
        **RECORDED,
        **gpus,
        "admin_comment": job.admin_comment,
        "array_job_id": int(job.array or 0),
        "array_max_tasks": job.at_once,
        "array_task_id": job.task if job.array and not tasks else None,
        "array_task_string": f"{job.task}-{job.task + tasks - 1}" + f"%{job.at_once}" * bool(job.at_once)
        if tasks
        else "",
        "comment": job.comment,
        "cpus": cpus,
        "excluded_nodes": ",".join(job.excluded),
        "eligible_time": int((job.begin_at or EPOCH).timestamp()),
        "het_job_id": int(job.group or 0),
        "job_id": int(job.id),
        "job_state": job.state,
        "last_sched_evaluation": int(job.tried_at.timestamp()),
        "max_nodes": options.most_nodes,
        "memory_per_node": options.mem or None,
        "flags": [] if options.mem is None else ["JOB_MEM_SET"],
        "memory_per_tres": f"gpu:{memory_of_gpu}" if memory_of_gpu else "",
        "minimum_cpus_per_node": options.cpus_per_task,
        "name": job.name,
        "node_count": len(job.on) or job.nodes,
        "nodes": ",".join(job.on),
        "partition": job.pool,
        "priority": 0 if job.given_up or job.held else 1,
        "restart_cnt": job.restarts,
        "shared": "none" if options.exclusive else None,
        "standard_output": f"/home/ada/{job.name}.log",
        "state_reason": "BeginTime" if job.begin_at and job.begin_at > now else job.reason or "None",
        "submit_time": int(job.submitted_at.timestamp()),
        "tasks": options.tasks,
        "tres_alloc_str": f"cpu={cpus},gres/gpu={given}" if job.on else "",
        "tres_per_node": of_node,
        "tres_req_str": f"cpu={cpus},node={options.nodes},billing={cpus}",
    }
