"""Nodes that a job of `gpu-fleet submit` is kept away from, because it failed there.

A try that failed for a temporary reason leaves the instance in the job's comment
(gpu_fleet_jobs/submitted/queued.py). Only a waiting job can be changed: the controller does so at its poll,
while the job waits for its next try.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import slurm
from gpu_fleet_image.slurm.answers import OURS, PENDING, ListedJob
from gpu_fleet_image.slurm.slurm import Node

COMMENT = OURS  # of jobs from `gpu-fleet submit`
HOSTS = re.compile(r"[^,\[]+(?:\[[^\[\]]*\][^,]*)?")
SPAN = r"[0-9]{1,18}(?:-[0-9]{1,18})?"
PART = re.compile(rf"([^\[\]]+)(?:\[({SPAN}(?:,{SPAN})*)\])?")
FAILED_ON = re.compile(rf"{COMMENT}:failed-on=(\S+)")
LOG = logging.getLogger(__name__)


def is_submitted(comment: str) -> bool:
    """Return whether a job came from `gpu-fleet submit`."""
    return comment.partition(":")[0] == COMMENT


def failed_on(comment: str) -> tuple[str, ...]:
    """Return the instances on which a job failed, the newest first, each once."""
    named = FAILED_ON.fullmatch(comment)
    return tuple(dict.fromkeys(reversed(named[1].split(",")))) if named else ()


def named(hosts: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of some nodes that a list in Slurm's notation names, ``i-0a[1-2,7],i-0b``."""
    parts = [part for text in HOSTS.findall(hosts) if (part := PART.fullmatch(text))]
    return tuple(name for name in names if any(_is_in(name, part[1], part[2]) for part in parts))


def _is_in(name: str, start: str, ranges: str | None) -> bool:
    if ranges is None:
        return name == start
    number = name.removeprefix(start)
    if not name.startswith(start) or not (number.isascii() and number.isdecimal()):
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
    """Return waiting job -> nodes to exclude: those of its user, and those on which it failed.

    Of the latter only so many are excluded that its pool stays large enough: else it would wait for ever.

    Args:
        nodes: nodes whose instances run.
        most: pool -> its maximum number of instances.
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


@dataclass
class KeptAway:
    """Exclusions as Slurm knows them."""

    ask: slurm.Run

    def __post_init__(self) -> None:
        self._calls = slurm.BoundedCalls(self.ask)

    def update(
        self,
        jobs: Sequence[ListedJob],
        known: Sequence[Node],
        left: Sequence[Node],
        most: Mapping[str, int],
    ) -> dict[str, tuple[str, ...]]:
        """Keep jobs away from nodes on which they failed; a job that has started meanwhile runs on.

        Nodes of gone instances are not excluded: Slurm would keep the job from a new node in its place.

        Args:
            known: nodes, with those whose instances are gone.
            left: nodes whose instances run.
            most: pool -> its maximum number of instances.

        Returns:
            Waiting job -> the nodes that it is kept away from now.
        """
        wanted, names = exclusions(jobs, left, most), [node.name for node in known]
        waiting = [listed for listed in jobs if listed.job.state == PENDING]
        numbers = {listed.job.id: listed.job.number for listed in waiting}
        now = {listed.job.id: named(listed.excluded, names) for listed in waiting}
        changed = [job for job in now if {*wanted.get(job, ())} != {*now[job]}]
        kept = wanted | {job: now[job] for job in changed}
        for job in self._calls.turns(changed):
            try:
                slurm.keep_away(numbers[job], wanted.get(job, ()), self._calls)
                kept[job] = wanted.get(job, ())
                LOG.info("event=queue-job-kept-away job=%s nodes=%s", job, ",".join(kept[job]))
            except SlurmError as error:
                LOG.warning("event=queue-job-not-kept-away job=%s reason=%r", job, str(error))
        return kept
