"""Volumes, addresses and snapshots of one stack on AWS."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import Query, Span
from gpu_fleet_image.core.model import (
    TAG_IDLE_SINCE,
    TAG_MANAGED,
    TAG_STACK,
    Instance,
    Kind,
    OrphanedResource,
)
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.providers.aws.metrics import Heartbeats
from gpu_fleet_image.providers.aws.session import Clients, rows

PAGE = 500  # DescribeVolumes: 5 to 500
VALUES = 200  # of one filter, EC2 API
# Volumes send data points only while they are attached (EBS user guide, "Amazon CloudWatch metrics"); on
# older instance types only while something is written. CloudWatch keeps hourly points for 455 days.
_USE_NAMESPACE, _USE_DIMENSION, _USE_METRIC = "AWS/EBS", "VolumeId", "VolumeWriteOps"
_USE_PERIOD = timedelta(hours=1)


class OrphanedResources:
    """Orphaned resources of the stack's instances."""

    def __init__(self, clients: Clients, calls: Calls, stack: str) -> None:
        self._ec2 = clients.ec2
        self._use = Heartbeats(clients.cloudwatch, calls, _USE_NAMESPACE, _USE_DIMENSION)
        self._calls = calls
        self._own = [
            {"Name": f"tag:{TAG_MANAGED}", "Values": ["true"]},
            {"Name": f"tag:{TAG_STACK}", "Values": [stack]},
        ]

    def find(self, stopped: Sequence[Instance] = ()) -> list[OrphanedResource]:
        """Return unattached volumes, unassociated addresses, stopped instances with their disks' size.

        Raises CloudError if a list could not be read.
        """
        available = [{"Name": "status", "Values": ["available"]}]
        # A noted volume that is attached again loses its note.
        noted = [{"Name": "status", "Values": ["in-use"]}, {"Name": "tag-key", "Values": [TAG_IDLE_SINCE]}]
        volumes = [_volume(raw) for raw in self._volumes(self._own + available)]
        again = [_volume(raw, in_use=True) for raw in self._volumes(self._own + noted)]
        answer = self._calls.read(self._ec2.describe_addresses, Filters=self._own)
        addresses = [_address(raw) for raw in answer["Addresses"] if _is_orphaned(raw)]
        return volumes + again + addresses + list(self._instances(stopped))

    def snapshots(self, volume_ids: Sequence[str]) -> dict[str, datetime]:
        """Return volume id -> start of its newest complete snapshot; raises CloudError."""
        newest: dict[str, datetime] = {}
        for start in range(0, len(volume_ids), VALUES):
            filters = [
                {"Name": "volume-id", "Values": list(volume_ids[start : start + VALUES])},
                {"Name": "status", "Values": ["completed"]},
            ]
            pages = self._pages(self._ec2.describe_snapshots, "Snapshots", Filters=filters, OwnerIds=["self"])
            for raw in pages:
                volume, at = raw["VolumeId"], raw["StartTime"]
                newest[volume] = max(at, newest.get(volume, at))
        return newest

    def written(self, since: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
        """Return volume id -> end of the last hour in which it was attached, if that is after a moment.

        EC2 does not report when a volume was detached; its metrics show when it was attached.

        Raises:
            CloudError: the metrics could not be read completely.
        """
        period_s = int(_USE_PERIOD.total_seconds())
        first = min(since.values()).replace(minute=0, second=0, microsecond=0)
        queries = [Query(volume, _USE_METRIC, period_s, statistic="Sum") for volume in since]
        answers, failures = self._use.read(queries, Span(first, now))
        if unread := [query.instance_id for query, answer in answers.items() if not answer.complete]:
            why = failures[0].error if failures else "cut off"
            raise CloudError(f"use of {', '.join(unread)}: {why}")
        ends = {
            query.instance_id: max(
                (at + _USE_PERIOD for at, _ in answer.points), default=since[query.instance_id]
            )
            for query, answer in answers.items()
        }
        return {volume: min(end, now) for volume, end in ends.items() if end > since[volume]}

    def remove(self, orphan: OrphanedResource) -> None:
        """Delete a volume or release an address; raises CloudError."""
        if orphan.kind is Kind.VOLUME:
            self._calls.change(self._ec2.delete_volume, VolumeId=orphan.id)
        elif orphan.kind is Kind.ADDRESS:
            self._calls.change(self._ec2.release_address, AllocationId=orphan.id)
        else:
            raise ValueError(f"{orphan.id}: a {orphan.kind} cannot be removed here")

    def _instances(self, stopped: Sequence[Instance]) -> Iterator[OrphanedResource]:
        disks: dict[str, list[Mapping[str, Any]]] = {instance.id: [] for instance in stopped}
        for start in range(0, len(stopped), VALUES):
            ids = [instance.id for instance in stopped[start : start + VALUES]]
            for raw in self._volumes([{"Name": "attachment.instance-id", "Values": ids}]):
                for attachment in raw["Attachments"]:
                    disks[attachment["InstanceId"]].append(raw)
        for instance in stopped:
            kinds = {raw["VolumeType"] for raw in disks[instance.id]}
            yield OrphanedResource(
                kind=Kind.INSTANCE,
                id=instance.id,
                tags=instance.tags,
                size_gib=sum(raw["Size"] for raw in disks[instance.id]),
                volume_type=kinds.pop() if len(kinds) == 1 else "",
                unused_since=instance.stopped_at,
            )

    def _volumes(self, filters: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        return self._pages(self._ec2.describe_volumes, "Volumes", Filters=list(filters))

    def _pages(self, method: Any, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        return rows(self._calls, method, key, MaxResults=PAGE, **arguments)


def _volume(raw: Mapping[str, Any], *, in_use: bool = False) -> OrphanedResource:
    return OrphanedResource(
        Kind.VOLUME, raw["VolumeId"], _tags(raw), raw["Size"], raw["VolumeType"], in_use=in_use
    )


def _address(raw: Mapping[str, Any]) -> OrphanedResource:
    return OrphanedResource(Kind.ADDRESS, raw["AllocationId"], _tags(raw), in_use="AssociationId" in raw)


def _is_orphaned(raw: Mapping[str, Any]) -> bool:
    """Return whether an address is unassociated, or associated again and still has the note."""
    return "AssociationId" not in raw or TAG_IDLE_SINCE in _tags(raw)


def _tags(raw: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
