"""What a plain `pulumi destroy` of an AWS stack leaves: applied to moto, filled, destroyed, read again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from stacks.rehearsal.bucket_policies import conditions_left_out
from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.program import Rehearsed
from stacks.rehearsal.registrations import Registration
from tests.rehearsal.deletions import DELETERS
from tests.rehearsal.destroy import Destroyed, destroy
from tests.stacks.registrations import run
from tests.stacks.standing import standing, usable

REGION = "us-east-1"
BUCKET = "aws:s3/bucket:Bucket"
KEY = "aws:kms/key:Key"
CONTENT = b"step 4000"


@dataclass(frozen=True)
class Applied:
    """A stack that stands in moto, and ways to look at it."""

    rehearsed: Rehearsed
    clients: RegionClients

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION)

    @property
    def buckets(self) -> list[str]:
        """Those under the stack's own key: the one of access logs is encrypted by S3's (SSE-S3)."""
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
        return destroy(
            self.rehearsed.registrations if state is None else state, self.clients, DELETERS, **options
        )

    def key_state(self) -> str:
        return self.client("kms").describe_key(KeyId=self.key.id)["KeyMetadata"]["KeyState"]

    def read(self, bucket: str) -> bytes:
        """An object as S3 hands it out: moto keeps it in clear, S3 asks a key that must be enabled."""
        found = self.client("s3").get_object(Bucket=bucket, Key="dev/run/last")
        assert found["SSEKMSKeyId"] in (self.key.id, self.key.outputs["arn"])
        assert self.key_state() == "Enabled"
        return found["Body"].read()


@contextmanager
def applied(name: str) -> Iterator[Applied]:
    with usable(name) as rehearsed:
        clients = RegionClients(REGION)
        yield Applied(rehearsed, clients)
        clients.pool.close()


def filled_and_destroyed() -> tuple[Rehearsed, Destroyed]:
    clients = RegionClients(REGION)
    stack = Applied(run("aws-dev"), clients)
    stack.fill()
    done = stack.destroy()
    clients.pool.close()
    return stack.rehearsed, done


@pytest.fixture
def destroyed() -> Iterator[tuple[Applied, Destroyed]]:
    """aws-dev with an object in each bucket, after a destroy."""
    with conditions_left_out(), standing("destroyed", REGION, filled_and_destroyed) as (rehearsed, done):
        clients = RegionClients(REGION)
        yield Applied(rehearsed, clients), done
        clients.pool.close()


def test_kept_data_is_read_after_a_destroy(destroyed):
    stack, _ = destroyed

    assert [stack.read(bucket) for bucket in stack.buckets] == [CONTENT] * 3


def test_a_bucket_with_objects_stops_the_destroy(destroyed):
    stack, done = destroyed

    assert done.failed == {
        resource.urn: "DeleteBucket: BucketNotEmpty" for resource in stack.rehearsed.of_type(BUCKET)
    }


def test_the_key_its_alias_and_its_role_stay_in_the_state_with_the_buckets(destroyed):
    _, done = destroyed
    types = {resource.type for resource in done.left}

    assert {KEY, BUCKET, "aws:kms/alias:Alias", "aws:iam/serviceLinkedRole:ServiceLinkedRole"} <= types


def test_a_bucket_that_stays_keeps_its_settings(destroyed):
    stack, _ = destroyed
    s3 = stack.client("s3")

    for bucket in stack.buckets:
        blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
        assert set(blocked.values()) == {True}
        assert "aws:SecureTransport" in s3.get_bucket_policy(Bucket=bucket)["Policy"]
        assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
        (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == stack.key.outputs["arn"]


def test_everything_that_costs_by_the_hour_is_gone_all_the_same(destroyed):
    stack, _ = destroyed

    gateways = stack.client("ec2").describe_nat_gateways()["NatGateways"]
    assert {gateway["State"] for gateway in gateways} <= {"deleted", "deleting"}
    assert stack.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert stack.client("lambda").list_functions()["Functions"] == []


def test_an_empty_stack_is_deleted_whole_but_for_its_key_and_a_second_destroy_finishes_a_first():
    with applied("aws-dev") as stack:
        stack.fill()
        first = stack.destroy()
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
        left = stack.client("s3").list_buckets()["Buckets"]
        assert {bucket["Name"] for bucket in left} == {
            resource.id for resource in stack.rehearsed.of_type(BUCKET)
        }


def test_excluding_what_is_protected_keeps_the_data_its_key_and_its_settings():
    """``pulumi destroy --exclude-protected``."""
    with applied("aws-prod") as stack:
        stack.fill()
        protected = [
            registration.urn for registration in stack.rehearsed.registrations if registration.protected
        ]

        done = stack.destroy(exclude=protected)

        assert (done.failed, done.refused) == ({}, ())
        assert [stack.read(bucket) for bucket in stack.buckets] == [CONTENT] * 3
        assert all(
            stack.client("s3").get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"][
                "BlockPublicPolicy"
            ]
            for bucket in stack.buckets
        )


def without_their_order(registration: Registration) -> Registration:
    """As the graph was: buckets that name no key, settings that go first, a key that Pulumi deletes."""
    needed = () if registration.type == BUCKET else registration.dependencies
    return replace(
        registration,
        dependencies=needed,
        deleted_with="",
        retained=registration.retained and registration.type != KEY,
    )


def test_without_that_order_the_same_destroy_loses_the_data():
    """Holds the proof itself: it can fail."""
    with applied("aws-dev") as stack:
        stack.fill()

        stack.destroy([without_their_order(registration) for registration in stack.rehearsed.registrations])

        assert stack.key_state() == "PendingDeletion"
        with pytest.raises(stack.client("s3").exceptions.ClientError, match="PublicAccessBlock"):
            stack.client("s3").get_public_access_block(Bucket=stack.buckets[0])
