"""Refusals of another owner's VPC, buckets and file systems: in a stack file, and in a preview."""

from typing import Any

import pulumi_alicloud
import pulumi_aws
import pytest

from gpu_fleet_stacks.alicloud import existing as of_alicloud
from gpu_fleet_stacks.alicloud import existing_files as files_of_alicloud
from gpu_fleet_stacks.aws import existing as of_aws
from gpu_fleet_stacks.aws import existing_files as files_of_aws
from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.rehearsal.errors import CreationError
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.stacks import alicloud_examples, examples
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES
from tests.stacks.existing import NAT_ROUTE, NO_BUCKET, NO_FILES, on_alicloud, on_aws, registered
from tests.stacks.registrations import run

ZONES, (A, B) = list(EXISTING["subnets"]), EXISTING["subnets"].values()
D, E = EXISTING_VSWITCHES["subnets"]
VPC, (IN_D, IN_E) = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"].values()
KEY = "arn:aws:kms:us-east-1:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
BUCKETS = {"lab-datasets": {}, "lab-results": {"write": True}}
LUSTRE = {"id": "fs-0fedcba9876543210", "mount_name": "abcdefgh"}
EFS = {"id": "fs-0123456789abcdef0"}
NAS, CPFS = {"id": "31a8e4b0c2"}, {"id": "cpfs-00151a2b3c4d5e6f"}
NOT_OURS = "is not in cn-shenzhen, or not of account 1234567890123456"


def refused(make, error: type[StacksError] = SettingsError) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def vpc(**changes: Any) -> dict[str, Any]:
    return {"existing": EXISTING | changes}


def subnets(**by_zone: str | None) -> dict[str, Any]:
    """Return the VPC with other subnets of zones, or without one."""
    made = EXISTING["subnets"] | {zone.replace("_", "-"): subnet for zone, subnet in by_zone.items()}
    return vpc(subnets={zone: subnet for zone, subnet in made.items() if subnet})


def vswitches(**changes: Any) -> dict[str, Any]:
    return {"existing": EXISTING_VSWITCHES | changes}


MADE = "is only for the stack's own network"
HOME, SCRATCH = ({"storage": {key: value}} for key, value in (("home", True), ("scratch_gib", 2400)))
OWN = {"cidr": "10.0.0.0/16", "existing": None}
ELSEWHERE = KEY.replace("us-east-1", "us-west-2")
AN_ARN = "must be the ARN of a key in us-east-1, such as arn:aws:kms:us-east-1:123456789012:key/"
OTHERS_DATA = "gpu-fleet-guest-data-123456789012"


def network(says: str, make=on_aws, **said: Any) -> tuple[str, Any]:
    return says, lambda: make(said)


def existing(says: str, make=on_aws, *, more: dict[str, Any] | None = None, **said: Any) -> tuple[str, Any]:
    return says, lambda: make(existing=said, **more or {})


def buckets(says: str, make=on_aws, **named: Any) -> tuple[str, Any]:
    return says, lambda: make(existing={"buckets": named})


# What is said of a stack file, and the file.
REFUSED = (
    network(f"network.cidr = '10.0.0.0/16': {MADE}; leave it out", cidr="10.0.0.0/16"),
    network("network.cidr = null: required, and missing, unless network.existing", existing=None),
    network(f"network.nat = 'none': {MADE}; use network.existing.internet", nat="none"),
    network(f"network.peers = ['10.9.0.0/16']: {MADE}", peers=["10.9.0.0/16"]),
    network(f"network.s3_buckets = ['open-*']: {MADE}", s3_buckets=["open-*"]),
    network("vpc_id = 'vpc-guest': must be the id of a VPC of aws, such as", **vpc(vpc_id="vpc-guest")),
    network("us-east-1b = 'vsw-1': must be the id of a subnet of aws", **subnets(us_east_1b="vsw-1")),
    network(
        "us-east-1b = null: required, and missing: network.zones names the zone", **subnets(us_east_1b=None)
    ),
    network(
        "subnets.us-east-1c = 'subnet-0123abcd': of no zone in use; network.zones are us-east-1a, us-east-1b",
        **subnets(us_east_1c="subnet-0123abcd"),
    ),
    network(f"'{A}': given to 2 zones; a subnet is in one", **vpc(subnets=dict.fromkeys(ZONES, A))),
    network("network.existing.vpc = 'x': unknown key; did you mean 'vpc_id'?", **vpc(vpc="x")),
    network("existing.subnets = null: required, and missing", existing={"vpc_id": EXISTING["vpc_id"]}),
    network("existing = 'vpc-1': must be a mapping with the keys vpc_id, subnets", existing="vpc-1"),
    network("= 'vpc-X': must be the id of a VPC of alicloud", on_alicloud, **vswitches(vpc_id="vpc-X")),
    network(
        f"network.existing.subnets.{E} = 'subnet-0123abcd': must be the id of a vSwitch of alicloud",
        on_alicloud,
        **vswitches(subnets={D: IN_D, E: "subnet-0123abcd"}),
    ),
    network(f"subnets.{E} = null: required, and missing", on_alicloud, **vswitches(subnets={D: IN_D})),
    network(f"'{IN_D}': given to 2 zones", on_alicloud, **vswitches(subnets={D: IN_D, E: IN_D})),
    existing("home.id = '31a8e4b0c2': must be the id of a file system of EFS, such as fs-", home=NAS),
    existing("scratch.id = '31a8e4b0c2': must be the id of a file system of CPFS", on_alicloud, scratch=NAS),
    existing("scratch.mount_name = null: must be its mount name", scratch={"id": LUSTRE["id"]}),
    existing("home.mount_name = 'abcdefgh': is only for F", home=EFS | {"mount_name": "abcdefgh"}),
    existing("mount_name = 'x': is only for FSx", on_alicloud, scratch=CPFS | {"mount_name": "x"}),
    existing("storage.home = true: storage.existing.home takes its place", home=EFS, more=HOME),
    existing("scratch_gib = 2400: storage.existing.scratch takes its place", scratch=LUSTRE, more=SCRATCH),
    existing(f"existing.home = '{EFS['id']}': needs network.existing", home=EFS, more={"network": OWN}),
    existing("storage.existing.home.id = null: required, and missing", home={"uid": "x"}),
    buckets(f"buckets = '{OTHERS_DATA}': is the stack's own; leave it out", **{OTHERS_DATA: {}}),
    buckets(f"buckets.lab.key = 'alias/lab': {AN_ARN}", lab={"key": "alias/lab"}),
    buckets("must be the ARN of a key in us-east-1", lab={"key": ELSEWHERE}),
    buckets("must be the ARN of a key in us-east-1", lab={"key": KEY.replace("1:key", "\u0661:key")}),
    buckets("must be the ARN of a key in cn-shenzhen, such as acs:kms:", on_alicloud, lab={"key": KEY}),
    buckets("buckets = 'my.lab': a bucket of OSS has no dots", on_alicloud, **{"my.lab": {}}),
    buckets("must be the name of a bucket: 3 to 63 lower case letters", Lab={}),
    buckets("storage.existing.buckets.lab.writes = true: unknown key", lab={"writes": True}),
    buckets("storage.existing.buckets.lab.write = 'yes'", lab={"write": "yes"}),
    buckets("must have at most 10 items", **{f"lab-{number}": {} for number in range(11)}),
)


def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed():
    assert [f"{says} not in {said}" for says, make in REFUSED if says not in (said := refused(make))] == []


# previews


def preview(monkeypatch, settings, error, **answers: Any) -> str:
    return refused(lambda: registered(monkeypatch, settings, **answers), error)


LOCAL = {"cidrBlock": "10.77.0.0/16", "gatewayId": "local"}
TO_INTERNET = {"cidrBlock": "0.0.0.0/0", "gatewayId": "igw-0123456789abcdef0"}


OF_A_SUBNET = {
    "is in vpc-0ffff; must be in vpc-0123456789abcdef0": {"vpcId": "vpc-0ffff"},
    "is in us-east-1f; must be in us-east-1": {"availabilityZone": "us-east-1f"},
    "gives instances public addresses; must be a private subnet": {"mapPublicIpOnLaunch": True},
    "10.77.0.0/30 has 0 addresses for instances; groups of that zone need 2": {"cidrBlock": "10.77.0.0/30"},
    "has no route to 0.0.0.0/0; network.existing.internet is true": {"routes": []},
    "has no route to 0.0.0.0/0": {"routes": [LOCAL]},
    "reaches 0.0.0.0/0 by igw-0123456789abcdef0, which answers public addresses alone": {
        "routes": [LOCAL, TO_INTERNET]
    },
}


def test_a_subnet_must_be_what_the_file_says_and_lead_out(monkeypatch):
    pools = [examples.pool(), examples.pool(name="cluster", types=["p4d.24xlarge"], efa=True)]
    made, error = on_aws(pools=pools), of_aws.ExistingNetworkError

    said = {says: preview(monkeypatch, made, error, **each) for says, each in OF_A_SUBNET.items()}

    assert {says: text for says, text in said.items() if says not in text} == {}
    assert all("network.existing.subnets.us-east-1a" in text for text in said.values())


def test_all_that_is_wrong_with_a_vpc_on_alibaba_cloud_is_one_message(monkeypatch):
    away = "vpc-wz9000000000000000000"
    settings = on_alicloud(vswitches(vpc_id=away), pools=[alicloud_examples.pool(zones=[D])])
    answers = {"routes": [], "zoneId": "cn-shenzhen-f", "cidrBlock": "10.77.0.0/30"}

    said = preview(monkeypatch, settings, of_alicloud.ExistingNetworkError, **answers)

    no_route = "has no route to 0.0.0.0/0; network.existing.internet is true"
    assert said.splitlines() == [
        f"network.existing.vpc_id = '{away}': {NOT_OURS}",
        *(
            f"network.existing.subnets.{zone} = '{vswitch}': {wrong}"
            for zone, vswitch in EXISTING_VSWITCHES["subnets"].items()
            for wrong in (
                f"is in {VPC}; must be in {away}",
                f"is in cn-shenzhen-f; must be in {zone}",
                f"its route table vtb-wz9f0000000000000000 {no_route}",
            )
        ),
        f"network.existing.subnets.{D} = '{IN_D}': 10.77.0.0/30 has 0 addresses for instances; groups of "
        "that zone need 2",
        "network.existing.subnets = '10.77.0.0/30, 10.77.0.0/30': have 0 addresses for instances together; "
        "full pools need 2",
    ]


def test_a_vswitch_is_there_and_its_way_out_serves_instances_without_a_public_address(monkeypatch):
    unknown = "vsw-bp1s5fnvk4gn2tws03624"
    elsewhere = on_alicloud(vswitches(subnets={D: IN_D, E: unknown}))

    def said(settings=None, **route: Any) -> str:
        routes = [NAT_ROUTE | route]
        return preview(
            monkeypatch, settings or on_alicloud(), of_alicloud.ExistingNetworkError, routes=routes
        )

    assert said(elsewhere) == f"network.existing.subnets.{E} = '{unknown}': {NOT_OURS}"
    assert "has no route to 0.0.0.0/0" in said(status="Pending")
    public_alone = "leads to an IPv4 gateway, which answers public addresses alone"
    assert public_alone in said(nextHopType="Ipv4Gateway")


def test_a_vpc_that_is_not_there_ends_the_program():
    with moto_server("us-east-1"), pytest.raises(CreationError, match="InvalidVpcID"):
        run(on_aws())


OF_FILES = (
    (on_aws, "home", EFS, {"encrypted": False}, "is not encrypted, and EFS cannot encrypt it later"),
    (
        *(on_aws, "home", EFS, {"availabilityZoneName": "us-east-1a"}),
        "is in us-east-1a only; instances start in us-east-1a",
    ),
    (on_alicloud, "home", NAS, NO_FILES, NOT_OURS),
    (on_alicloud, "home", NAS, {"encryptType": 0}, "is not encrypted, and NAS cannot encrypt it later"),
    (on_alicloud, "home", NAS, {"protocolType": "SMB"}, "speaks SMB; must speak NFS"),
    (on_alicloud, "scratch", CPFS, {"fileSystemType": "standard"}, "is of kind standard; must be cpfs"),
)
ERRORS = {
    on_aws: files_of_aws.ExistingFileSystemError,
    on_alicloud: files_of_alicloud.ExistingFileSystemError,
}


def test_file_systems_that_cannot_be_used_are_refused(monkeypatch):
    for make, purpose, used, files, wrong in OF_FILES:
        said = preview(monkeypatch, make(existing={purpose: used}), ERRORS[make], files=files)
        assert f"storage.existing.{purpose}.id = '{used['id']}': {wrong}" in said
    for target in (NO_FILES, {"status": "Inactive"}):
        said = preview(monkeypatch, on_alicloud(existing={"home": NAS}), ERRORS[on_alicloud], target=target)
        assert f"home.id = '{NAS['id']}': has no active mount target in vpc-wz9opxu1zkhn00gzv26cn" in said


def test_every_bucket_elsewhere_is_named_and_one_that_keeps_objects_in_the_clear(monkeypatch):
    used = {"buckets": BUCKETS}

    def every(wrong: str) -> list[str]:
        return [f"storage.existing.buckets.{name} = '{name}': {wrong}" for name in BUCKETS]

    def in_oss(bucket: Any) -> list[str]:
        error = of_alicloud.ExistingBucketError
        return preview(monkeypatch, on_alicloud(existing=used), error, bucket=bucket).splitlines()

    away = preview(monkeypatch, on_aws(existing=used), of_aws.ExistingBucketError, region="eu-west-1")
    assert away.splitlines() == every("is in eu-west-1; must be in us-east-1")
    assert in_oss(NO_BUCKET) == every("is no bucket of account 1234567890123456")
    beijing = in_oss({"location": "oss-cn-beijing"})
    assert beijing == every("is in oss-cn-beijing; must be in oss-cn-shenzhen")
    assert in_oss({"serverSideEncryptionRule": {}}) == [
        "storage.existing.buckets.lab-results = 'lab-results': encrypts nothing by itself; its owner sets "
        "KMS or AES256, or write stays false"
    ]


def test_what_the_provider_says_of_a_lookup_is_reported_with_its_key(monkeypatch):
    def failing(**_: Any) -> None:
        raise Exception("invoke failed: Forbidden.RAM, or couldn't find resource")

    aws, alicloud = on_aws(existing={"home": EFS, "buckets": BUCKETS}), on_alicloud()
    for module, name in (
        (pulumi_aws.ec2, "get_vpc"),
        (pulumi_aws.s3, "get_bucket"),
        (pulumi_aws.efs, "get_file_system"),
        (pulumi_alicloud.vpc, "get_networks"),
    ):
        monkeypatch.setattr(module, name, failing)

    home = aws.storage.existing.home
    said = {
        "network.existing.vpc_id = 'vpc-0": refused(
            lambda: registered(monkeypatch, on_aws()), of_aws.ExistingNetworkError
        ),
        "network.existing.vpc_id = 'vpc-w": refused(
            lambda: registered(monkeypatch, alicloud), of_alicloud.ExistingNetworkError
        ),
        "buckets.lab-results = ": refused(
            lambda: of_aws.look_at_buckets(aws, parent=None), of_aws.ExistingBucketError
        ),
        "existing.home.id = ": refused(
            lambda: files_of_aws.home(aws, home, parent=None), files_of_aws.ExistingFileSystemError
        ),
    }
    assert [
        key for key, text in said.items() if key not in text or "couldn't find resource" not in text
    ] == []
