"""One function empties a bucket on both clouds; a refused deletion ends it with one message."""

from functools import partial

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.acceptance.alicloud import AlicloudAccount
from gpu_fleet_stacks.acceptance.aws import AwsAccount
from gpu_fleet_stacks.acceptance.clock import SystemClock
from gpu_fleet_stacks.clients import buckets
from gpu_fleet_stacks.clients.alicloud import Alicloud
from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.settings.stack_files import settings_of
from gpu_fleet_stacks.teardown.alicloud import AlicloudStack
from gpu_fleet_stacks.teardown.aws import AwsStack

BUCKET = "gpu-fleet-aws-dev-data-123456789012"


class Store:
    """Fake bucket of S3, with pages and refusals.

    ``keeps`` are keys that it deletes no version of; ``lies`` of which it says so all the same.
    """

    def __init__(self, versions, page=1000, keeps=(), lies=()):
        self.versions, self.page, self.keeps, self.lies = list(versions), page, set(keeps), set(lies)
        self.uploads = [{"Key": "half", "UploadId": "u-1"}, {"Key": "half", "UploadId": "u-2"}]

    def ask(self, operation, *, Bucket, **arguments):  # noqa: N803 - boto3's
        assert Bucket == BUCKET
        return getattr(self, operation)(**arguments)

    def list_multipart_uploads(self):
        return {"Uploads": self.uploads[:1]}

    def abort_multipart_upload(self, Key, UploadId):  # noqa: N803 - boto3's
        self.uploads = [upload for upload in self.uploads if upload["UploadId"] != UploadId]
        return {}

    def list_object_versions(self, MaxKeys):  # noqa: N803 - boto3's
        rows = [{"Key": key, "VersionId": version} for key, version in self.versions]
        return {"Versions": rows[: min(MaxKeys, self.page)][::2], "DeleteMarkers": rows[: self.page][1::2]}

    def delete_object(self, Key, VersionId):  # noqa: N803 - boto3's
        if Key in self.keeps:
            raise CannotCheckError("DeleteObject: AccessDenied: no", "AccessDenied")
        if Key not in self.lies:
            self.versions.remove((Key, VersionId))
        return {}

    def delete_objects(self, Delete):  # noqa: N803 - boto3's
        errors = []
        for stored_object in Delete["Objects"]:
            try:
                self.delete_object(stored_object["Key"], stored_object["VersionId"])
            except CannotCheckError:
                errors.append({"Key": stored_object["Key"], "Code": "AccessDenied", "Message": "no"})
        return {"Errors": errors} if errors else {}


WAYS = pytest.mark.parametrize("in_batches", [True, False], ids=["S3", "OSS"])
VERSIONS = st.lists(st.tuples(st.sampled_from("abc"), st.uuids().map(str)), unique=True, max_size=12)


@WAYS
@given(VERSIONS, st.integers(1, 5))
def test_every_version_is_deleted_however_many_pages_they_fill(in_batches, versions, page):
    store, notes = Store(versions, page), []

    removed = buckets.empty(store.ask, BUCKET, notes.append, in_batches=in_batches)

    assert (store.versions, store.uploads) == ([], [])
    assert removed == len(versions)
    assert len(notes) == -(-len(versions) // page)


@WAYS
def test_a_deletion_that_is_refused_or_only_agreed_to_ends_it_and_names_the_reason(in_batches):
    refusing = Store([("a", "1"), ("held", "1"), ("b", "1")], keeps=["held"])
    lying = Store([("ghost", "1")], lies=["ghost"])

    with pytest.raises(CannotCheckError, match="AccessDenied: no"):
        buckets.empty(refusing.ask, BUCKET, str, in_batches=in_batches)
    with pytest.raises(CannotCheckError, match=f"{BUCKET}/ghost stays, though its deletion was agreed to"):
        buckets.empty(lying.ask, BUCKET, str, in_batches=in_batches)


# through each of its four doors, with a bucket that keeps an object under a lock


@pytest.fixture
def locked():
    """Return boto3's client for a bucket with one object that must not be deleted, and one that may."""
    with moto_server("us-east-1"):
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
        s3.put_object(Bucket=BUCKET, Key="free", Body=b"1")
        hold = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": "2099-01-01T00:00:00Z"}
        s3.put_object(Bucket=BUCKET, Key="held", Body=b"2", **hold)
        yield s3


def test_accept_and_destroy_say_what_they_could_not_delete(locked):
    aws, alicloud = settings_of("aws-dev"), settings_of("alicloud-dev")
    nobody = Alicloud("cn-shenzhen", {})
    accounts = (
        AwsAccount(aws, SystemClock(), clients=lambda service: locked),
        AlicloudAccount(alicloud, SystemClock(), nobody, lambda region: locked),
    )
    stacks = (AwsStack(aws, Aws(lambda service: locked)), AlicloudStack(alicloud, nobody, locked))
    accepts = [account.cleanup._empty for account in accounts]

    for empty in (*accepts, *(partial(stack.empty, note=str) for stack in stacks)):
        with pytest.raises(CannotCheckError, match="AccessDenied"):
            empty(BUCKET)
    assert [empty("gpu-fleet-aws-dev-gone-123456789012") for empty in accepts] == [0, 0]


def test_oss_is_never_asked_for_a_deletion_of_many():
    """OSS requires an MD5 for it, which boto3 no longer sends: 400 MissingArgument, 0016-00000606."""
    store = Store([("a", "1"), ("b", "1")])
    store.delete_objects = None

    assert buckets.empty(store.ask, BUCKET, str, in_batches=False) == 2
