"""Which nodes a job of `gpu-fleet submit` is kept away from: those on which it failed. Pure.

A try that failed for a reason that may pass leaves the instance in the job's comment
(gpu_fleet/submitted/queued.py). Only a job that waits can be changed: the controller does so at its look,
while the job waits for its next try.
"""

import re
from collections.abc import Iterable, Mapping

from image.queue.answers import OURS, Job
from image.queue.slurm import Node

COMMENT = OURS  # of the jobs that `gpu-fleet submit` made
FAILED_ON = re.compile(rf"{COMMENT}:failed-on=(\S+)")


def is_submitted(comment: str) -> bool:
    """Whether a job came from `gpu-fleet submit`."""
    return comment.partition(":")[0] == COMMENT


def failed_on(comment: str) -> tuple[str, ...]:
    """Instances on which a job failed, the newest first, each once."""
    named = FAILED_ON.fullmatch(comment)
    return tuple(dict.fromkeys(reversed(named[1].split(",")))) if named else ()


def exclusions(
    jobs: Iterable[Job], nodes: Iterable[Node], most: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Job -> the nodes that it is to be kept away from, of each that waits and has failed somewhere.

    Never so many that the rest of its pool were too small for it: it would wait for ever.

    Args:
        nodes: those whose instances run.
        most: pool -> how many instances it may have.
    """
    there = {node.name: node.pool for node in nodes}
    kept: dict[str, tuple[str, ...]] = {}
    for job in jobs:
        failed = failed_on(job.comment)
        if job.state == "PENDING" and failed:
            bad = [name for name in failed if there.get(name) == job.pool]
            kept[job.id] = tuple(bad[: max(0, most.get(job.pool, 0) - job.nodes)])
    return kept
