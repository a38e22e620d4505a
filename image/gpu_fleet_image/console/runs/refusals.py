"""Jobs that the queue would accept but never run: ``gpu-fleet submit`` refuses them before Slurm.

A job that waits for other jobs, for capacity or for the mover is none of these: it waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_fleet_image.console.runs.batch import JobScript
from gpu_fleet_image.controllers.mover import growth
from gpu_fleet_image.controllers.mover.growth import GROWTH, Growth
from gpu_fleet_image.core import instance_file, keys, paths
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.queue_errors import RosterUnreadError
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.slurm import accounting, cloud


@dataclass(frozen=True)
class QueueRecords:
    """The stack's records of teams and budget; None without a record."""

    roster: Mapping[str, Any] | None
    growth: Growth | None


def records() -> QueueRecords:
    """Return the records of this instance's stack. Raises CloudError, InstanceError."""
    store = cloud.of(instance_file.load(paths.instance_file())).store()
    said = _newest(store, GROWTH, growth.LONGEST)
    return QueueRecords(_newest(store, keys.ACCOUNTS), Growth.from_json(said, GROWTH) if said else None)


def _newest(store: Store, key: str, at_most: int | None = None) -> Mapping[str, Any] | None:
    """Return an object's content; None if it is missing, which S3 may report as "denied"."""
    try:
        stored = store.newest(key, at_most)
    except CloudError as error:
        if error.code not in DENIED:
            raise
        return None
    return stored.content if stored else None


def _over_team(job: JobScript, account: str, roster: Mapping[str, Any] | None) -> str:
    """Return why the team's limit would block a job for good; empty if it would not. Pure."""
    team = _team_of(account, roster)
    try:
        limit = accounting.limits_of(roster or {}).get(team)
    except RosterUnreadError:
        return ""  # the controller logs the error, and sets no limit either
    gpus = job.nodes * job.gpus
    if limit is None or limit.max_gpus is None or gpus <= limit.max_gpus:
        return ""
    most = limit.max_gpus // job.gpus
    allowed = f"up to --nodes {most}" if most else "none of this pool's instances"
    return (
        f"--nodes {job.nodes}: {gpus} GPUs, and teams.{team}.max_gpus of the stack file is {limit.max_gpus}; "
        f"allowed: {allowed}"
    )


def _team_of(account: str, roster: Mapping[str, Any] | None) -> str:
    """Return the team of a user; empty if nobody knows. Pure."""
    try:
        return accounting.teams_of(roster or {"users": []}).get(account, "")
    except RosterUnreadError:
        return ""


def never_runs(job: JobScript, account: str, said: QueueRecords, now: datetime) -> str:
    """Return why a job would wait until an operator changes the stack; empty if it may start by itself."""
    if problem := _over_team(job, account, said.roster):
        return problem
    if said.growth is None:
        return ""
    if frozen := said.growth.teams.get(_team_of(account, said.roster)):
        return frozen
    return growth.refusal(said.growth, job.pool, job.nodes, now)
