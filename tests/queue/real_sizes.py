"""What the queue buys against what runs, with Slurm itself: nodes as large as those of ``size_world``.

The partitions and the way nodes join are the product's; what holds processes to cores and devices that this
computer has not is left out, and so is the accounting.
"""

import logging
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from image.capacity.queue_need import PoolNeed, needs_of
from image.queue import configuration, slurm
from image.queue.answers import PENDING, ListedJob
from image.queue.configuration import Cluster
from image.queue.errors import SlurmError
from tests.queue.size_world import MOST, POOL, SIZE, WORDS, watch_of

PACKAGES = (
    "iproute2",
    "munge",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
    "util-linux",
)
ADDRESS = "10.0.0.1"
# $1: the configuration; the name is the controller's
WORLD = """
set -e
hostname localhost
ip link set lo up
ip link add gf0 type bridge && ip address add 10.0.0.1/24 dev gf0 && ip link set gf0 up
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/munge /run/state /run/spool /run/gpu
touch $(seq -f /run/gpu/nvidia%g 0 7)
chown munge:munge /run/munge
mount --bind "$1" /etc/slurm
setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
slurmctld -c
exec sleep infinity
"""
LEFT_OUT = (
    *("Accounting", "JobAcct", "Priority", "Prolog", "Epilog", "HealthCheck", "TaskProlog", "Preempt"),
    *("ProctrackType", "TaskPlugin", "SlurmUser", "SlurmdSpoolDir", "SlurmdPidFile"),
)
HERE = (
    *("SlurmUser=root", "SlurmdSpoolDir=/run/spool/%n", "SlurmdPidFile=/run/slurmd-%n.pid"),
    *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "PriorityType=priority/basic"),
    *("SlurmdParameters=config_overrides", "DebugFlags=NO_CONF_HASH"),
)
HARDWARE = f"Sockets=1 CoresPerSocket={SIZE.cpus // 2} ThreadsPerCore=2 RealMemory={SIZE.memory}"
HOSTILE = ("--comment=lr=0.1 Restarts=cosine JobId=1 NumNodes=9", "--job-name=a|JobState=x\xff")
LOG = logging.getLogger(__name__)
LOOK_S, START_S, SETTLED, LONGEST_S = 0.5, 20.0, 6, 60.0
# A job that Slurm has not looked at yet is left alone for a while: here it has looked within a second.
AHEAD = timedelta(seconds=30)


@dataclass
class RealPlay:
    """An empty pool, and what is submitted to it.

    Attributes:
        init: process 1 of the namespaces.
        bought: instances, in the order in which they came.
        used: those on which a job has begun.
    """

    folder: Path
    init: int
    bought: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    said: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = watch_of(self.said, self.kept, self.ask)

    def ask(self, words: Sequence[str]) -> str:
        """A command of Slurm's. Raises SlurmError."""
        return slurm.run(["nsenter", f"--target={self.init}", "--all", *words])

    def submit(self, *words: str) -> bool:
        """With options of sbatch; whether Slurm takes it."""
        try:
            self.ask(["sbatch", *HOSTILE, *words, "/etc/slurm/job"])
        except SlurmError as error:
            LOG.info("event=refused words=%r reason=%r", words, str(error))
            return False
        return True

    def jobs(self) -> list[ListedJob]:
        """All of them."""
        return list(slurm.jobs(self.ask).jobs)

    def running(self) -> int:
        """How many jobs, or tasks of arrays, run."""
        return sum(listed.job.state == "RUNNING" for listed in self.jobs())

    def add(self) -> None:
        """Slurm's daemon of one instance more starts, and joins."""
        name = f"i-{len(self.bought)}"
        own = self.folder / f"{name}.conf"
        port = configuration.NODE_PORT + 100 + len(self.bought)
        conf = (self.folder / "slurm.conf").read_text()
        own.write_text(conf.replace(f"SlurmdPort={configuration.NODE_PORT}", f"SlurmdPort={port}"))
        command = configuration.node_command(name, POOL, SIZE.gpus, ADDRESS)
        at = command.index("--conf") + 1
        command = ["slurmd", "-f", f"/etc/slurm/{own.name}", "-Z", "-N", name, "--conf", command[at]]
        self.ask([*command[:-1], f"{command[-1]} {HARDWARE}"])
        self.bought.append(name)
        until = time.monotonic() + START_S
        while name not in {node.name for node in slurm.nodes(self.ask)}:
            assert time.monotonic() < until, f"{name} does not join"
            time.sleep(LOOK_S / 5)

    def settle(self) -> None:
        """Look, buy, and let Slurm start jobs, until nothing has changed for some looks."""
        before: list[Any] = []
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until and (len(before) < SETTLED or any(it != before[0] for it in before)):
            self.watch.once(datetime.now(UTC) + AHEAD)
            need = needs_of(self.said, datetime.now(UTC) + AHEAD).get(POOL, PoolNeed(0, ()))
            for _ in range(need.wanted(MOST) - len(self.bought)):
                self.add()
            time.sleep(LOOK_S)
            self.used |= {node.name for node in slurm.nodes(self.ask) if node.flags & slurm.BUSY_FLAGS}
            states = [(listed.job.id, listed.job.state, listed.job.reason) for listed in self.jobs()]
            before = [*before, (len(self.bought), sorted(states))][-SETTLED:]

    def idle_ones(self) -> set[str]:
        """Instances that no job has ever used."""
        return {*self.bought} - self.used

    def waiting(self) -> dict[str, str]:
        """Job -> why it waits, as users read it."""
        rows = [said["job"] for said in self.kept.get("jobs", ())]
        return {row["id"]: str(row["reason"]) for row in rows if row["state"] == PENDING}


def options_of(words: Mapping[str, object]) -> list[str]:
    """Options of the model as those of a command line."""
    times = {"begin": "now+"}
    named = [(name.replace("_", "-"), times.get(name, ""), value) for name, value in words.items()]
    return [f"--{name}" + f"={prefix}{value}" * (value != "") for name, prefix, value in named]


def schedule(play: RealPlay, seed: int) -> list[str]:
    """Submissions of chance at some moments, as of ``size_world``; what went wrong."""
    dice, handed_in = random.Random(seed), 0
    for _ in range(dice.randint(1, 3)):
        for words in dice.choices(WORDS, k=dice.randint(1, 5)):
            handed_in += play.submit(*options_of(words))
        play.settle()
    play.settle()
    known = {listed.array or listed.job.id for listed in play.jobs()}
    wrongs = [f"{name} was bought in vain" for name in sorted(play.idle_ones())]
    wrongs += [f"{handed_in - len(known)} jobs are lost"] * (len(known) != handed_in)
    ended = [listed.job for listed in play.jobs() if listed.job.state not in (PENDING, "RUNNING")]
    wrongs += [f"job {job.id} is {job.state}" for job in ended]
    # each that runs on one instance has it, where the pool may have one more
    if len(play.bought) < MOST:
        wrongs += [f"job {job} waits: {why}" for job, why in play.waiting().items() if why == "Resources"]
    return wrongs


def lay(folder: Path) -> None:
    """Slurm's configuration: the product's, for this computer."""
    cluster = Cluster("test", "localhost", ADDRESS, {POOL: SIZE.memory // SIZE.gpus}, "/run/state")
    rows = [row for row in configuration.slurm_conf(cluster).splitlines() if not row.startswith(LEFT_OUT)]
    # parts of a job in several start by the second scheduler alone, each half minute by default
    rows = [row + ",bf_interval=1" * row.startswith("SchedulerParameters=") for row in rows]
    folder.mkdir()
    (folder / "slurm.conf").write_text("\n".join([*HERE, *rows]) + "\n")
    (folder / "job_submit.lua").write_text(configuration.job_submit())
    (folder / "job").write_text("#!/bin/sh\nexec sleep 1000\n")
    (folder / "gres.conf").write_text("Name=gpu File=/run/gpu/nvidia[0-7]\n")
    (folder / "cgroup.conf").write_text("ConstrainCores=no\n")


@contextmanager
def real_play(folder: Path) -> Iterator[RealPlay]:
    """Slurm in namespaces of its own, with an empty pool; all of it ends with the block."""
    lay(folder)
    kinds = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child=KILL")
    command = ["unshare", *kinds, "bash", "-c", WORLD, "world", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield RealPlay(folder, _init_of(process, folder / "log"))
    finally:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.wait()


def _init_of(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """Process 1, once slurmctld answers."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError, IndexError, SlurmError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            init = int(children.split()[0])
            # not before it is the last program: the namespaces are complete then
            if Path(f"/proc/{init}/comm").read_text().strip() == "sleep":
                slurm.run(["nsenter", f"--target={init}", "--all", "scontrol", "ping"])
                return init
        time.sleep(0.1)
    raise AssertionError(f"slurmctld does not start: {log.read_text()[-2000:]}")
