"""Messages to jobs that no instance would run, and the retry of jobs that Slurm gave up too early.

Slurm holds a job for ever if the present nodes could not run it, though more of them could (22.05,
``BadConstraints``). It is released once there are enough. If Slurm gives it up again with those, that stands.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import kept_back, slurm
from gpu_fleet_image.slurm.answers import OURS, PENDING, Job, ListedJob
from gpu_fleet_image.slurm.demand import GIVEN_UP, QueueDemand, nodes_for

PREFIX = f"{OURS}: "
Excluded = Mapping[str, Collection[str]]  # job -> nodes that it is kept away from
LOG = logging.getLogger(__name__)


def described(jobs: Iterable[ListedJob], demand: QueueDemand | None) -> list[Job]:
    """Return the jobs for users: with the number of instances that one waits for, or why it waits in vain.

    Args:
        demand: as last counted; a job may have started since.
    """
    if demand is None:
        return [listed.job for listed in jobs]
    reasons = _reasons(demand)
    return [
        replace(job, reason=reasons.get(job.id, job.reason), nodes=demand.fits.get(job.id, job.nodes))
        if job.state == PENDING
        else job
        for job in (listed.job for listed in jobs)
    ]


def _reasons(demand: QueueDemand) -> dict[str, str]:
    """Return job -> why it waits, for jobs of which the queue knows it better than Slurm."""
    return dict.fromkeys(demand.kept_back, kept_back.WAITS) | demand.refused


def _word(job: str, reasons: Mapping[str, str], demand: QueueDemand) -> str:
    """Return the message about a waiting job; empty for none."""
    if job not in reasons:
        return ""
    return f"{PREFIX}{reasons[job]}{f' {kept_back.MARK}' if job in demand.kept_back else ''}"


@dataclass
class Refusals:
    """Messages to waiting jobs.

    Attributes:
        given_up: jobs that Slurm gave up with enough nodes -> those nodes.
    """

    ask: slurm.Run
    given_up: dict[str, frozenset[str]] = field(default_factory=dict)
    _released: dict[str, frozenset[str]] = field(default_factory=dict)  # job -> nodes at its release

    def __post_init__(self) -> None:
        self._calls = slurm.BoundedCalls(self.ask)

    def judge(self, jobs: Sequence[ListedJob], nodes: Sequence[slurm.Node], excluded: Excluded) -> None:
        """Record jobs that Slurm gave up again, until they are gone or there are new nodes."""
        waiting = {job.job.id: job for job in jobs if job.job.state == PENDING}
        for job, tried in list(self.given_up.items()):
            if job not in waiting or nodes_for(waiting[job], nodes, excluded) - tried:
                del self.given_up[job]
        for job, before in list(self._released.items()):
            if job not in waiting:
                del self._released[job]
            elif waiting[job].job.reason == GIVEN_UP:
                if before <= nodes_for(waiting[job], nodes, excluded):
                    self.given_up[job] = before
                del self._released[job]

    def say(
        self,
        jobs: Sequence[ListedJob],
        nodes: Sequence[slurm.Node],
        excluded: Excluded,
        demand: QueueDemand,
        now: datetime,
    ) -> None:
        """Write messages to jobs that nothing helps; release those for which there are now enough nodes.

        Jobs without a turn wait for the next poll, which counts anew.
        """
        reasons = _reasons(demand)
        for listed in self._calls.turns(jobs):
            job = listed.job
            if job.state != PENDING:
                continue
            word = _word(job.id, reasons, demand)
            if word != listed.admin_comment and (word or listed.admin_comment.startswith(PREFIX)):
                self._notify(job.number, word)
            self._keep_back(listed, now, is_kept=job.id in demand.kept_back)
            if job.id in demand.retried:
                self._release(job, nodes_for(listed, nodes, excluded))

    def _keep_back(self, listed: ListedJob, now: datetime, *, is_kept: bool) -> None:
        """Let Slurm look at a job later, or now, where that is to change."""
        job, was_kept = listed.job.number, kept_back.is_kept_back(listed, now)
        left_s = listed.eligible_s - now.timestamp()
        if is_kept:
            start_in_s = int(kept_back.FOR.total_seconds())
            is_to_change = not was_kept or left_s < kept_back.AGAIN.total_seconds()
        else:
            start_in_s, is_to_change = 0, was_kept and left_s > 0
        if not is_to_change:
            return
        try:
            slurm.start_in(job, start_in_s, self._calls)
            LOG.info("event=queue-job-kept-back job=%s seconds=%d", job, start_in_s)
        except SlurmError as error:
            LOG.warning("event=queue-job-not-kept-back job=%s reason=%r", job, str(error))

    def _notify(self, job: str, word: str) -> None:
        try:
            slurm.notify(job, word, self._calls)
            LOG.info("event=queue-job-notified job=%s text=%r", job, word)
        except SlurmError as error:
            LOG.warning("event=queue-job-not-notified job=%s reason=%r", job, str(error))

    def _release(self, job: Job, there: frozenset[str]) -> None:
        try:
            slurm.release(job.number, self._calls)
            self._released[job.id] = there
            LOG.info("event=queue-job-released job=%s nodes=%d", job.number, len(there))
        except SlurmError as error:
            LOG.warning("event=queue-job-not-released job=%s reason=%r", job.number, str(error))
