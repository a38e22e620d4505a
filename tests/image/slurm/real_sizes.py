"""Bought instances compared with running jobs, with Slurm itself: nodes as large as in ``size_world``.

Partitions and the joining of nodes are the product's. The limits to cores and devices are left out, since
this computer does not have them, and so is the accounting.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import configuration, demand, slurm
from gpu_fleet_image.slurm.answers import PENDING, ListedJob
from gpu_fleet_image.slurm.configuration import Cluster
from gpu_fleet_image.slurm.controller import gpus_named
from gpu_fleet_image.slurm.demand import TRIED
from tests.image.slurm.size_world import AND, MOST, POOL, SIZE, Play, watch_of

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
# Of random submissions; 23.11 would buy for some of the matrix (docs/how-to/queue.md).
WORDS: tuple[dict[str, object], ...] = (
    {},
    {"gpus": 1},
    {"gpus": 3},
    {"gpus": 8},
    {"gpus": 16},
    {"gpus": 9},
    {"gpus-per-task": 1, "ntasks": 16},
    {"gpus-per-node": 8, "nodes": 2},
    {"gpus-per-node": 1, "nodes": 2},
    {"gpus": 1, "mem": 400_000},
    {"gpus": 1, "mem": 2_000_000},
    {"gpus": 2, "cpus-per-task": 48},
    {"ntasks": 200, "mem": 1000},
    {"cpus-per-task": 200},
    {"nodes": 5},
    {"gres": "gpu:16"},
    {"gres": "gpu:a100:2"},
    {"gpus": 1, "array": "0-7"},
    {"gpus": 1, "array": "0-7%2"},
    {"gpus": 1, "begin": 172_800},
    {"gpus": 1, "hold": ""},
    {"gpus": 1, "exclusive": ""},
    {"gpus": 1, AND: {"gpus": 1}},
    {"gpus": 8, AND: {"nodes": 2, "exclusive": ""}},
    {"gpus": 1, AND: {"gpus": 8, "nodes": 4, "exclusive": ""}},
)
# A root file system with another Slurm and munge, such as Ubuntu 24.04's; empty for this computer's own.
ROOT = os.environ.get("GPU_FLEET_SLURM_ROOT", "").rstrip("/")
# $1: the configuration, $2: ROOT; the name is the controller's
WORLD = """
set -e
root=$2
hostname localhost
ip link set lo up
ip link add gf0 type bridge && ip address add 10.0.0.1/24 dev gf0 && ip link set gf0 up
[ -z "$root" ] || mount --bind "$root" "$root"  # `ip netns` wants / to be a mount
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
[ -z "$root" ] || { mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys"; }
mkdir -p "$root/run/munge" "$root/run/state" "$root/run/spool" "$root/run/gpu" "$root/etc/slurm"
touch $(seq -f "$root/run/gpu/nvidia%g" 0 7)
mount --bind "$1" "$root/etc/slurm"
exec chroot "${root:-/}" sh -ec '
    chown munge:munge /run/munge
    setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
    slurmctld -c
    exec sleep infinity'
"""
# A node has an address of its own: $1 its name, $2 its link to the controller
ADDRESS_OF = "10.0.0.{}/24"
LINK = """
ip netns add "$1"
ip link add "$2" type veth peer name eth0 netns "$1"
ip link set "$2" master gf0 up
ip -n "$1" address add "$3" dev eth0
ip -n "$1" link set lo up
ip -n "$1" link set eth0 up
"""
# 23.11 reaches no node whose host name another one has. $0: the name, the rest: slurmd
HOST = 'hostname "$0"; exec "$@"'
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
# What users may write that looks like fields, lines or JSON, or a file name of a hundred gigabytes.
HOSTILE = (
    '--comment=lr=0.1 Restarts=cosine JobId=1 NumNodes=9\nJobId=2 JobState=RUNNING "}],"jobs":[]',
    "--job-name=a|JobState=x\xff\n\x1b[2J\u202e'`$(id)`",
    "--mail-user=a@b\n--gpus=8",
    "--wckey=*,x=y",
)
OUTPUT = "%99999999999j"
LOG = logging.getLogger(__name__)
LOOK_S, START_S, SETTLED, LONGEST_S = 0.5, 20.0, 6, 60.0
# A job that Slurm has not tried yet is left alone for a while: here it tries each second, not half minute.
SOONER = {"TRUE_AFTER_S": 0, "TRIED_AFTER_S": 5, "DOUBTED_FOR_S": 8}
DOUBTED = 20  # polls that last longer than that


@dataclass
class RealPlay(Play):
    """The pool with Slurm itself.

    Attributes:
        init: process 1 of the namespaces.
    """

    init: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self.watch = watch_of(self.said, self.kept, self.ask)

    def ask(self, words: Sequence[str]) -> str:
        """Run a command of Slurm. Raises SlurmError."""
        return slurm.run([*_inside(self.init), *words])

    def submit(self, *words: str) -> str:
        """Submit with options of sbatch; return the job's number, empty if Slurm refuses it."""
        try:
            return self.ask(
                ["sbatch", "--parsable", *HOSTILE, f"--output=/run/{OUTPUT}", *words, "/etc/slurm/job"]
            ).strip()
        except SlurmError as error:
            LOG.info("event=refused words=%r reason=%r", words, str(error))
            return ""

    def jobs(self) -> list[ListedJob]:
        """Return all jobs."""
        return list(slurm.jobs(self.ask).jobs)

    def running(self) -> int:
        """Return the number of running jobs and tasks of arrays."""
        return sum(listed.job.state == "RUNNING" for listed in self.jobs())

    def add(self) -> None:
        """Start slurmd of one more instance, which joins."""
        number = len(self.bought)
        name, link = f"i-{number}", f"gf{number + 1}"
        self.ask(["sh", "-ec", LINK, "link", name, link, ADDRESS_OF.format(number + 10)])
        command = configuration.node_command(name, POOL, SIZE.gpus, ADDRESS)
        at = command.index("--conf") + 1
        slurmd = ["slurmd", "-Z", "-N", name, "--conf", f"{command[at]} {HARDWARE}"]
        place = ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c", HOST]
        self.ask([*place, name, *slurmd])
        self.bought[name] = datetime.now(UTC)
        until = time.monotonic() + START_S
        while name not in {node.name for node in slurm.nodes(self.ask)}:
            assert time.monotonic() < until, f"{name} does not join"
            time.sleep(LOOK_S / 5)

    def asked(self) -> int:
        """Poll; return the number of instances that the controller asks for."""
        self.watch.once(datetime.now(UTC))
        return self.wanted(datetime.now(UTC))

    def settle(self) -> None:
        """Poll, buy, and let Slurm start jobs, until nothing has changed for some polls.

        More where the pool may yet get an instance for a job that Slurm found no room for.
        """
        before: list[Any] = []
        until, least = time.monotonic() + LONGEST_S, SETTLED
        while time.monotonic() < until and (len(before) < least or any(it != before[0] for it in before)):
            for _ in range(self.asked() - len(self.bought)):
                self.add()
            time.sleep(LOOK_S)
            self.used |= {node.name for node in slurm.nodes(self.ask) if node.flags & slurm.BUSY_FLAGS}
            states = [(listed.job.id, listed.job.state, listed.job.reason) for listed in self.jobs()]
            is_doubted = len(self.bought) < MOST and any(reason == TRIED for *_, reason in states)
            least = DOUBTED if is_doubted else SETTLED
            before = [*before, (len(self.bought), sorted(states))][-least:]

    def waiting(self, most: int = 99) -> dict[str, str]:
        """Return job -> reason for users, of waiting jobs that need at most `most` instances."""
        rows = [said["job"] for said in self.kept.get("jobs", ()) if said["job"]["nodes"] <= most]
        return {row["id"]: str(row["reason"]) for row in rows if row["state"] == PENDING}


def options_of(words: Mapping[str, Any]) -> list[str]:
    """Return options of the model as command-line options."""
    times = {"begin": "now+"}
    named = [
        (name.replace("_", "-"), times.get(name, ""), value) for name, value in words.items() if name != AND
    ]
    options = [f"--{name}" + f"={prefix}{value}" * (value != "") for name, prefix, value in named]
    return [*options, *([AND, *options_of(words[AND])] if AND in words else [])]


def schedule(play: RealPlay, seed: int) -> list[str]:
    """Play random submissions, like ``size_world``; return the errors."""
    dice, handed_in = random.Random(seed), set[str]()
    for _ in range(dice.randint(1, 3)):
        for words in dice.choices(WORDS, k=dice.randint(1, 5)):
            handed_in.add(play.submit(*options_of(words)))
        play.settle()
    play.settle()
    # Slurm lists for a while what it refused, as failed
    jobs = [job for job in play.jobs() if (job.array or job.job.id) in handed_in]
    wrongs = [f"{name} was bought in vain" for name in sorted(play.vain)]
    wrongs += [f"job {job} is lost" for job in handed_in - {"", *(it.array or it.job.id for it in jobs)}]
    wrongs += [
        f"job {it.job.id} is {it.job.state}" for it in jobs if it.job.state not in (PENDING, "RUNNING")
    ]
    # each that runs on one instance has it, where the pool may have one more
    alone = {it.job.id for it in jobs if not it.group and len(play.bought) < MOST}
    waiting = play.waiting(1).items()
    return wrongs + [
        f"job {job} waits: {why}" for job, why in waiting if (why, job in alone) == ("Resources", True)
    ]


def lay(folder: Path) -> None:
    """Write the product's configuration of Slurm, adapted to this computer."""
    cluster = Cluster("test", "localhost", ADDRESS, {POOL: SIZE.memory // SIZE.gpus}, "/run/state")
    rows = [row for row in configuration.slurm_conf(cluster).splitlines() if not row.startswith(LEFT_OUT)]
    # parts of a job in several start by the second scheduler alone, each half minute by default
    rows = [row + ",bf_interval=1" * row.startswith("SchedulerParameters=") for row in rows]
    folder.mkdir()
    (folder / "slurm.conf").write_text("\n".join([*HERE, *rows]) + "\n")
    named = gpus_named(Path(f"{ROOT}/usr/lib"), "**/data_parser_*.so")
    (folder / "job_submit.lua").write_text(configuration.job_submit(named))
    (folder / "job").write_text("#!/bin/sh\nexec sleep 1000\n")
    (folder / "gres.conf").write_text("Name=gpu File=/run/gpu/nvidia[0-7]\n")
    (folder / "cgroup.conf").write_text("ConstrainCores=no\n")


@contextmanager
def real_play(folder: Path) -> Iterator[RealPlay]:
    """Run Slurm in its own namespaces, with an empty pool, until the end of the block."""
    lay(folder)
    kinds = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child=KILL")
    command = ["unshare", *kinds, "bash", "-c", WORLD, "world", str(folder), ROOT]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with patch.multiple(demand, **SOONER):
            yield RealPlay(init=_init_of(process, folder / "log"))
    finally:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.wait()


def _inside(init: int) -> list[str]:
    """Return the beginning of a command in the namespaces and the root file system of a process."""
    return ["nsenter", f"--target={init}", "--all", "--root", "--wdns=/"]


def _init_of(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """Return process 1, once slurmctld answers."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError, IndexError, SlurmError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            init = int(children.split()[0])
            # not before it is the last program: the namespaces are complete then
            if Path(f"/proc/{init}/comm").read_text().strip() == "sleep":
                slurm.run([*_inside(init), "scontrol", "ping"])
                return init
        time.sleep(0.1)
    raise AssertionError(f"slurmctld does not start: {log.read_text()[-2000:]}")
