"""Bought instances compared with running jobs: the controller, a model of Slurm, a mover without limits."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.core.queue_need import PoolNeed, needs_of
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.slurm import configuration, controller
from gpu_fleet_image.slurm.configuration import Cluster
from tests.image.slurm.fake_slurm import NEXT_PART, FakeSlurm, Instances, Job, Part, Program, placed_on

POOL, MOST = "train", 4
SIZE = Part(8, 96, 1_000_000)
START = datetime(2026, 3, 2, 8, tzinfo=UTC)
BEAT = timedelta(seconds=15)
BOOT = timedelta(seconds=90)
LONG_S = 4 * 3600.0  # of a job: nobody's instance becomes free for another meanwhile
POLICY = {
    "pools": {
        POOL: {
            "capacity": {
                "queue_gpus": SIZE.gpus,
                "queue_cpus": SIZE.cpus,
                "queue_memory_mib": SIZE.memory,
                "max_size": MOST,
            }
        }
    }
}
AND = ":"  # before the options of a heterogeneous job's next part, as on a command line
NEVER = 0
# Options of sbatch -> instances of 8 GPUs, 96 CPUs and 1 TB; those of `NEVER` run on no number of them.
MATRIX: tuple[tuple[dict[str, object], int], ...] = (
    ({}, 1),
    ({"nodes": 2}, 2),
    ({"nodes": 4}, 4),
    ({"nodes": 5}, NEVER),
    ({"nodes": "2-4"}, 2),
    ({"ntasks": 96}, 1),
    ({"ntasks": 97}, 2),
    ({"ntasks": 384}, 4),
    ({"ntasks": 385}, NEVER),
    ({"ntasks": 200, "overcommit": ""}, 1),
    ({"cpus_per_task": 96}, 1),
    ({"cpus_per_task": 97}, NEVER),
    ({"ntasks": 3, "cpus_per_task": 64}, 2),
    ({"gpus": 1}, 1),
    ({"gpus": 8}, 1),
    ({"gpus": 9}, 2),
    ({"gpus": 16}, 2),
    ({"gpus": 32}, 4),
    ({"gpus": 33}, NEVER),
    ({"gpus": 16, "nodes": 1}, NEVER),
    ({"gpus": 16, "nodes": 4}, 4),
    ({"gpus_per_node": 8}, 1),
    ({"gpus_per_node": 8, "nodes": 3}, 3),
    ({"gpus_per_node": 9}, NEVER),
    ({"gpus_per_task": 1, "ntasks": 16}, 2),
    ({"gpus_per_task": 2, "ntasks": 3}, 1),
    ({"gpus_per_task": 5, "ntasks": 3}, 3),
    ({"gpus_per_task": 9}, NEVER),
    ({"gres": "gpu:2"}, 1),
    ({"gres": "gpu:16"}, NEVER),
    ({"gres": "gpu:a100:2"}, NEVER),
    ({"mem": 1_000_000}, 1),
    ({"mem": 1_000_001}, NEVER),
    ({"mem": 900_000, "nodes": 2}, 2),
    ({"gpus": 2, "mem_per_gpu": 500_000}, 1),
    ({"gpus": 4, "mem_per_gpu": 500_000}, 2),
    ({"gpus": 1, "mem_per_gpu": 1_000_001}, NEVER),
    ({"gpus": 1, "mem": 0, "array": "0-1"}, 2),
    ({"gpus": 1, "exclusive": ""}, 1),
    ({"gpus": 1, "array": "0-7"}, 1),
    ({"gpus": 1, "array": "0-8"}, 2),
    ({"gpus": 3, "array": "0-3%2"}, 1),
    ({"gpus": 8, "array": "0-7%2"}, 2),
    ({"gpus": 1, "mem": 400_000, "array": "0-3"}, 2),
    ({"gpus": 1, "hold": ""}, NEVER),
    ({"gpus": 1, "begin": 172_800}, NEVER),
    ({"gpus": 1, AND: {"gpus": 1}}, 2),
    ({"gpus": 16, AND: {"gpus": 16}}, 4),
    ({"gpus": 16, AND: {"nodes": 3}}, NEVER),
    ({"gpus": 1, AND: {"gpus": 9, "nodes": 1}}, NEVER),
)
WORDS = tuple(words for words, _ in MATRIX)  # of random submissions


def watch_of(
    said: dict[str, Any], kept: dict[str, Any], ask: Callable[[Sequence[str]], str]
) -> controller.ControllerWatch:
    """Return a watch of a Slurm whose instances all run; `said` and `kept` get its reports."""
    return controller.ControllerWatch(
        lambda: POLICY,
        lambda ids: dict.fromkeys(ids, "running"),
        said.update,
        lambda _pools: False,
        kept.update,
        ask=ask,
    )


@dataclass
class Play:
    """An empty pool, and the jobs submitted to it.

    Attributes:
        bought: time of each instance's request.
        used: instances on which a job has begun.
        said: the controller's last report to the mover.
        kept: the controller's last report to users.
    """

    bought: dict[str, datetime] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    said: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def vain(self) -> set[str]:
        """Instances that no job has used."""
        return self.bought.keys() - self.used

    def wanted(self, now: datetime) -> int:
        """Return the number of instances that the controller asks for."""
        age = now - parse_time(self.said["at"])
        return needs_of(self.said, age).get(POOL, PoolNeed(0, ())).wanted(MOST)


@dataclass
class SizePlay(Play, Instances):
    """The pool with the model of Slurm."""

    jobs: list[Job] = field(default_factory=list)
    now: datetime = START

    def __post_init__(self) -> None:
        memory = {POOL: SIZE.memory // SIZE.gpus}
        conf = configuration.slurm_conf(Cluster("test", "host", "10.0.0.4", memory, "/home/state"))
        self.slurm = FakeSlurm(conf, self, lambda _job, status, _node: status, lambda _: False)
        self.slurm.step(self.now)
        self.watch = watch_of(self.said, self.kept, self.slurm.ask)

    def is_alive(self, _name: str) -> bool:
        return True

    def marks(self, _name: str) -> frozenset[str]:
        return frozenset({"ready"})

    def is_bad(self, _name: str) -> bool:
        return False

    def works(self, name: str, *, on: bool) -> None:
        if on:
            self.used.add(name)

    def submit(self, **words: object) -> list[Job]:
        """Submit with options of sbatch, ``_`` for ``-``."""
        made = self.slurm.submit(f"\n{NEXT_PART}\n".join(_scripts(words)), Program(LONG_S))
        self.jobs += made
        return made

    def wait(self, span: timedelta = timedelta(minutes=10)) -> None:
        """Advance the time: the controller polls, the mover buys, instances boot, Slurm starts jobs."""
        until = self.now + span
        while self.now < until:
            self.now += BEAT
            for name, at in self.bought.items():
                if name not in self.slurm.nodes and self.now - at >= BOOT:
                    self.slurm.register(name, POOL, SIZE)
            self.watch.once(self.now)
            for _ in range(self.wanted(self.now) - len(self.bought)):
                self.bought[f"i-{len(self.bought)}"] = self.now
            self.slurm.step(self.now)

    def held(self, job: Job) -> bool:
        """Return whether Slurm has given up a job that its nodes could run, with all its parts."""
        there = [(name, node.size, node.size) for name, node in self.slurm.nodes.items()]
        for part in self.slurm.parts_of(job):
            placed = placed_on(part.options, there, SIZE.memory // SIZE.gpus)
            if placed is None:
                return False
            there = [row for row in there if row[0] not in placed]
        return job.given_up

    def reason(self, job: Job) -> str:
        """Return the reason in `gpu-fleet runs`."""
        return next(str(said["job"]["reason"]) for said in self.kept["jobs"] if said["job"]["id"] == job.id)


def _scripts(words: Mapping[str, Any]) -> Iterator[str]:
    """Yield the script of each part."""
    options = {name.replace("_", "-"): value for name, value in words.items() if name != AND}
    lines = [f"#SBATCH --{name}" + f"={value}" * (value != "") for name, value in options.items()]
    yield "\n".join([f"#SBATCH --partition={POOL}", *lines])
    if AND in words:
        yield from _scripts(words[AND])


def play(seed: int) -> list[str]:
    """Play random submissions; return the errors."""
    dice, played = random.Random(seed), SizePlay()
    for _ in range(dice.randint(1, 3)):
        for words in dice.choices(WORDS, k=dice.randint(1, 5)):
            played.submit(**words)
        played.wait()
    played.wait()
    wrongs = [f"{name} was bought in vain" for name in sorted(played.vain)]
    left = MOST - len(played.bought)
    alone = [job for job in played.jobs if job.state == "PENDING" and left and runs_alone(job)]
    wrongs += [f"job {job.id} ({job.options}) waits, and {left} more may be bought" for job in alone]
    return wrongs + [
        f"job {job.id} is held though its nodes are there" for job in played.jobs if played.held(job)
    ]


def runs_alone(job: Job) -> bool:
    """Return whether one more instance would run a job now."""
    options = job.options
    parts = options.parts(1, SIZE, SIZE.memory // SIZE.gpus)
    is_small = options.nodes == 1 and SIZE.holds(parts[0]) and not options.gpu_type
    return is_small and not job.group and not job.held and not job.at_once and job.begin_at is None
