"""Slurm as its manuals say it behaves, without a process: what the product's own texts ask of it.

Its settings are read out of the product's ``slurm.conf``, its jobs out of batch scripts, and its prolog and
health check are the product's own files, run by ``sh``. What a job does is a ``Program``; where its processes
are alive is known to the engine alone, and no command of Slurm's tells it.
"""

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from image.queue.errors import SlurmError

LIBEXEC = Path(__file__).parents[2] / "image/rootfs/usr/libexec/gpu-fleet"
OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"})
FORGOTTEN_AFTER = timedelta(seconds=300)  # MinJobAge
# slurmctld 22.05 ends with a segmentation fault where a node is deleted while it still tries to reach it
REACHING_FOR = timedelta(minutes=4)
SAVES_EVERY_S = 120.0
RESTARTS_IN = timedelta(seconds=15)
SECOND = timedelta(seconds=1)
HEALTH = "timeout 25 /usr/bin/python3 -I /opt/gpu-fleet/bin/run image.readiness health"


@cache
def prolog_passes(text: str, marks: frozenset[str]) -> bool:
    """Whether the product's prolog lets a job begin on an instance with these files in /run/gpu-fleet."""
    with tempfile.TemporaryDirectory() as folder:
        for name in marks:
            Path(folder, name).touch()
        script = text.replace("/run/gpu-fleet", folder)
        return subprocess.run(["sh", "-c", script], check=False).returncode == 0


@cache
def health_says(text: str, marks: frozenset[str], state: str) -> tuple[tuple[str, ...], ...]:
    """The changes that the product's health check asks of Slurm; ``state`` is what it says of the node.

    A mark ``broken`` is what the look at the GPUs says.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in marks:
            Path(folder, name).write_text(name)
        said = Path(folder, "said")
        program = Path(folder, "scontrol")
        program.write_text(
            f'#!/bin/sh\ncase "$*" in\n*"show node"*) echo {shlex.quote(state)} ;;\n'
            f'*) for word; do printf "%s\\n" "$word"; done >>{said}; echo >>{said} ;;\nesac\n'
        )
        program.chmod(0o755)
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "NODE"}
        script = text.replace("/run/gpu-fleet", folder).replace(HEALTH, f"cat {folder}/broken || true")
        subprocess.run(["sh", "-c", script], check=True, env=environment)
        blocks = said.read_text().split("\n\n") if said.exists() else []
    return tuple(tuple(block.splitlines()) for block in blocks if block.strip())


@dataclass
class Program:
    """What a job does.

    Attributes:
        work_s: until it is done.
        errs: how often it fails for a reason that may pass, whatever its node.
        dies_for_good: it fails at once, and would again.
    """

    work_s: float
    errs: int = 0
    dies_for_good: bool = False
    saved_s: float = 0.0


@dataclass
class Job:
    """One job.

    Attributes:
        comment: as `gpu-fleet submit` writes it; empty for a job of sbatch alone.
        requeues: it may be put back.
        on: its nodes; kept when it has ended.
        tries: (when, nodes) of each start.
        resumed_s: how far its program was when this try began.
        statuses: of its program, at the end of each try that came to one.
        wishes: its user cancelled it.
    """

    id: str
    name: str
    pool: str
    nodes: int
    comment: str
    requeues: bool
    program: Program
    state: str = "PENDING"
    reason: str = "Resources"
    on: tuple[str, ...] = ()
    begin_at: datetime | None = None
    ended_at: datetime | None = None
    excluded: tuple[str, ...] = ()
    restarts: int = 0
    held: bool = False
    began_at: datetime | None = None
    resumed_s: float = 0.0
    wishes: bool = False
    tries: list[tuple[datetime, tuple[str, ...]]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@dataclass
class Node:
    """One node.

    Attributes:
        heard_at: when its slurmd last answered.
        completing: ids of jobs whose processes are not known to be over.
    """

    name: str
    pool: str
    heard_at: datetime
    down: bool = False
    drained: bool = False
    reason: str = ""
    job: str = ""
    completing: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        """As scontrol shows it."""
        word = "DOWN" if self.down else "ALLOCATED" if self.job else "IDLE"
        flags = ["COMPLETING"] * bool(self.completing) + ["DRAIN"] * self.drained
        return "+".join([word, *flags, "DYNAMIC_NORM"])

    @property
    def takes_jobs(self) -> bool:
        """Whether a job may begin here."""
        return not (self.down or self.drained or self.job or self.completing)

    def line(self) -> str:
        """As ``scontrol --oneliner show node`` prints it."""
        reason = f" Reason={self.reason} [root@2026-03-02T08:00:00]" if self.reason else ""
        return (
            f"NodeName={self.name} AvailableFeatures={self.pool} Gres=gpu:1 State={self.state} "
            f"ThreadsPerCore=1 Partitions={self.pool}{reason}"
        )


class Instances:
    """What the engine needs of the instances behind its nodes."""

    def is_alive(self, name: str) -> bool:
        """Whether it runs."""
        raise NotImplementedError

    def marks(self, name: str) -> frozenset[str]:
        """Files in its /run/gpu-fleet."""
        raise NotImplementedError

    def is_bad(self, name: str) -> bool:
        """Whether programs fail there."""
        raise NotImplementedError

    def works(self, name: str, *, on: bool) -> None:
        """Processes of a job begin or end there."""
        raise NotImplementedError


class FakeSlurm:
    """The engine.

    Args:
        conf: the product's ``slurm.conf``.
        instances: behind the nodes.
        ended: (job, status, node to blame) -> what the job's script ends with; the product's own.
        chance: rolls dice.

    Attributes:
        alive: (job, node) -> until when its processes live; None: until the engine ends them.
        wrongs: promises that were broken, in words.
        back_at: when a slurmctld that was told to end is there again.
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

    # what people and the product ask

    def submit(self, text: str, program: Program) -> Job:
        """What sbatch does with a script."""
        options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
        self._numbers += 1
        requeues = "requeue" in options or (self._requeues and "no-requeue" not in options)
        name, pool = options.get("job-name", "wrap"), options["partition"]
        nodes, comment = int(options.get("nodes", "1")), options.get("comment", "")
        job = Job(str(self._numbers), name, pool, nodes, comment, requeues, program)
        self.jobs[job.id] = job
        return job

    def cancel(self, job: Job) -> None:
        """What scancel does."""
        job.wishes = True
        if job.state in OVER:
            return
        if job.state == "RUNNING":
            self._end_processes(job, SECOND * 5)
        self._over(job, "CANCELLED")

    def ask(self, command: Sequence[str]) -> str:
        """A command of Slurm's. Raises SlurmError."""
        if not self.is_up:
            raise SlurmError(f"{' '.join(command)}: Unable to contact slurm controller (connect failure)")
        words = [word for word in command if not word.startswith("--")]
        if words[:2] == ["scontrol", "show"]:
            return self._show(words[2:])
        if words[0] == "squeue":
            (asked,) = [word.partition("=")[2] for word in command if word.startswith("--format=")]
            waiting = [job for job in self.jobs.values() if job.state == "PENDING"]
            return "".join(self._waiting(job, asked) for job in waiting)
        if words[:2] == ["scontrol", "update"]:
            self._update(dict(word.split("=", 1) for word in words[2:]))
        elif words[:2] == ["scontrol", "delete"]:
            self._delete(words[2].removeprefix("nodename="))
        elif words == ["scontrol", "shutdown", "slurmctld"]:
            self.is_up, self.back_at = False, self.now + RESTARTS_IN
        else:
            raise AssertionError(f"the product asked {command}")
        return ""

    def _show(self, words: list[str]) -> str:
        if words[0] == "nodes":
            return "\n".join(node.line() for node in self.nodes.values())
        if words[0] == "jobs":
            return "\n".join(map(_line, self.jobs.values()))
        return _line(self.jobs[words[1]])

    def _waiting(self, job: Job, asked: str) -> str:
        reason = "BeginTime" if job.begin_at and job.begin_at > self.now else job.reason
        fields = {
            "%i": job.id,
            "%P": job.pool,
            "%D": str(job.nodes),
            "%b": "gres:gpu:1",
            "%a": "",
            "%r": reason,
        }
        return re.sub(r"%[a-zA-Z]", lambda field: fields[field[0]], asked) + "\n"

    def _update(self, changes: dict[str, str]) -> None:
        if "jobid" in changes:
            job = self.jobs.get(changes["jobid"])
            if job is None or job.state in OVER:
                raise SlurmError("Invalid job id specified")
            if "comment" in changes:
                job.comment = changes["comment"]
            if "excnodelist" in changes:
                if job.state != "PENDING":
                    raise SlurmError("Job is no longer pending execution")
                job.excluded = tuple(filter(None, changes["excnodelist"].split(",")))
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

    def _delete(self, name: str) -> None:
        node = self.nodes[name]
        if node.job or node.completing:
            raise SlurmError(f"Node {name} is busy")
        if self.now - self.down_at.get(name, self.now) < REACHING_FOR:
            self.wrongs.append(f"slurmctld crashed: {name} was deleted while it was still reached for")
        del self.nodes[name]

    # what happens by itself

    def register(self, name: str, pool: str) -> None:
        """slurmd of an instance says that it is there."""
        self.nodes[name] = Node(name, pool, self.now)

    def step(self, now: datetime) -> None:
        """Some seconds pass."""
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
        for job in list(self.jobs.values()):
            waits = job.state == "PENDING" and not job.held
            if waits and (job.begin_at is None or job.begin_at <= now) and not self._completes(job):
                self._start(job)
        for job in [job for job in self.jobs.values() if job.ended_at]:
            if now - (job.ended_at or now) >= FORGOTTEN_AFTER:
                del self.jobs[job.id]

    def check_health(self) -> None:
        """Every node's slurmd runs the health check."""
        for node in self.nodes.values():
            if self.is_up and self.instances.is_alive(node.name):
                state = f"NodeName=NODE State={node.state} x=y Reason={node.reason or 'none'}"
                for words in health_says(self.health, self.instances.marks(node.name), state):
                    self.ask(["scontrol", *(word.replace("NODE", node.name) for word in words)])

    def _completes(self, job: Job) -> bool:
        return any(job.id in node.completing for node in self.nodes.values())

    def _hear(self, node: Node) -> None:
        if self.instances.is_alive(node.name):
            node.heard_at = self.now
            node.completing -= {job for job in node.completing if (job, node.name) not in self.alive}
        elif not node.down and self.now - node.heard_at >= self._silent:
            self._down(node, "Not responding")

    def _processes_end(self) -> None:
        for (job, name), until in list(self.alive.items()):
            if not self.instances.is_alive(name):
                del self.alive[job, name]
            elif until is not None and until <= self.now:
                del self.alive[job, name]
                self.instances.works(name, on=False)

    def _start(self, job: Job) -> None:
        free = [
            node
            for node in self.nodes.values()
            if node.pool == job.pool and node.takes_jobs and node.name not in job.excluded
        ]
        if len(free) < job.nodes:
            return
        chosen = free[: job.nodes]
        refusing = [node for node in chosen if self._refuses(node)]
        for node in refusing:
            node.drained, node.reason = True, "Prolog error"
        if refusing:
            job.held, job.reason = self._holds, "launch_failed_requeued_held" if self._holds else "BeginTime"
            self._wait(job)
            return
        if twice := [name for (other, name) in self.alive if other == job.id]:
            self.wrongs.append(f"job {job.id} starts while it still works on {', '.join(twice)}")
        job.on = tuple(node.name for node in chosen)
        job.state, job.reason, job.began_at = "RUNNING", "", self.now
        job.resumed_s = job.program.saved_s
        job.tries.append((self.now, job.on))
        for node in chosen:
            node.job = job.id
            self.alive[job.id, node.name] = None
            self.instances.works(node.name, on=True)

    def _refuses(self, node: Node) -> bool:
        name = node.name
        return not self.instances.is_alive(name) or not prolog_passes(self.prolog, self.instances.marks(name))

    def _work(self, job: Job) -> None:
        """How far a try is by now, and whether it ends."""
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
        """The script ends, as the product makes it end; Slurm goes by its status, once it can hear."""
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
        job = self.jobs.get(node.job)
        if job is None or job.state != "RUNNING":
            node.job = ""
            return
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
                node.job = ""
                node.completing.add(job.id)
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


def _line(job: Job) -> str:
    on = ",".join(job.on) or "(null)"
    return (
        f"JobId={job.id} JobName={job.name} UserId=ada(5001) JobState={job.state} "
        f"Reason={job.reason or 'None'} Restarts={job.restarts} Partition={job.pool} NodeList={on} "
        f"NumNodes={job.nodes}-1 Comment={job.comment or '(null)'} StdOut=/home/ada/{job.name}.log Power="
    )
