"""Which nodes a job of `gpu-fleet submit` is kept away from: those on which it failed. Pure.

A try that failed for a reason that may pass leaves the instance in the job's comment
(gpu_fleet_jobs/submitted/queued.py). Only a job that waits can be changed: the controller does so at its
look, while the job waits for its next try.
"""

import re
from collections.abc import Iterable, Mapping

from gpu_fleet_image.queue.answers import OURS, PENDING, ListedJob
from gpu_fleet_image.queue.slurm import Node

COMMENT = OURS  # of the jobs that `gpu-fleet submit` made
HOSTS = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,]*)?")
PART = re.compile(r"([^\[\]]+)(?:\[([\d,-]+)\])?")
FAILED_ON = re.compile(rf"{COMMENT}:failed-on=(\S+)")


def is_submitted(comment: str) -> bool:
    """Whether a job came from `gpu-fleet submit`."""
    return comment.partition(":")[0] == COMMENT


def failed_on(comment: str) -> tuple[str, ...]:
    """Instances on which a job failed, the newest first, each once."""
    named = FAILED_ON.fullmatch(comment)
    return tuple(dict.fromkeys(reversed(named[1].split(",")))) if named else ()


def named(hosts: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of some nodes that a list of Slurm's names, ``i-0a[1-2,7],i-0b``."""
    parts = [part for text in HOSTS.findall(hosts) if (part := PART.fullmatch(text))]
    return tuple(name for name in names if any(_is_in(name, part[1], part[2]) for part in parts))


def _is_in(name: str, start: str, ranges: str | None) -> bool:
    if ranges is None:
        return name == start
    number = name.removeprefix(start)
    if not name.startswith(start) or not number.isdecimal():
        return False
    for text in ranges.split(","):
        first, _, last = text.partition("-")
        of_width = number == str(int(number)).zfill(len(first))
        if first and of_width and int(first) <= int(number) <= int(last or first):
            return True
    return False


def exclusions(
    jobs: Iterable[ListedJob], nodes: Iterable[Node], most: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Job -> the nodes that it is to be kept away from, of each that waits: its user's, and where it failed.

    Of the second never so many that the rest of its pool were too small for it: it would wait for ever.

    Args:
        nodes: those whose instances run.
        most: pool -> how many instances it may have.
    """
    there = {node.name: node.pool for node in nodes}
    kept: dict[str, tuple[str, ...]] = {}
    for listed in jobs:
        job = listed.job
        if job.state != PENDING:
            continue
        failed = failed_on(job.comment)
        own = [name for name in named(listed.excluded, there) if name not in failed]
        bad = [name for name in failed if there.get(name) == job.pool]
        room = most.get(job.pool, 0) - job.nodes - sum(there[name] == job.pool for name in own)
        if names := (*own, *bad[: max(0, room)]):
            kept[job.id] = names
    return kept
