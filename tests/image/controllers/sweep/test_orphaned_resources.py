"""Unused volumes, addresses and instances: reported with their cost, removed only with care."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.orphaned_resources import GIB_MONTH, Step, judge
from gpu_fleet_image.controllers.sweep.tidy import find_orphans
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import TAG_IDLE_SINCE, TAG_PROTECTED, Instance, Kind, OrphanedResource
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.providers.aws.orphaned_resources import OrphanedResources
from tests.image.fake_aws import fake_aws
from tests.image.moto_fleet import NOW, REGION, STACK, TAGS, client, launched, wire
from tests.image.sweeping import policy

REMOVING = policy(top={"leftovers": {"older_than_days": 14, "remove": True}})
LISTING = policy(top={"leftovers": {"older_than_days": 14, "remove": False}})
LONG_AGO = NOW - timedelta(days=15)


def volume(noted=LONG_AGO, **tags) -> OrphanedResource:
    note = {TAG_IDLE_SINCE: noted.isoformat()} if noted else {}
    return OrphanedResource(Kind.VOLUME, "vol-1", TAGS | note | tags, size_gib=200, volume_type="gp3")


def step(orphan, checked=REMOVING, snapshots=None) -> Step:
    (finding,) = judge([orphan], snapshots or {}, checked, NOW)
    return finding.step


@pytest.mark.parametrize(
    "tags", [{TAG_PROTECTED: ""}, {"gpu-fleet:keep-until": "whenever"}, {"gpu-fleet:managed": "false"}]
)
def test_a_volume_that_is_protected_held_or_not_managed_stays(tags):
    assert step(volume(), snapshots={"vol-1": NOW}) is Step.REMOVE
    assert step(volume(**tags), snapshots={"vol-1": NOW}) is Step.LIST


def test_a_volume_seen_for_the_first_time_is_noted_whatever_its_age_and_one_in_use_again_forgotten():
    assert step(volume(noted=None), snapshots={"vol-1": NOW}) is Step.NOTE
    assert step(volume(), LISTING, {"vol-1": NOW}) is Step.LIST, "the policy removes none"
    assert step(replace(volume(), in_use=True)) is Step.FORGET


@given(noted=st.none() | st.integers(-400, 400), snapshot=st.none() | st.integers(-400, 400))
@example(noted=13, snapshot=0)
@example(noted=15, snapshot=16)
@example(noted=15, snapshot=None)
def test_nothing_is_removed_without_its_time_and_a_snapshot_since(noted, snapshot):
    at = None if noted is None else NOW - timedelta(days=noted)
    snapshots = {} if snapshot is None else {"vol-1": NOW - timedelta(days=snapshot)}

    removed = step(volume(at), snapshots=snapshots) is Step.REMOVE

    assert removed == (noted is not None and noted >= 14 and snapshot is not None and snapshot <= noted)


def test_the_report_says_since_when_and_what_it_costs_a_month_where_that_is_known():
    elsewhere = policy(top={"region": "eu-central-1"})
    (known,) = judge([volume()], {}, LISTING, NOW)
    (unknown,) = judge([volume(noted=None)], {}, elsewhere, NOW)

    assert (known.monthly_price, unknown.monthly_price) == (Decimal("16.00"), None)
    assert (
        known.to_json().items() >= {"unused_since": format_time(LONG_AGO), "price_per_month": "16.00"}.items()
    )
    assert unknown.to_json().items() >= {"unused_since": None, "price_per_month": None}.items()


@pytest.fixture
def ec2():
    with fake_aws():
        yield client("ec2")


def orphans_of(ec2, cloudwatch=None):
    return OrphanedResources(SimpleNamespace(ec2=ec2, cloudwatch=cloudwatch), Calls(lambda: NOW), STACK)


def owned(kind, tags):
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": wire(tags)}] if tags else []}


def made_volume(ec2, tags=TAGS, attached_to=None, **more):
    made = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=1, **owned("volume", tags), **more)
    if attached_to:
        ec2.attach_volume(Device="/dev/sdf", InstanceId=attached_to, VolumeId=made["VolumeId"])
    return made["VolumeId"]


def made_address(ec2, tags):
    return ec2.allocate_address(Domain="vpc", **owned("elastic-ip", tags))["AllocationId"]


def found_beside(ec2, stopped):
    """What is found beside a stopped instance."""
    instance = Instance(stopped, "g5.xlarge", "stopped", NOW, TAGS, stopped_at=NOW)
    return orphans_of(ec2).find([instance])


NOTED = TAGS | {TAG_IDLE_SINCE: "2026-01-01T00:00:00Z"}


def test_unattached_volumes_free_addresses_and_stopped_instances_are_found(ec2):
    unattached, free = made_volume(ec2, VolumeType="gp3"), made_address(ec2, TAGS)
    made_address(ec2, {})
    (instance_id,) = launched()

    found = found_beside(ec2, instance_id)

    assert {(entry.kind, entry.id, entry.in_use) for entry in found} == {
        *((Kind.VOLUME, unattached, False), (Kind.ADDRESS, free, False), (Kind.INSTANCE, instance_id, False))
    }
    instance = next(entry for entry in found if entry.kind is Kind.INSTANCE)
    assert instance.size_gib > 0
    assert instance.volume_type in GIB_MONTH, "its disks are all of one kind"


def test_disks_of_several_kinds_have_no_price_together(ec2):
    (key,) = launched()
    made_volume(ec2, {}, attached_to=key, VolumeType="sc1")

    (found,) = found_beside(ec2, key)

    assert found.volume_type == ""


def test_an_address_in_use_is_reported_where_it_was_noted_and_else_left_out(ec2):
    noted, other = made_address(ec2, NOTED), made_address(ec2, TAGS)
    for address, instance in zip((noted, other), launched(2), strict=True):
        ec2.associate_address(AllocationId=address, InstanceId=instance)

    (found,) = orphans_of(ec2).find()

    assert (found.id, found.in_use) == (noted, True)
    assert step(found) is Step.FORGET


def test_a_noted_volume_that_is_attached_again_is_found_and_forgotten(ec2):
    """Otherwise its old note would shorten the wait the next time it is detached."""
    made_volume(ec2, NOTED, attached_to=launched()[0])

    (found,) = orphans_of(ec2).find()

    assert step(found) is Step.FORGET


def test_removing_takes_the_volume_and_the_address_and_never_an_instance(ec2):
    where = orphans_of(ec2)

    where.remove(OrphanedResource(Kind.VOLUME, made_volume(ec2)))

    assert where.find() == []
    with pytest.raises(ValueError, match="cannot be removed here"):
        where.remove(OrphanedResource(Kind.INSTANCE, "i-1"))


class Volumes:
    """Fake of EC2 and CloudWatch with a noted volume that has had a snapshot since."""

    def __init__(self, written_at: datetime | None, status: str = "Complete") -> None:
        self.written_at, self.status, self.deleted = written_at, status, []
        self.ec2 = self.cloudwatch = self

    def describe_volumes(self, Filters, **_):  # noqa: N803 - boto3's
        wanted = next(filter_["Values"] for filter_ in Filters if filter_["Name"] == "status")
        tags = [{"Key": key, "Value": value} for key, value in volume().tags.items()]
        row = {"VolumeId": "vol-1", "Tags": tags, "Size": 200, "VolumeType": "gp3"}
        return {"Volumes": [row] if wanted == ["available"] else []}

    def describe_addresses(self, **_):
        return {"Addresses": []}

    def describe_snapshots(self, **_):
        return {"Snapshots": [{"VolumeId": "vol-1", "StartTime": LONG_AGO + timedelta(days=2)}]}

    def get_metric_data(self, MetricDataQueries, StartTime, EndTime, **_):  # noqa: N803 - boto3's
        (metric,) = [metric_data_query["MetricStat"]["Metric"] for metric_data_query in MetricDataQueries]
        assert (metric["Namespace"], metric["MetricName"]) == ("AWS/EBS", "VolumeWriteOps")
        assert metric["Dimensions"] == [{"Name": "VolumeId", "Value": "vol-1"}]
        at = self.written_at
        hour = [at.replace(minute=0, second=0)] if at and StartTime <= at <= EndTime else []
        answer = {"Id": "q0", "Timestamps": hour, "Values": [0.0] * len(hour), "StatusCode": self.status}
        return {"MetricDataResults": [answer]}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, Step.REMOVE),
        (timedelta(hours=5), Step.LIST),
        (timedelta(days=1), Step.LIST),
        (timedelta(days=13, hours=2), Step.LIST),
        (timedelta(days=14, hours=2), Step.REMOVE),
        (timedelta(days=15, hours=2), Step.REMOVE),
    ],
    ids=["never", "today", "yesterday", "lately", "long ago and before its snapshot", "before it was noted"],
)
def test_a_volume_that_was_attached_and_detached_between_two_looks_is_unused_since_then(written, expected):
    """Its note and its snapshot are older than the last writes to it."""
    fake = Volumes(None if written is None else NOW - written)

    (finding,) = find_orphans(orphans_of(fake, fake), [], REMOVING, NOW)

    assert finding.step is expected
    noted_at = LONG_AGO if written is None else max(LONG_AGO, NOW - written)
    assert finding.unused_since is not None
    assert timedelta(0) <= finding.unused_since - noted_at <= timedelta(hours=1)


def test_a_volume_whose_use_cannot_be_read_whole_is_not_removed():
    fake = Volumes(None, "PartialData")

    with pytest.raises(CloudError, match="use of vol-1: cut off"):
        find_orphans(orphans_of(fake, fake), [], REMOVING, NOW)


def test_where_nothing_is_to_be_removed_no_use_is_asked_for():
    fake = Volumes(None)

    (finding,) = find_orphans(orphans_of(fake), [], LISTING, NOW)

    assert finding.step is Step.LIST
