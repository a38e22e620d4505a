"""Removal of what an acceptance run may leave behind in AWS."""

import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_stacks.acceptance.account import Orphan
from gpu_fleet_stacks.acceptance.aws_calls import RecordedAws, own
from gpu_fleet_stacks.clients import buckets
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

LOG = logging.getLogger(__name__)

KEY_WAITS_DAYS = 7  # the least that ScheduleKeyDeletion allows
NO_BUCKET = "NoSuchBucket"
PENDING_DELETION = "PendingDeletion"
GATEWAY_GONE = frozenset({"deleted", "deleting"})


class AwsCleanup:
    """Whatever carries the stack's tag; see ``account.Cleanup``."""

    def __init__(self, aws: RecordedAws, stack: Stack) -> None:
        self._aws, self._stack = aws, stack

    def orphans(self) -> list[Orphan]:
        """List everything that still carries the stack's tag.

        The tagging API also lists deleted resources for a while. Instances, volumes, gateways and addresses
        are paid by the hour, so EC2's own API lists them.
        """
        own_ones = own(self._stack.name)
        instances = [instance for instance in self._aws.of_stack(self._stack.name) if not instance.ended]
        volumes = self._aws.pages("ec2", "describe_volumes", "Volumes", Filters=own_ones)
        gateways = self._aws.pages("ec2", "describe_nat_gateways", "NatGateways", Filter=own_ones)
        addresses = self._aws.ask("ec2", "describe_addresses", Filters=own_ones)["Addresses"]
        return [
            *(Orphan("instance", instance.id, instance.state, instance.type) for instance in instances),
            *(
                Orphan("volume", volume["VolumeId"], volume["State"], "disk", Decimal(volume["Size"]))
                for volume in volumes
            ),
            *(
                Orphan("nat gateway", gateway["NatGatewayId"], gateway["State"], "nat_gateway")
                for gateway in gateways
                if gateway["State"] not in GATEWAY_GONE
            ),
            *(
                Orphan("public address", address["AllocationId"], "", "public_address")
                for address in addresses
            ),
            *self._tagged(),
        ]

    def _tagged(self) -> Iterator[Orphan]:
        """Yield everything else that the tagging API lists."""
        listed_by_ec2 = (":instance/", ":volume/", ":natgateway/", ":elastic-ip/")
        for arn in self._arns():
            service = arn.split(":")[2]
            if service == "kms":
                yield self._orphaned_key(arn)
            elif service == "s3":
                yield from self._orphaned_bucket(arn)
            elif not (service == "ec2" and any(kind in arn for kind in listed_by_ec2)):
                note = "may have been deleted already: the tagging API remembers for a while"
                yield Orphan(service, arn, note=note)

    def _orphaned_bucket(self, arn: str) -> Iterator[Orphan]:
        """Yield the bucket if it exists; its objects cost by their size, which is not read."""
        name = arn.rpartition(":")[2]
        try:
            page = self._aws.ask("s3", "list_object_versions", Bucket=name, MaxKeys=1)
        except CannotCheckError as error:
            if error.code == NO_BUCKET:
                return
            raise
        holds = bool(page.get("Versions") or page.get("DeleteMarkers"))
        yield Orphan("s3", arn, "holds objects" if holds else "empty", "contents" if holds else "")

    def _arns(self, *types: str) -> list[str]:
        """Return the ARNs with the stack's tag, of the given resource types or of all."""
        chosen: dict[str, Any] = {"ResourceTypeFilters": list(types)} if types else {}
        pages = self._aws.pages(
            "resourcegroupstaggingapi",
            "get_resources",
            "ResourceTagMappingList",
            TagFilters=[{"Key": TAG_STACK, "Values": [self._stack.name]}],
            mark="PaginationToken",
            **chosen,
        )
        return [str(entry["ResourceARN"]) for entry in pages]

    def _orphaned_key(self, arn: str) -> Orphan:
        """Describe a key; it costs until its deletion is scheduled (aws.amazon.com/kms/pricing)."""
        state = self._key_state(arn)
        if state == PENDING_DELETION:
            return Orphan("kms", arn, state, note="deleted after its waiting period, which costs nothing")
        return Orphan("kms", arn, state, "key", note="a key costs by the month")

    def _key_state(self, arn: str) -> str:
        return str(self._aws.ask("kms", "describe_key", KeyId=arn)["KeyMetadata"]["KeyState"])

    def let_keys_go(self) -> list[str]:
        """Schedule the deletion of the stack's keys once they encrypt no volume."""
        own_ones = own(self._stack.name)
        if list(self._aws.pages("ec2", "describe_volumes", "Volumes", Filters=own_ones)):
            return []
        keys = [arn for arn in self._arns("kms:key") if self._key_state(arn) != PENDING_DELETION]
        for arn in keys:
            key_id = arn.rpartition("/")[2]
            self._aws.ask("kms", "schedule_key_deletion", KeyId=key_id, PendingWindowInDays=KEY_WAITS_DAYS)
        return keys

    def end_stragglers(self) -> list[str]:
        """Terminate every instance of the stack that still runs; return their ids."""
        running = [instance.id for instance in self._aws.of_stack(self._stack.name) if not instance.ended]
        if running:
            self._aws.ask("ec2", "terminate_instances", InstanceIds=running)
        return running

    def empty_buckets(self) -> int:
        """Remove every version of every object from the buckets with the stack's tag and name."""
        own = f"{naming.prefixed(self._stack.name)}-"
        buckets = [arn.rpartition(":")[2] for arn in self._arns("s3")]
        return sum(self._empty(bucket) for bucket in buckets if bucket.startswith(own))

    def _empty(self, bucket: str) -> int:
        """Empty one bucket; return the number of objects, 0 where the bucket does not exist."""
        try:
            return buckets.empty(self._aws.s3, bucket, LOG.info, in_batches=True)
        except CannotCheckError as error:
            if error.code == NO_BUCKET:
                return 0
            raise
