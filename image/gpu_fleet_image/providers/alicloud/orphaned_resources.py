"""Disks, addresses and snapshots of one stack on Alibaba Cloud."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import (
    TAG_IDLE_SINCE,
    TAG_MANAGED,
    TAG_STACK,
    Instance,
    Kind,
    OrphanedResource,
)
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.providers.alicloud.session import Clients

PAGE = 100  # DescribeDisks, DescribeSnapshots, DescribeEipAddresses: at most 100


class OrphanedResources:
    """Orphaned resources of the stack's instances."""

    def __init__(self, clients: Clients, calls: Calls, stack: str) -> None:
        self._ecs, self._vpc = clients.ecs, clients.vpc
        self._calls = calls
        self._own = [{"Key": TAG_MANAGED, "Value": "true"}, {"Key": TAG_STACK, "Value": stack}]

    def find(self, stopped: Sequence[Instance] = ()) -> list[OrphanedResource]:
        """Return unattached disks, unassociated addresses, stopped instances with their disks' size.

        Raises CloudError if a list could not be read.
        """
        unattached = [_disk(raw) for raw in self._disks(Status="Available", Tag=self._own)]
        # A noted disk that is attached again loses its note.
        noted = [*self._own, {"Key": TAG_IDLE_SINCE}]
        again = [_disk(raw, in_use=True) for raw in self._disks(Status="In_use", Tag=noted)]
        return unattached + again + list(self._addresses()) + list(self._instances(stopped))

    def snapshots(self, volume_ids: Sequence[str]) -> dict[str, datetime]:
        """Return disk id -> start of its newest complete snapshot; raises CloudError."""
        newest: dict[str, datetime] = {}
        for disk in volume_ids:  # the API takes one disk at a time
            made = self._tokens(
                "DescribeSnapshots", "Snapshots", "Snapshot", DiskId=disk, Status="accomplished"
            )
            times = [parse_time(raw["CreationTime"]) for raw in made]
            if times:
                newest[disk] = max(times)
        return newest

    def written(self, since: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:  # noqa: ARG002
        """Return nothing: ``find`` already has a disk's last use, its ``DetachedTime``."""
        return {}

    def remove(self, orphan: OrphanedResource) -> None:
        """Delete a disk or release an address; raises CloudError."""
        if orphan.kind is Kind.VOLUME:
            self._calls.change(self._ecs.action("DeleteDisk"), DiskId=orphan.id)
        elif orphan.kind is Kind.ADDRESS:
            self._calls.change(self._vpc.action("ReleaseEipAddress"), AllocationId=orphan.id)
        else:
            raise ValueError(f"{orphan.id}: a {orphan.kind} cannot be removed here")

    def _instances(self, stopped: Sequence[Instance]) -> Iterator[OrphanedResource]:
        for instance in stopped:  # the API takes one instance at a time
            disks = list(self._disks(InstanceId=instance.id))
            kinds = {raw["Category"] for raw in disks}
            yield OrphanedResource(
                kind=Kind.INSTANCE,
                id=instance.id,
                tags=instance.tags,
                size_gib=sum(raw["Size"] for raw in disks),
                volume_type=kinds.pop() if len(kinds) == 1 else "",
                unused_since=instance.stopped_at,
            )

    def _disks(self, **chosen: Any) -> Iterator[dict[str, Any]]:
        return self._tokens("DescribeDisks", "Disks", "Disk", **chosen)

    def _tokens(self, action: str, outer: str, inner: str, **chosen: Any) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            more = {"NextToken": token} if token else {}
            page = self._calls.read(self._ecs.action(action), MaxResults=PAGE, **chosen, **more)
            yield from page[outer][inner]
            token = page.get("NextToken") or ""
            if not token:
                return

    def _addresses(self) -> Iterator[OrphanedResource]:
        """Yield unassociated addresses, and those that are associated again and still have the note."""
        seen, number = 0, 1
        while True:
            page = self._calls.read(
                self._vpc.action("DescribeEipAddresses"), Tag=self._own, PageNumber=number, PageSize=PAGE
            )
            addresses = page["EipAddresses"]["EipAddress"]
            for raw in addresses:
                address = OrphanedResource(
                    Kind.ADDRESS, raw["AllocationId"], _tags(raw), in_use=raw["Status"] != "Available"
                )
                if not address.in_use or TAG_IDLE_SINCE in address.tags:
                    yield address
            seen, number = seen + len(addresses), number + 1
            if not addresses or seen >= int(page["TotalCount"]):
                return


def _disk(raw: Mapping[str, Any], *, in_use: bool = False) -> OrphanedResource:
    """Parse a disk. One that was attached before has the time of its detachment."""
    detached = raw.get("DetachedTime") or ""
    return OrphanedResource(
        Kind.VOLUME,
        raw["DiskId"],
        _tags(raw),
        raw["Size"],
        raw["Category"],
        unused_since=parse_time(detached) if detached and not in_use else None,
        in_use=in_use,
    )


def _tags(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource: ECS calls a key ``TagKey``, VPC ``Key``."""
    tags = raw.get("Tags", {}).get("Tag", [])
    return {tag.get("TagKey") or tag["Key"]: tag.get("TagValue") or tag.get("Value", "") for tag in tags}
