"""What is said of a job that no instance would run, and the second look at one that Slurm gave up too early.

Slurm holds a job for ever that the nodes of the moment could not run, though more of them could (22.05,
``BadConstraints``). Once there are enough it is released. Slurm that gives it up again with those is right.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from image.queue import slurm
from image.queue.answers import OURS, PENDING, Job, ListedJob
from image.queue.demand import GIVEN_UP, QueueDemand
from image.queue.errors import SlurmError

PREFIX = f"{OURS}: "
LOG = logging.getLogger(__name__)


def described(jobs: Iterable[ListedJob], demand: QueueDemand | None) -> list[Job]:
    """Jobs as users read them: how many instances one waits for, or why it does so in vain."""
    if demand is None:
        return [listed.job for listed in jobs]
    return [
        replace(
            job,
            reason=demand.refused.get(job.id, job.reason),
            nodes=demand.fits.get(job.id, job.nodes),
        )
        for job in (listed.job for listed in jobs)
    ]


@dataclass
class Refusals:
    """What was said of jobs that wait.

    Attributes:
        ask: calls Slurm.
        given_up: jobs that Slurm gave up with enough nodes.
    """

    ask: slurm.Run
    given_up: set[str] = field(default_factory=set)
    _released: dict[str, frozenset[str]] = field(default_factory=dict)  # job -> nodes that were there

    def judge(self, jobs: Sequence[ListedJob], nodes: Iterable[slurm.Node]) -> None:
        """Take note of those that Slurm gave up once more, and forget those that wait no longer."""
        waiting = {job.job.id: job.job.reason for job in jobs if job.job.state == PENDING}
        there = {node.name for node in nodes if node.is_there}
        self.given_up &= waiting.keys()
        for job, before in list(self._released.items()):
            if waiting.get(job) == GIVEN_UP and before <= there:
                self.given_up.add(job)
            if waiting.get(job) in (None, GIVEN_UP):
                del self._released[job]

    def say(self, jobs: Iterable[ListedJob], nodes: Iterable[slurm.Node], demand: QueueDemand) -> None:
        """Leave word on jobs that nothing helps; release those for which there are enough nodes by now."""
        there: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if node.is_there:
                there[node.pool].add(node.name)
        for listed in jobs:
            job = listed.job
            if job.state != PENDING:
                continue
            word = f"{PREFIX}{demand.refused[job.id]}" if job.id in demand.refused else ""
            if word != listed.admin_comment and (word or listed.admin_comment.startswith(PREFIX)):
                self._notify(job.id, word)
            nodes_of = there[job.pool]
            if job.reason == GIVEN_UP and 0 < demand.fits.get(job.id, 0) <= len(nodes_of):
                self._release(job.id, frozenset(nodes_of))

    def _notify(self, job: str, word: str) -> None:
        try:
            slurm.notify(job, word, self.ask)
            LOG.info("event=queue-job-notified job=%s text=%r", job, word)
        except SlurmError as error:
            LOG.warning("event=queue-job-not-notified job=%s reason=%r", job, str(error))

    def _release(self, job: str, there: frozenset[str]) -> None:
        try:
            slurm.release(job, self.ask)
            self._released[job] = there
            LOG.info("event=queue-job-released job=%s nodes=%d", job, len(there))
        except SlurmError as error:
            LOG.warning("event=queue-job-not-released job=%s reason=%r", job, str(error))
