"""Choice of a user's instances for a run, and of the account there."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_fleet_image.console.runs.bucket import RunBucket
from gpu_fleet_image.console.users.connect import RUNNING, described
from gpu_fleet_image.console.users.take import Desk
from gpu_fleet_image.core.capacity import REQUEST_KEY, TAG_TAKEN
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.runs import ACCOUNT, OVER, Job, NodeState, Phase
from gpu_fleet_image.core.times import parse_time

# An instance reports every 15 s; one that is silent for so long is gone or hung.
SILENT = timedelta(minutes=3)
# From the command to each instance's first report: Systems Manager, torch's import.
LONGEST_START = timedelta(minutes=10)


@dataclass(frozen=True)
class Criteria:
    """Requirements of a run's instances.

    Attributes:
        named: ids that the user asks for; empty for any of their instances.
        account: owner of the runs that keep instances busy.
    """

    pool: str
    nodes: int
    named: tuple[str, ...]
    account: str
    caller: str


def choose(desk: Desk, bucket: RunBucket, criteria: Criteria) -> tuple[str, ...]:
    """Return the caller's instances that are ready and run nothing of theirs; possibly too few.

    Raises:
        ConfigurationError: a named instance is not available.
        CloudError: the cloud does not answer.
    """
    fleet = desk.cloud.instances.fleet().instances
    theirs = {instance.id: instance for instance in fleet if _is_taken(instance, criteria)}
    ready = (
        [instance_id for instance_id, said in desk.ready(theirs).items() if said == "ready"] if theirs else []
    )
    working = busy(bucket, criteria.account, desk.now())
    free = [instance_id for instance_id in ready if instance_id not in working]
    if not criteria.named:
        return tuple(sorted(free)[: criteria.nodes])
    if len(set(criteria.named)) != criteria.nodes:
        raise ConfigurationError(
            f"--instance names {len(set(criteria.named))}; allowed: as many as --nodes {criteria.nodes}"
        )
    for instance_id in criteria.named:
        if instance_id not in theirs:
            had = ", ".join(map(described, theirs.values())) or "none"
            raise ConfigurationError(
                f"--instance {instance_id}: no running instance of {criteria.pool} that you took; "
                f"they are: {had}"
            )
        if instance_id not in free:
            why = (
                f"works on {working[instance_id]}"
                if instance_id in working
                else "has not passed its boot check"
            )
            raise ConfigurationError(f"--instance {instance_id} {why}")
    return tuple(dict.fromkeys(criteria.named))


def _is_taken(instance: Instance, criteria: Criteria) -> bool:
    taken = instance.tags.get(TAG_TAKEN, "")
    is_theirs = REQUEST_KEY.fullmatch(taken) is not None and f"/{criteria.caller}/" in taken
    return instance.state == RUNNING and instance.pool == criteria.pool and is_theirs


def busy(bucket: RunBucket, account: str, now: datetime) -> dict[str, str]:
    """Return instance -> the run of this account that works there. Raises CloudError."""
    runs: dict[str, str] = {}
    # twice the limit, since the bucket's clock gives the time of a write
    for job in bucket.jobs(account, heard_since=now - 2 * SILENT):
        for member, state in zip(job.instances, bucket.states(job), strict=True):
            if state.phase not in OVER and not is_silent(job, state, now):
                runs.setdefault(member.id, job.run)
    return runs


def is_silent(job: Job, state: NodeState, now: datetime) -> bool:
    """Return whether an instance has been silent for longer than a working one."""
    longest = LONGEST_START if state.phase is Phase.SENT else SILENT
    try:
        return now - parse_time(state.at or job.at) > longest
    except ValueError:
        return True


def account_name(account: str | None, caller: str) -> str:
    """Return the account on the instances; by default the caller's name. Raises ConfigurationError."""
    name = account or caller.partition("/")[2].rpartition(":")[2].partition("@")[0].lower()
    if ACCOUNT.fullmatch(name) is None:
        raise ConfigurationError(f"--as {name!r}; allowed: your account of access.people, {ACCOUNT.pattern}")
    return name
