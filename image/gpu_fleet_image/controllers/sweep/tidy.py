"""Search for orphaned resources every few hours, and removal where the policy says so."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpu_fleet_image.controllers.sweep import orphaned_resources
from gpu_fleet_image.controllers.sweep.carry_out import Tools
from gpu_fleet_image.controllers.sweep.ledger import orphan_key, orphan_record, write
from gpu_fleet_image.controllers.sweep.orphaned_resources import OrphanFinding, Step
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import OrphanedResources
from gpu_fleet_image.core.model import TAG_IDLE_SINCE, Instance, Kind
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.times import format_time

# They cost little and change slowly; looking at each sweep would double the calls of a small fleet.
LOOK_EVERY = timedelta(hours=6)


def is_due(last: datetime | None, now: datetime) -> bool:
    """Return whether this sweep searches for orphaned resources."""
    return last is None or now - last >= LOOK_EVERY


def find_orphans(
    where: OrphanedResources, instances: Sequence[Instance], policy: Policy, now: datetime
) -> list[OrphanFinding]:
    """Find orphaned resources and decide on each. Raises CloudError if a list could not be read."""
    age = timedelta(days=policy.leftovers.older_than_days)
    stopped = [
        instance
        for instance in instances
        if instance.state == "stopped" and instance.stopped_at and now - instance.stopped_at >= age
    ]
    left = where.find(stopped)
    volumes = [orphan.id for orphan in left if orphan.kind is Kind.VOLUME and not orphan.in_use]
    snapshots = where.snapshots(volumes) if policy.leftovers.remove and volumes else {}
    findings = orphaned_resources.judge(left, snapshots, policy, now)
    to_go = {
        finding.orphan.id: finding.unused_since
        for finding in findings
        if finding.step is Step.REMOVE and finding.orphan.kind is Kind.VOLUME and finding.unused_since
    }
    written = where.written(to_go, now) if to_go else {}
    if not written:
        return findings
    left = [replace(orphan, unused_since=written.get(orphan.id, orphan.unused_since)) for orphan in left]
    return orphaned_resources.judge(left, snapshots, policy, now)


def carry_out(
    tools: Tools, where: OrphanedResources, findings: Sequence[OrphanFinding], now: datetime
) -> list[Failure]:
    """Note, forget and remove; at most ``max_actions`` removals, the most expensive first.

    Returns:
        The steps that failed.
    """
    failures = []
    removals = [finding for finding in findings if finding.step is Step.REMOVE][: tools.policy.max_actions]
    others = [finding for finding in findings if finding.step in (Step.NOTE, Step.FORGET)]
    for finding in [*removals, *others]:
        try:
            _carry_out_one(tools, where, finding, now)
        except (CloudError, DeadlineError) as error:
            failures.append(Failure(finding.orphan.id, f"{finding.step} {finding.orphan.kind}", str(error)))
    return failures


def _carry_out_one(tools: Tools, where: OrphanedResources, finding: OrphanFinding, now: datetime) -> None:
    key = finding.orphan.id
    if finding.step is Step.NOTE:
        tools.instances.tag([key], {TAG_IDLE_SINCE: format_time(now)})
    elif finding.step is Step.FORGET:
        tools.instances.untag([key], [TAG_IDLE_SINCE])
    else:
        write(tools.store, orphan_key(finding), orphan_record(finding, tools.policy, now))
        where.remove(finding.orphan)
