"""Removal of what an acceptance run may leave behind in Alibaba Cloud."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from gpu_fleet_image.core.model import TAG_STACK, Instance
from gpu_fleet_stacks.acceptance.account import Orphan
from gpu_fleet_stacks.acceptance.alicloud_calls import PAGE, RecordedAlicloud, own
from gpu_fleet_stacks.clients import buckets, oss
from gpu_fleet_stacks.clients.alicloud import listed
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

LOG = logging.getLogger(__name__)

NAT_PAGE = 50
TAGGED_PAGE = 1000  # ListTagResources
KEY_WAITS_DAYS = 7
PENDING_DELETION = "PendingDeletion"


class AlicloudCleanup:
    """Whatever carries the stack's tag; see ``account.Cleanup``."""

    def __init__(
        self, calls: RecordedAlicloud, stack: Stack, instances: Callable[[], Sequence[Instance]]
    ) -> None:
        self._calls, self._stack, self._instances = calls, stack, instances

    def orphans(self) -> list[Orphan]:
        """List everything that still carries the stack's tag.

        Each product's own API lists what is paid by the hour; the tag service lists the rest.
        """
        own_ones = own(self._stack.name)
        disks = self._calls.rows("ecs.DescribeDisks", ("Disks", "Disk"), own_ones, MaxResults=str(PAGE))
        gateways = self._calls.ask("vpc.DescribeNatGateways", PageSize=str(NAT_PAGE), **own_ones)
        addresses = self._calls.ask("vpc.DescribeEipAddresses", PageSize=str(PAGE), **own_ones)
        return [
            *(
                Orphan("instance", instance.id, instance.state, instance.type)
                for instance in self._instances()
                if not instance.ended
            ),
            *(Orphan("disk", raw["DiskId"], raw["Status"], "disk", Decimal(raw["Size"])) for raw in disks),
            *(
                Orphan("nat gateway", raw["NatGatewayId"], raw["Status"], "nat_gateway")
                for raw in listed(gateways, "NatGateways", "NatGateway")
            ),
            *(
                Orphan("public address", raw["AllocationId"], raw["Status"], "public_address")
                for raw in listed(addresses, "EipAddresses", "EipAddress")
            ),
            *self._tagged(),
        ]

    def _tagged(self) -> Iterator[Orphan]:
        """Yield everything else that the tag service lists."""
        listed_kinds = (":instance/", ":disk/", ":natgateway/", ":eip/")
        for arn in self._arns():
            service = arn.split(":")[2]
            if service == "kms":
                state = self._key_state(arn)
                yield Orphan("kms", arn, state, "" if state == PENDING_DELETION else "key")
            elif service == "oss":
                yield from self._orphaned_bucket(arn)
            elif not any(kind in arn for kind in listed_kinds):
                yield Orphan(service, arn, note="may have been deleted already")

    def _orphaned_bucket(self, arn: str) -> Iterator[Orphan]:
        try:
            page = self._calls.oss("list_object_versions", Bucket=_last(arn), MaxKeys=1)
        except CannotCheckError as error:
            if error.code == oss.NO_BUCKET:
                return
            raise
        holds = bool(page.get("Versions") or page.get("DeleteMarkers"))
        yield Orphan("oss", arn, "holds objects" if holds else "empty", "contents" if holds else "")

    def _arns(self) -> list[str]:
        tags = json.dumps({TAG_STACK: self._stack.name})
        rows = self._calls.rows(
            "tag.ListTagResources", ("TagResources",), {}, Tags=tags, PageSize=str(TAGGED_PAGE)
        )
        return [str(row["ResourceARN"]) for row in rows]

    def _key_state(self, arn: str) -> str:
        return str(self._calls.ask("kms.DescribeKey", KeyId=_last(arn))["KeyMetadata"]["KeyState"])

    def let_keys_go(self) -> list[str]:
        """Schedule the deletion of the stack's keys once they encrypt no disk."""
        if list(
            self._calls.rows(
                "ecs.DescribeDisks", ("Disks", "Disk"), own(self._stack.name), MaxResults=str(PAGE)
            )
        ):
            return []
        keys = [arn for arn in self._arns() if ":kms:" in arn and self._key_state(arn) != PENDING_DELETION]
        for arn in keys:
            self._calls.ask(
                "kms.ScheduleKeyDeletion", KeyId=_last(arn), PendingWindowInDays=str(KEY_WAITS_DAYS)
            )
        return keys

    def end_stragglers(self) -> list[str]:
        """Release every instance of the stack that still runs; return their ids."""
        running = [instance.id for instance in self._instances() if not instance.ended]
        if running:
            ids = {f"InstanceId.{number}": instance_id for number, instance_id in enumerate(running, 1)}
            self._calls.ask("ecs.DeleteInstances", Force="true", **ids)
        return running

    def empty_buckets(self) -> int:
        """Remove every version of every object from the buckets with the stack's tag and name."""
        own = f"{naming.prefixed(self._stack.name)}-"
        buckets = [_last(arn) for arn in self._arns() if ":oss:" in arn]
        return sum(self._empty(bucket) for bucket in buckets if bucket.startswith(own))

    def _empty(self, bucket: str) -> int:
        """Empty one bucket; return the number of objects, 0 where the bucket does not exist."""
        try:
            return buckets.empty(self._calls.oss, bucket, LOG.info, in_batches=False)
        except CannotCheckError as error:
            if error.code == oss.NO_BUCKET:
                return 0
            raise


def _last(arn: str) -> str:
    """Return the last part of an ARN: ``arn:acs:kms:cn-shenzhen:1:key/abc`` -> ``abc``."""
    return arn.rpartition("/")[2].rpartition(":")[2]
