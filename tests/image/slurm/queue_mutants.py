"""The queue broken by name, one promise at a time; the schedules must notice each."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu_fleet_image.console.runs import batch
from gpu_fleet_image.controllers.meter import freezer
from gpu_fleet_image.controllers.mover import growth_budget, placement, withdrawals
from gpu_fleet_image.controllers.mover.mover import _Mover
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.instance.agent import listening
from gpu_fleet_image.instance.agent.answers import Act, Seen
from gpu_fleet_image.slurm import (
    configuration,
    controller,
    demand,
    exclusion,
    job_records,
    kept_back,
    sizes,
    slurm,
)
from gpu_fleet_image.slurm.demand import QueueDemand
from gpu_fleet_image.slurm.sizes import Fit, JobRequest, NodeSize, QueuePool
from gpu_fleet_jobs.submitted import queued
from tests.image.slurm.queue_world import QueuePlay
from tests.image.slurm.size_world import play

Broken = Callable[[ExitStack], object]


def of(target: Any, name: str, new: Any) -> Broken:
    """Return a mutant that replaces an attribute of the product."""
    return lambda stack: stack.enter_context(patch.object(target, name, new))


def conf(old: str, new: str) -> Broken:
    """Return a mutant that changes a line of ``slurm.conf``."""
    whole = configuration.slurm_conf

    def other(cluster: configuration.Cluster) -> str:
        text = whole(cluster)
        assert old in text, f"{old} is not in slurm.conf any more: name its new text"
        return text.replace(old, new)

    return of(configuration, "slurm_conf", other)


def script(old: str, new: str) -> Broken:
    """Return a mutant that changes a line of the batch script."""
    whole = batch.script

    def other(job: batch.JobScript) -> str:
        text = whole(job)
        assert old in text, f"{old} is not in the batch script any more: name its new text"
        return text.replace(old, new)

    return of(batch, "script", other)


def program(old: str, new: str) -> Broken:
    """Return a mutant that changes a line of prolog and health check."""
    whole = Path.read_text

    def other(path: Path, *words: Any, **more: Any) -> str:
        text = whole(path, *words, **more)
        return text.replace(old, new) if path.name in {"queue-prolog", "queue-health"} else text

    return of(Path, "read_text", other)


def all_of(*parts: Broken) -> Broken:
    """Return a mutant of several parts: a promise that two parts keep breaks only with both."""

    def broken(stack: ExitStack) -> None:
        for part in parts:
            part(stack)

    return broken


def _free(needs: Callable[..., QueueDemand]) -> Callable[..., QueueDemand]:
    def free(*words: Any, **more: Any) -> QueueDemand:
        counted = needs(*words, **more)
        return replace(
            counted, needs={pool: replace(need, standing=0) for pool, need in counted.needs.items()}
        )

    return free


def _without_memory(self: NodeSize, other: NodeSize) -> bool:
    return self.gpus >= other.gpus and self.cpus >= other.cpus


def _anyhow(request: JobRequest, name: str, pool: QueuePool) -> Fit:
    outcome = sizes.fit(request, name, pool)
    return outcome if isinstance(outcome, Fit) else Fit((pool.size,), 0)


def _never_frozen(self: Any, *words: Any, whole: Any = _Mover._money) -> Any:
    return replace(whole(self, *words), frozen=frozenset())


MUTANTS: dict[str, Broken] = {
    "a job whose node died is not put back": all_of(
        conf("JobRequeue=1", "JobRequeue=0"), script("#SBATCH --requeue", "#SBATCH --no-requeue")
    ),
    "a run that saved is not run again": conf("RequeueExit=85", "RequeueExit=86"),
    "a job that a node refused is held": conf("nohold_on_prolog_fail", "bf_continue"),
    "the queue's state lies on the controller's disk": of(
        configuration, "STATE", Path("/var/lib/gpu-fleet-queue")
    ),
    "the job records begin anew with each controller": of(controller, "kept_records", lambda _: None),
    "the job records forget what Slurm forgets": of(
        job_records, "after", lambda before, jobs, now, whole=job_records.after: whole(None, jobs, now)
    ),
    "one answer without an instance means that it is gone": of(controller, "LOOKS_BEFORE_GONE", 1),
    "nobody looks what became of instances": of(
        controller.ControllerWatch, "_gone", lambda _self, _nodes: {}
    ),
    "a node is deleted as soon as it is down": of(controller, "FORGET_AFTER", timedelta(0)),
    "a job starts again where it failed": of(exclusion, "exclusions", lambda *_: {}),
    "what fails is tried for ever": of(queued, "TRIES", 1000),
    "what fails for good is tried again": of(queued, "NEVER_AGAIN", (0,)),
    "nodes at work serve jobs that wait": of(controller, "needs", _free(demand.needs)),
    "jobs that wait are not counted": of(demand, "_due", lambda *_words: iter(())),
    "instances are counted by the nodes that a job names": of(
        demand, "fit", lambda request, _name, pool: Fit((pool.size,) * request.min_nodes, 0)
    ),
    "memory is not counted": of(NodeSize, "holds", _without_memory),
    "a job for later gets its instances now": of(demand, "LEAD", timedelta(days=3)),
    "a job that no instance can run gets one": of(demand, "fit", _anyhow),
    "what Slurm gave up too early is not released": of(slurm, "release", lambda *_words: None),
    "a job in parts keeps nodes that it cannot use": of(
        kept_back.Outlook, "kept_back", lambda *_words: frozenset()
    ),
    "a node with a notice takes jobs, and is not drained": program("$run/stop", "$run/never"),
    "the sweep ends instances with jobs": all_of(
        program("$run/closed", "$run/never"),
        of(Seen, "why", property(lambda _: "")),
    ),
    "the pool grows past its max": all_of(
        of(PoolNeed, "wanted", lambda self, _most: self.standing + sum(self.jobs)),
        of(growth_budget, "refusal", lambda *_words, **_more: ""),
        of(placement, "_limits", lambda *_words: ""),
    ),
    "money is no limit": of(growth_budget, "too_dear", lambda *_words: ""),
    "a frozen pool grows": all_of(
        of(freezer, "steps", lambda *_words: iter(())), of(_Mover, "_money", _never_frozen)
    ),
    "a group without room is waited for": of(withdrawals, "withdraw", lambda _: None),
    "an idle instance is never terminated": of(listening, "next_act", lambda _: Act.NOTHING),
}


@contextmanager
def alive(name: str) -> Iterator[None]:
    """Break the product by a mutant in the block."""
    with ExitStack() as stack:
        MUTANTS[name](stack)
        yield


def first_to_see(name: str, seeds: range) -> tuple[int, str] | None:
    """Return the first seed whose schedule detects a mutant, and the error; None if none does."""
    with alive(name):
        for seed in seeds:
            if wrongs := play(seed) or QueuePlay(seed).run():
                return seed, wrongs[0]
    return None
