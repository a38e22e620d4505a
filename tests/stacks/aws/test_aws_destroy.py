"""Resources that a plain `pulumi destroy` of an AWS stack keeps, after a deployment to moto."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.rehearsal.registrations import Registration
from tests.stacks.rehearsal.deletions import DELETERS
from tests.stacks.rehearsal.destroy import Destroyed, destroy
from tests.stacks.standing import usable

REGION = "us-east-1"
BUCKET = "aws:s3/bucket:Bucket"
KEY = "aws:kms/key:Key"
CONTENT = b"step 4000"


@dataclass(frozen=True)
class Applied:
    """A deployed stack in moto, and reads of it."""

    rehearsed: Rehearsed
    clients: RegionClients

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION)

    @property
    def buckets(self) -> list[str]:
        """Buckets under the stack's own key; that of access logs is encrypted by S3's (SSE-S3)."""
        own = self.rehearsed.of_type(BUCKET)
        return [resource.id for resource in own if not resource.name.endswith("-access-logs")]

    @property
    def key(self) -> Registration:
        (found,) = self.rehearsed.of_type(KEY)
        return found

    def fill(self) -> None:
        for bucket in self.buckets:
            self.client("s3").put_object(Bucket=bucket, Key="dev/run/last", Body=CONTENT)

    def empty(self) -> None:
        for bucket in self.buckets:
            boto3.resource("s3", region_name=REGION).Bucket(bucket).object_versions.delete()

    def destroy(self, state=None, **options) -> Destroyed:
        found = self.rehearsed.registrations if state is None else state
        return destroy(found, self.clients, DELETERS, **options)

    def key_state(self) -> str:
        return self.client("kms").describe_key(KeyId=self.key.id)["KeyMetadata"]["KeyState"]

    def read(self, bucket: str) -> bytes:
        """Read an object, and check its key: S3 needs an enabled key, while moto stores plain objects."""
        found = self.client("s3").get_object(Bucket=bucket, Key="dev/run/last")
        assert found["SSEKMSKeyId"] in (self.key.id, self.key.outputs["arn"])
        assert self.key_state() == "Enabled"
        return found["Body"].read()

    def hold_its_settings(self) -> None:
        s3 = self.client("s3")
        for bucket in self.buckets:
            blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
            assert set(blocked.values()) == {True}
            assert "aws:SecureTransport" in s3.get_bucket_policy(Bucket=bucket)["Policy"]
            assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
            (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
            assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == self.key.outputs["arn"]


@contextmanager
def applied(name: str) -> Iterator[Applied]:
    with usable(name) as rehearsed:
        clients = RegionClients(REGION)
        yield Applied(rehearsed, clients)
        clients.pool.close()


def test_a_destroy_keeps_data_readable_under_its_settings_and_key_and_a_second_one_finishes_it():
    with applied("aws-dev") as stack:
        stack.fill()

        first = stack.destroy()

        assert [stack.read(bucket) for bucket in stack.buckets] == [CONTENT] * 3
        full = {bucket.urn: "DeleteBucket: BucketNotEmpty" for bucket in stack.rehearsed.of_type(BUCKET)}
        assert first.failed == full
        kept = {"aws:kms/alias:Alias", "aws:iam/serviceLinkedRole:ServiceLinkedRole"}
        assert {KEY, BUCKET} | kept <= {resource.type for resource in first.left}
        stack.hold_its_settings()
        # what costs by the hour is gone all the same
        gateways = stack.client("ec2").describe_nat_gateways()["NatGateways"]
        assert {gateway["State"] for gateway in gateways} <= {"deleted", "deleting"}
        assert stack.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
        assert stack.client("lambda").list_functions()["Functions"] == []

        stack.empty()
        second = stack.destroy(first.left)

        assert (second.failed, second.left) == ({}, ())
        assert stack.client("s3").list_buckets()["Buckets"] == []
        assert stack.key_state() == "Enabled"


def test_a_protected_stack_is_refused_before_anything_is_touched():
    with applied("aws-prod") as stack:
        done = stack.destroy()

        assert done.asked == ()
        assert {resource.urn for resource in stack.rehearsed.of_type(BUCKET)} < set(done.refused)
        left = {bucket["Name"] for bucket in stack.client("s3").list_buckets()["Buckets"]}
        assert left == {resource.id for resource in stack.rehearsed.of_type(BUCKET)}


def test_excluding_what_is_protected_keeps_the_data_its_key_and_its_settings():
    """``pulumi destroy --exclude-protected``."""
    with applied("aws-prod") as stack:
        stack.fill()
        protected = [made.urn for made in stack.rehearsed.registrations if made.protected]

        done = stack.destroy(exclude=protected)

        assert (done.failed, done.refused) == ({}, ())
        assert [stack.read(bucket) for bucket in stack.buckets] == [CONTENT] * 3
        stack.hold_its_settings()


def without_their_order(registration: Registration) -> Registration:
    """Restore the former graph: buckets without a key, settings deleted first, a key that Pulumi deletes."""
    needed = () if registration.type == BUCKET else registration.dependencies
    retained = registration.retained and registration.type != KEY
    return replace(registration, dependencies=needed, deleted_with="", retained=retained)


def test_without_that_order_the_same_destroy_loses_the_data():
    """This checks the proof itself: it can fail."""
    with applied("aws-dev") as stack:
        stack.fill()

        stack.destroy([without_their_order(registration) for registration in stack.rehearsed.registrations])

        assert stack.key_state() == "PendingDeletion"
        with pytest.raises(stack.client("s3").exceptions.ClientError, match="PublicAccessBlock"):
            stack.client("s3").get_public_access_block(Bucket=stack.buckets[0])
