"""File systems of somebody else's: how instances reach them, what stays as it was, and what is refused."""

import base64
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import yaml

from stacks.alicloud import existing_files as of_alicloud
from stacks.aws import existing_files as of_aws
from stacks.cost.estimate import estimate
from stacks.errors import SettingsError
from stacks.payload import instance_file
from stacks.rehearsal import monitor
from stacks.rehearsal.bucket_policies import conditions_left_out
from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.program import Rehearsed
from stacks.settings import Stack
from tests.rehearsal.deletions import DELETERS
from tests.rehearsal.destroy import destroy
from tests.stacks import alicloud_examples, examples
from tests.stacks import alicloud_programs as programs
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES
from tests.stacks.existing import NETWORK_OF_FILES, NO_FILES, alicloud_answering, answering, lead_out
from tests.stacks.registrations import run
from tests.stacks.standing import standing

REGION = "us-east-1"
LUSTRE = {"id": "fs-0fedcba9876543210", "mount_name": "abcdefgh"}
EFS = {"id": "fs-0123456789abcdef0"}
NAS, CPFS = {"id": "31a8e4b0c2"}, {"id": "cpfs-00151a2b3c4d5e6f"}
FILE_SYSTEMS = {
    *("aws:efs/fileSystem:FileSystem", "aws:efs/mountTarget:MountTarget"),
    *("aws:efs/fileSystemPolicy:FileSystemPolicy", "aws:efs/backupPolicy:BackupPolicy"),
    "aws:fsx/lustreFileSystem:LustreFileSystem",
}


def using(existing: dict[str, Any], network: Any = None, **storage: Any) -> Stack:
    section = {"zones": list(EXISTING["subnets"]), "existing": EXISTING} if network is None else network
    return examples.stack("guest", network=section, storage={"existing": existing} | storage)


def using_nas(existing: dict[str, Any], **storage: Any) -> Stack:
    network = {"zones": list(EXISTING_VSWITCHES["subnets"]), "existing": EXISTING_VSWITCHES}
    own = {"kms_instance_id": "kst-szh0000000000000000", "existing": existing} | storage
    return alicloud_examples.stack("guest", network=network, storage=own)


def described(user_data: str) -> dict[str, Any]:
    """``instance.toml`` as the registered user data writes it."""
    files = yaml.safe_load(base64.b64decode(user_data))["write_files"]
    (text,) = [file["content"] for file in files if file["path"] == instance_file.PATH]
    return tomllib.loads(text)


# AWS, in moto


def made_by_hand() -> tuple[dict[str, Any], str]:
    """A VPC with two subnets, and an encrypted EFS with a mount target in each."""
    ec2, efs = boto3.client("ec2", region_name=REGION), boto3.client("efs", region_name=REGION)
    vpc = ec2.create_vpc(CidrBlock="172.20.0.0/16")["Vpc"]["VpcId"]
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"172.20.{number}.0/24", AvailabilityZone=zone)[
            "Subnet"
        ]["SubnetId"]
        for number, zone in enumerate(EXISTING["subnets"])
    }
    lead_out(vpc, next(iter(subnets.values())))
    files = efs.create_file_system(CreationToken="lab", Encrypted=True)["FileSystemId"]
    group = ec2.create_security_group(GroupName="nfs", Description="homes", VpcId=vpc)["GroupId"]
    for subnet in subnets.values():
        efs.create_mount_target(FileSystemId=files, SubnetId=subnet, SecurityGroups=[group])
    return {"zones": list(subnets), "existing": {"vpc_id": vpc, "subnets": subnets}}, files


def somebody_elses(files: str) -> Any:
    """All that EFS says of the file system."""
    efs = boto3.client("efs", region_name=REGION)
    targets = efs.describe_mount_targets(FileSystemId=files)["MountTargets"]
    groups = [
        efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"])["SecurityGroups"]
        for target in targets
    ]
    (system,) = efs.describe_file_systems(FileSystemId=files)["FileSystems"]
    measured = {"SizeInBytes"}  # with the second in which it was measured
    return {key: value for key, value in system.items() if key not in measured}, targets, groups


@dataclass(frozen=True)
class Guest:
    """A stack that mounts the file system, in moto; what that was before, and after."""

    files: str
    rehearsed: Rehearsed
    before: Any
    after: Any


def with_foreign_files() -> Guest:
    network, files = made_by_hand()
    before = somebody_elses(files)
    rehearsed = run(using({"home": {"id": files}, "scratch": LUSTRE}, network))
    return Guest(files, rehearsed, before, somebody_elses(files))


@pytest.fixture
def guest() -> Iterator[Guest]:
    with conditions_left_out(), standing("with foreign files", REGION, with_foreign_files) as made:
        yield made


def test_an_up_declares_and_changes_nothing_of_the_file_systems(guest):
    assert {resource.type for resource in guest.rehearsed.resources} & FILE_SYSTEMS == set()
    assert guest.after == guest.before


def test_the_registered_user_data_leads_to_them_as_it_would_to_the_stacks_own(guest):
    (template,) = guest.rehearsed.of_type("aws:ec2/launchTemplate:LaunchTemplate")

    said = described(template.inputs["userData"])

    assert said["home_file_system"] == f"{guest.files}.efs.us-east-1.amazonaws.com"
    assert said["scratch_file_system"] == "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
    assert said["scratch_mount_name"] == "abcdefgh"


def test_the_pools_own_group_opens_to_the_vpc_and_no_group_of_the_owners_changes(guest):
    groups = {group.id for group in guest.rehearsed.of_type("aws:ec2/securityGroup:SecurityGroup")}
    kinds = ("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",)
    kinds += ("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",)
    rules = [rule for kind in kinds for rule in guest.rehearsed.of_type(kind)]
    ports = {
        (rule.type == kinds[0], rule.inputs["fromPort"], rule.inputs["toPort"])
        for rule in rules
        if rule.inputs.get("cidrIpv4") == "172.20.0.0/16"
    }

    assert {rule.inputs["securityGroupId"] for rule in rules} <= groups
    assert ports >= {(True, 2049, 2049), (True, 988, 988), (False, 988, 988), (False, 1018, 1023)}
    assert (False, 2049, 2049) not in ports


def test_a_destroy_leaves_the_file_system_with_its_mount_targets(guest):
    clients = RegionClients(REGION)
    destroy(guest.rehearsed.registrations, clients, DELETERS)
    clients.pool.close()

    assert somebody_elses(guest.files) == guest.before


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"encrypted": False}, "is not encrypted, and EFS encrypts none later"),
        (
            {"availabilityZoneName": "us-east-1a"},
            "stands in us-east-1a alone; instances start in us-east-1a, us-east-1b",
        ),
    ],
)
def test_a_preview_refuses_homes_in_the_clear_or_out_of_reach(files, wrong, monkeypatch, register):
    found = answering(EXISTING["vpc_id"], EXISTING["subnets"], files=files)
    monkeypatch.setattr(monitor, "answer", found)

    with pytest.raises(of_aws.ExistingFileSystemError) as caught:
        register(using({"home": EFS}))

    assert f"storage.existing.home.id = '{EFS['id']}': {wrong}" in str(caught.value)


def test_homes_that_are_not_there_are_reported_with_their_key(monkeypatch):
    def failing(**_: Any) -> None:
        raise Exception("invoke of aws:efs/getFileSystem:getFileSystem failed: couldn't find resource")

    monkeypatch.setattr(of_aws.aws.efs, "get_file_system", failing)
    settings = using({"home": EFS})
    with pytest.raises(
        of_aws.ExistingFileSystemError, match=r"existing\.home\.id = .*couldn't find resource"
    ):
        of_aws.home(settings, settings.storage.existing.home, parent=None)


def test_existing_file_systems_cost_the_stack_nothing():
    existing = using({"home": EFS, "scratch": LUSTRE})

    assert estimate(existing).lines == estimate(using({})).lines


# Alibaba Cloud


def registered(monkeypatch, settings: Stack, **answers: Any) -> Rehearsed:
    vpc, vswitches = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"]
    monkeypatch.setattr(monitor, "answer", alicloud_answering(vpc, vswitches, **answers))
    return programs.register(settings)


def test_instances_on_alibaba_cloud_are_led_to_the_mount_targets(monkeypatch):
    found = registered(monkeypatch, using_nas({"home": NAS, "scratch": CPFS}))
    (template,) = programs.inputs(found, "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate")

    said = described(template["userData"])

    assert said["home_file_system"] == "31a8e4b0c2-abc12.cn-shenzhen.nas.aliyuncs.com"
    assert said["scratch_file_system"] == "cpfs-00151a2b3c4d5e6f-abc12.cn-shenzhen.nas.aliyuncs.com"
    assert not [resource.type for resource in found.resources if resource.type.startswith("alicloud:nas/")]


def opened(found: Rehearsed) -> set[tuple[str, str]]:
    return {
        (rule["type"], rule["portRange"])
        for rule in programs.inputs(found, "alicloud:ecs/securityGroupRule:SecurityGroupRule")
        if rule["cidrIp"] == NETWORK_OF_FILES
    }


def test_pools_open_to_the_vswitch_of_the_mount_target_and_no_further(monkeypatch):
    homes = registered(monkeypatch, using_nas({"home": NAS}))
    both = registered(monkeypatch, using_nas({"home": NAS, "scratch": CPFS}))

    assert opened(homes) == {("egress", "2049/2049")}
    assert opened(both) == {("egress", "-1/-1"), ("ingress", "-1/-1")}


@pytest.mark.parametrize(
    ("purpose", "id_", "answers", "wrong"),
    [
        ("home", NAS, {"files": NO_FILES}, "is not in cn-shenzhen, or not of account 1234567890123456"),
        ("home", NAS, {"files": {"encryptType": 0}}, "is not encrypted, and NAS encrypts none later"),
        ("home", NAS, {"files": {"protocolType": "SMB"}}, "speaks SMB; must speak NFS"),
        ("home", NAS, {"target": NO_FILES}, "has no active mount target in vpc-wz9opxu1zkhn00gzv26cn"),
        ("home", NAS, {"target": {"status": "Inactive"}}, "has no active mount target"),
        ("scratch", CPFS, {"files": {"fileSystemType": "standard"}}, "is of kind standard; must be cpfs"),
    ],
    ids=["missing", "in-the-clear", "smb", "no-target", "inactive-target", "no-cpfs"],
)
def test_a_preview_on_alibaba_cloud_refuses_what_cannot_be_used(purpose, id_, answers, wrong, monkeypatch):
    with pytest.raises(of_alicloud.ExistingFileSystemError) as caught:
        registered(monkeypatch, using_nas({purpose: id_}), **answers)

    assert f"storage.existing.{purpose}.id = '{id_['id']}': {wrong}" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: using({"home": NAS}),
            "storage.existing.home.id = '31a8e4b0c2': must be the id of a file system of EFS, such as fs-",
        ),
        (
            lambda: using_nas({"scratch": NAS}),
            "storage.existing.scratch.id = '31a8e4b0c2': must be the id of a file system of CPFS, such as",
        ),
        (
            lambda: using({"scratch": {"id": LUSTRE["id"]}}),
            "storage.existing.scratch.mount_name = None: must be its mount name",
        ),
        (
            lambda: using({"home": EFS | {"mount_name": "abcdefgh"}}),
            "storage.existing.home.mount_name = 'abcdefgh': is of FSx for Lustre",
        ),
        (
            lambda: using_nas({"scratch": CPFS | {"mount_name": "abcdefgh"}}),
            "storage.existing.scratch.mount_name = 'abcdefgh': is of FSx for Lustre",
        ),
        (
            lambda: using({"home": EFS}, home=True),
            "storage.home = True: storage.existing.home takes its place",
        ),
        (
            lambda: using({"scratch": LUSTRE}, scratch_gib=2400),
            "storage.scratch_gib = 2400: storage.existing.scratch takes its place",
        ),
        (
            lambda: using({"home": EFS}, {"cidr": "10.0.0.0/16", "zones": ["us-east-1a"]}),
            f"storage.existing.home = '{EFS['id']}': needs network.existing",
        ),
        (lambda: using({"home": {"uid": "x"}}), "storage.existing.home.id = None: required, and missing"),
    ],
)
def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed(make, says):
    with pytest.raises(SettingsError) as caught:
        make()

    assert says in str(caught.value)
