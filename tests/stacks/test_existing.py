"""A stack that uses another owner's resources: what it adds, what it keeps, and its rights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.rehearsal.bucket_policies import conditions_left_out
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.quantities import CostKind
from tests.stacks import alicloud_examples, examples, iam, ram
from tests.stacks.alicloud_programs import inputs
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES
from tests.stacks.existing import NETWORK_OF_FILES, lead_out, on_alicloud, on_aws, registered
from tests.stacks.judges import EVERYTHING
from tests.stacks.registered import instance_files, named
from tests.stacks.registrations import run
from tests.stacks.rehearsal.deletions import DELETERS
from tests.stacks.rehearsal.destroy import destroy
from tests.stacks.standing import standing

REGION, CIDR = "us-east-1", "172.20.0.0/16"
INSIDE = {"aws:PrincipalAccount": "123456789012", "aws:SecureTransport": "true"}
ZONES = (f"{REGION}a", f"{REGION}b")
# Whatever a network or a file system is made of; of these the stack declares none but what it is asked for.
OF_THE_OWNER = {
    *("aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "aws:ec2/routeTable:RouteTable", "aws:ec2/route:Route"),
    *("aws:ec2/routeTableAssociation:RouteTableAssociation", "aws:ec2/internetGateway:InternetGateway"),
    *("aws:ec2/natGateway:NatGateway", "aws:ec2/eip:Eip", "aws:ec2/flowLog:FlowLog"),
    *("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "aws:ec2/vpcEndpoint:VpcEndpoint"),
    *("aws:efs/fileSystem:FileSystem", "aws:efs/mountTarget:MountTarget"),
    *("aws:efs/backupPolicy:BackupPolicy", "aws:efs/fileSystemPolicy:FileSystemPolicy"),
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    *("alicloud:vpc/network:Network", "alicloud:vpc/switch:Switch", "alicloud:vpc/routeTable:RouteTable"),
    *("alicloud:vpc/routeTableAttachment:RouteTableAttachment", "alicloud:vpc/routeEntry:RouteEntry"),
    *("alicloud:vpc/natGateway:NatGateway", "alicloud:vpc/snatEntry:SnatEntry"),
    *("alicloud:vpc/gatewayEndpoint:GatewayEndpoint", "alicloud:vpc/flowLog:FlowLog"),
    *("alicloud:ecs/eipAddress:EipAddress", "alicloud:ecs/eipAssociation:EipAssociation"),
}
LUSTRE = {"id": "fs-0fedcba9876543210", "mount_name": "abcdefgh"}
NAS, CPFS = {"id": "31a8e4b0c2"}, {"id": "cpfs-00151a2b3c4d5e6f"}
KEY = f"arn:aws:kms:{REGION}:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
BUCKETS = {"lab-datasets": {"key": KEY}, "lab-results": {"write": True}}
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
RULE = "alicloud:ecs/securityGroupRule:SecurityGroupRule"
WITH_EFA = [examples.pool(), examples.pool(name="cluster", types=["p4d.24xlarge"], efa=True)]


# AWS, in moto


def client(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


def made_by_hand() -> tuple[dict[str, Any], str]:
    """Create a VPC with a private subnet in each zone, an encrypted EFS with mount targets, and buckets."""
    ec2, efs, s3 = client("ec2"), client("efs"), client("s3")
    vpc = ec2.create_vpc(CidrBlock=CIDR)["Vpc"]["VpcId"]
    made = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"172.20.{number}.0/24", AvailabilityZone=zone)
        for number, zone in enumerate(ZONES)
    }
    subnets = {zone: subnet["Subnet"]["SubnetId"] for zone, subnet in made.items()}
    lead_out(vpc, subnets[ZONES[0]])
    files = efs.create_file_system(CreationToken="lab", Encrypted=True)["FileSystemId"]
    group = ec2.create_security_group(GroupName="nfs", Description="homes", VpcId=vpc)["GroupId"]
    for subnet in subnets.values():
        efs.create_mount_target(FileSystemId=files, SubnetId=subnet, SecurityGroups=[group])
    for name in BUCKETS:
        s3.create_bucket(Bucket=name)
        default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [default]})
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "team", "Value": "lab"}]})
        s3.put_object(Bucket=name, Key="shard-0000", Body=b"1")
    return {"vpc_id": vpc, "subnets": subnets}, files


def groups_of_ec2() -> dict[str, dict[str, Any]]:
    return {group["GroupName"]: group for group in client("ec2").describe_security_groups()["SecurityGroups"]}


def somebody_elses() -> dict[str, Any]:
    """Return the owner's resources by the cloud, without counts and measurements."""
    ec2, efs, s3 = client("ec2"), client("efs"), client("s3")
    groups, (files,) = groups_of_ec2(), efs.describe_file_systems()["FileSystems"]
    targets = efs.describe_mount_targets(FileSystemId=files["FileSystemId"])["MountTargets"]
    buckets = {
        name: (
            s3.get_bucket_tagging(Bucket=name)["TagSet"],
            s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"],
            s3.get_bucket_versioning(Bucket=name).get("Status"),
            [stored["Key"] for stored in s3.list_objects_v2(Bucket=name)["Contents"]],
        )
        for name in BUCKETS
    }
    subnets = ec2.describe_subnets()["Subnets"]
    return {
        "vpcs": ec2.describe_vpcs()["Vpcs"],
        "subnets": [{**subnet, "AvailableIpAddressCount": None} for subnet in subnets],
        "tables": ec2.describe_route_tables()["RouteTables"],
        "gateways": ec2.describe_internet_gateways()["InternetGateways"],
        "nat": ec2.describe_nat_gateways()["NatGateways"],
        "logs": ec2.describe_flow_logs()["FlowLogs"],
        "groups": [groups["default"], groups["nfs"]],
        "files": {**files, "SizeInBytes": None},
        "targets": targets,
        "doors": [
            efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"])["SecurityGroups"]
            for target in targets
        ],
        "buckets": buckets,
    }


@dataclass(frozen=True)
class Guest:
    """A stack in moto that uses all of it, with the owner's resources before and after."""

    existing: dict[str, Any]
    files: str
    rehearsed: Rehearsed
    before: dict[str, Any]
    after: dict[str, Any]

    def may(self, action: str, resource: str, role: str = "instance", **context: str) -> bool:
        """Judge a call of an instance of pool ``dev`` or one of its users, from inside the network."""
        policy = named(self.rehearsed, "aws:iam/rolePolicy:RolePolicy", f"gpu-fleet-guest-dev-{role}")
        request = iam.Request(action, resource, context=INSIDE | context)
        return iam.decide(request, [policy.inputs["policy"]]) is iam.Verdict.ALLOWED


def as_a_guest() -> Guest:
    existing, files = made_by_hand()
    before = somebody_elses()
    used = {"home": {"id": files}, "scratch": LUSTRE, "buckets": BUCKETS}
    rehearsed = run(on_aws({"existing": existing}, used, pools=WITH_EFA))
    return Guest(existing, files, rehearsed, before, somebody_elses())


@pytest.fixture
def guest() -> Iterator[Guest]:
    with conditions_left_out(), standing("as a guest", REGION, as_a_guest) as made:
        yield made


def test_an_up_declares_and_changes_nothing_of_what_is_somebody_elses(guest):
    assert guest.after == guest.before
    assert {resource.type for resource in guest.rehearsed.resources} & OF_THE_OWNER == set()
    named = [made.name for made in guest.rehearsed.resources if made.inputs.get("bucket") in BUCKETS]
    assert named == []


def test_groups_start_instances_in_the_named_subnets_under_groups_of_the_vpc(guest):
    groups = guest.rehearsed.of_type("aws:autoscaling/group:Group")
    used = {subnet for group in groups for subnet in group.inputs["vpcZoneIdentifiers"]}
    added = [group for name, group in groups_of_ec2().items() if name not in ("default", "nfs")]

    assert used == set(guest.existing["subnets"].values())
    assert len(added) == 2  # one a pool
    assert {group["VpcId"] for group in added} == {guest.existing["vpc_id"]}
    outputs = guest.rehearsed.outputs
    assert outputs["vpc_id"] == guest.existing["vpc_id"]
    assert outputs["private_subnet_ids"] == guest.existing["subnets"]


def test_the_registered_user_data_leads_to_files_and_buckets_as_it_would_to_the_stacks_own(guest):
    leads = {
        "home_file_system": f"{guest.files}.efs.us-east-1.amazonaws.com",
        "scratch_file_system": "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com",
        "scratch_mount_name": "abcdefgh",
        "existing_bucket_uris": ["s3://lab-datasets", "s3://lab-results"],
    }

    assert {said.items() >= leads.items() for said in instance_files(guest.rehearsed)} == {True}


def test_the_pools_own_groups_open_to_the_vpc_that_was_found_and_no_group_of_the_owners_changes(guest):
    groups = {group.id for group in guest.rehearsed.of_type("aws:ec2/securityGroup:SecurityGroup")}
    rules = [rule for kind in (EGRESS, INGRESS) for rule in guest.rehearsed.of_type(kind)]
    ports = {
        (rule.type == EGRESS, rule.inputs["fromPort"], rule.inputs["toPort"])
        for rule in rules
        if rule.inputs.get("cidrIpv4") == CIDR
    }

    assert {rule.inputs["securityGroupId"] for rule in rules} <= groups
    assert ports >= {(True, 2049, 2049), (True, 988, 988), (False, 988, 988), (False, 1018, 1023)}
    assert (False, 2049, 2049) not in ports
    asked = {rule.inputs.get("cidrIpv4") for rule in rules if rule.inputs.get("fromPort") == 53}
    assert asked == {CIDR}  # the resolver of the VPC


def test_a_pool_reads_the_named_buckets_and_its_users_alone_write_where_the_stack_file_says_so(guest):
    data, results = "arn:aws:s3:::lab-datasets", "arn:aws:s3:::lab-results"
    writes = ("s3:PutObject", "s3:DeleteObject")
    may = [
        *(("s3:ListBucket", data, role) for role in ("instance", "user")),
        *(("s3:GetObject", f"{data}/shard-0000", role) for role in ("instance", "user")),
        *((action, f"{results}/run/1", "user") for action in writes),
    ]
    may_not = [
        *((action, f"{results}/run/1", "instance") for action in writes),
        *((action, f"{data}/shard-0000", "user") for action in writes),
        ("s3:GetObject", "arn:aws:s3:::lab-datasets-private/1", "instance"),
        ("s3:ListBucket", "arn:aws:s3:::lab", "instance"),
        *((f"s3:{action}", results, "instance") for action in ("PutBucketPolicy", "DeleteBucket")),
        ("s3:PutLifecycleConfiguration", results, "instance"),
    ]

    assert [request for request in may if not guest.may(*request)] == []
    assert [request for request in may_not if guest.may(*request)] == []


def test_the_buckets_key_is_used_through_s3_alone(guest):
    s3, ec2 = ({"kms:ViaService": f"{service}.{REGION}.amazonaws.com"} for service in ("s3", "ec2"))

    assert guest.may("kms:Decrypt", KEY, **s3)
    assert not any(guest.may("kms:Decrypt", KEY, **other) for other in (ec2, {}))
    assert not guest.may("kms:ScheduleKeyDeletion", KEY)


def test_a_destroy_leaves_what_is_somebody_elses_and_takes_the_stacks_groups_and_buckets(guest):
    clients = RegionClients(REGION)
    first = destroy(guest.rehearsed.registrations, clients, DELETERS)
    buckets = boto3.resource("s3", region_name=REGION).buckets
    for bucket in buckets.all():
        if bucket.name not in BUCKETS:
            bucket.object_versions.delete()
    destroy(first.left, clients, DELETERS)
    clients.pool.close()

    assert somebody_elses() == guest.before
    assert groups_of_ec2().keys() == {"default", "nfs"}
    assert {bucket.name for bucket in buckets.all()} == set(BUCKETS)


# AWS, declared


def test_a_pool_passes_the_networks_own_way_to_s3_with_the_named_buckets(monkeypatch):
    own = examples.stack("guest", storage={"existing": {"buckets": BUCKETS}})
    (endpoint,) = [
        made
        for made in registered(monkeypatch, own).of_type("aws:ec2/vpcEndpoint:VpcEndpoint")
        if made.inputs.get("vpcEndpointType", "Gateway") == "Gateway"
    ]

    def passes(action: str, resource: str) -> bool:
        request = iam.Request(action, f"arn:aws:s3:::{resource}", context=INSIDE)
        way = [endpoint.inputs["policy"]]
        return iam.decide(request, [EVERYTHING], endpoint=way) is iam.Verdict.ALLOWED

    assert passes("s3:GetObject", "lab-datasets/shard-0000")
    assert passes("s3:PutObject", "lab-results/run/1")
    assert not passes("s3:PutObject", "elsewhere/run/1")


def test_homes_of_the_stacks_own_are_mounted_in_the_named_subnets(monkeypatch):
    found = registered(monkeypatch, on_aws(storage={"home": True}))

    targets = found.of_type("aws:efs/mountTarget:MountTarget")
    assert [target.inputs["subnetId"] for target in targets] == list(EXISTING["subnets"].values())


def test_a_transit_gateway_is_a_way_out_and_without_internet_no_route_is_asked_for(monkeypatch):
    local = {"cidrBlock": "10.77.0.0/16", "gatewayId": "local"}
    transit = {"cidrBlock": "0.0.0.0/0", "transitGatewayId": "tgw-0123456789abcdef0"}
    closed = on_aws({"existing": EXISTING | {"internet": False}, "interface_endpoints": True})

    assert registered(monkeypatch, on_aws(), routes=[local, transit]).resources
    assert registered(monkeypatch, closed, routes=[local]).resources


def test_without_a_way_out_instances_reach_s3_alone_and_take_wheels_from_the_bucket(monkeypatch):
    found = registered(monkeypatch, on_aws({"existing": EXISTING | {"internet": False}}))
    rules = [rule.inputs for rule in found.of_type(EGRESS)]

    assert [rule for rule in rules if rule.get("cidrIpv4") == "0.0.0.0/0"] == []
    assert {rule["prefixListId"] for rule in rules if "prefixListId" in rule} == {"pl-0123456789abcdef0"}


@pytest.mark.parametrize("make", [on_aws, on_alicloud])
def test_endpoints_come_only_if_asked(monkeypatch, make):
    token = {
        on_aws: "aws:ec2/vpcEndpoint:VpcEndpoint",
        on_alicloud: "alicloud:privatelink/vpcEndpoint:VpcEndpoint",
    }[make]
    vpc = {on_aws: EXISTING, on_alicloud: EXISTING_VSWITCHES}[make]["vpc_id"]

    asked = inputs(registered(monkeypatch, make({"interface_endpoints": True})), token)

    assert inputs(registered(monkeypatch, make()), token) == []
    assert {endpoint["vpcId"] for endpoint in asked} == {vpc}
    assert {endpoint.get("vpcEndpointType", "Interface") for endpoint in asked} == {"Interface"}


@pytest.mark.parametrize("make", [on_aws, on_alicloud])
def test_a_stack_in_an_existing_vpc_pays_for_no_gateway_and_no_flow_log(make):
    def kinds(settings: Stack) -> set[CostKind]:
        return {line.kind for line in estimate(settings).lines}

    settings = make(storage={"home": True})
    silent = replace(settings, logs=replace(settings.logs, instances=False))

    assert kinds(settings) & {CostKind.NAT, CostKind.LOGS} == {CostKind.LOGS}
    assert kinds(silent) & {CostKind.NAT, CostKind.LOGS} == set()
    assert CostKind.STORAGE in kinds(silent)


def test_existing_file_systems_cost_the_stack_nothing():
    existing = on_aws(existing={"home": {"id": "fs-0123456789abcdef0"}, "scratch": LUSTRE})

    assert estimate(existing).lines == estimate(on_aws()).lines


# Alibaba Cloud

VPC, (IN_D, IN_E) = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"].values()
# The CIDRs of its vSwitches, as the answers have them.
NETWORK_D, NETWORK_E = "10.77.0.0/24", "10.77.1.0/24"
OSS = "acs:oss:oss-cn-shenzhen:1234567890123456"
OSS_KEY = "acs:kms:cn-shenzhen:1234567890123456:key/key-szh1111111111111111"
IN_OSS = {"lab-datasets": {"key": OSS_KEY}, "lab-results": {"write": True}}


def test_on_alibaba_cloud_groups_and_homes_stand_in_the_named_vswitches_and_nothing_of_the_vpc_is_declared(
    monkeypatch,
):
    found = registered(monkeypatch, on_alicloud(storage={"home": True}))

    assert {resource.type for resource in found.resources} & OF_THE_OWNER == set()
    (group,) = inputs(found, "alicloud:ess/scalingGroup:ScalingGroup")
    assert group["vswitchIds"] == [IN_D, IN_E]
    added = inputs(found, "alicloud:ecs/securityGroup:SecurityGroup")
    assert {(each["vpcId"], each["securityGroupType"]) for each in added} == {(VPC, "enterprise")}
    allowed = inputs(found, "alicloud:nas/accessRule:AccessRule")
    assert {each["sourceCidrIp"] for each in allowed} == {NETWORK_D, NETWORK_E}
    (target,) = inputs(found, "alicloud:nas/mountTarget:MountTarget")
    assert (target["vpcId"], target["vswitchId"]) == (VPC, IN_D)
    assert found.outputs["vpc_id"] == VPC
    assert found.outputs["private_subnet_ids"] == EXISTING_VSWITCHES["subnets"]


def test_instances_of_one_job_reach_each_other_by_the_cidrs_of_the_vswitches_that_were_found(monkeypatch):
    pools = [alicloud_examples.pool(zones=["cn-shenzhen-e"])]

    rules = inputs(registered(monkeypatch, on_alicloud(pools=pools)), RULE)

    everything_open = {(rule["type"], rule["cidrIp"]) for rule in rules if rule["ipProtocol"] == "all"}
    assert everything_open == {("ingress", NETWORK_E), ("egress", NETWORK_E)}


def test_on_alibaba_cloud_without_internet_no_route_is_asked_for_and_no_rule_leads_out(monkeypatch):
    closed = on_alicloud({"existing": EXISTING_VSWITCHES | {"internet": False}})

    found = registered(monkeypatch, closed, routes=[])

    assert [rule for rule in inputs(found, RULE) if rule["cidrIp"] == "0.0.0.0/0"] == []


def opened(found: Rehearsed) -> set[tuple[str, str]]:
    rules = [rule for rule in inputs(found, RULE) if rule["cidrIp"] == NETWORK_OF_FILES]
    return {(rule["type"], rule["portRange"]) for rule in rules}


def test_on_alibaba_cloud_instances_reach_the_mount_targets_and_no_further(monkeypatch):
    homes = registered(monkeypatch, on_alicloud(existing={"home": NAS}))
    both = registered(monkeypatch, on_alicloud(existing={"home": NAS, "scratch": CPFS}))
    (said,) = instance_files(both)

    assert said["home_file_system"] == "31a8e4b0c2-abc12.cn-shenzhen.nas.aliyuncs.com"
    assert said["scratch_file_system"] == "cpfs-00151a2b3c4d5e6f-abc12.cn-shenzhen.nas.aliyuncs.com"
    assert not [resource.type for resource in both.resources if resource.type.startswith("alicloud:nas/")]
    assert opened(homes) == {("egress", "2049/2049")}
    assert opened(both) == {("egress", "-1/-1"), ("ingress", "-1/-1")}


def test_on_alibaba_cloud_users_and_the_oss_gateway_let_through_what_the_stack_file_says(monkeypatch):
    storage = {"kms_instance_id": "kst-szh0000000000000000", "existing": {"buckets": IN_OSS}}
    found = registered(monkeypatch, alicloud_examples.stack("guest", storage=storage))
    (gateway,) = inputs(found, "alicloud:vpc/gatewayEndpoint:GatewayEndpoint")
    (user,) = inputs(found, "alicloud:ram/policy:Policy", name="dev-user")

    def judged(action: str, resource: str, identity=(), way=()) -> bool:
        request = iam.Request(action, resource)
        return ram.decide(request, [*identity], [*way]) is iam.Verdict.ALLOWED

    role, passes = [user["policyDocument"]], [gateway["policyDocument"]]
    may = [
        ("oss:GetObject", f"{OSS}:lab-datasets/shard-0000", role),
        ("oss:PutObject", f"{OSS}:lab-results/run/1", role),
        ("kms:Decrypt", OSS_KEY, role),
        ("oss:PutObject", f"{OSS}:lab-results/run/1", (), passes),
    ]
    may_not = [
        ("oss:PutObject", f"{OSS}:lab-datasets/shard-0000", role),
        ("oss:GetObject", f"{OSS}:lab-datasets-private/1", role),
        ("oss:PutBucketPolicy", f"{OSS}:lab-results", role),
        ("oss:PutObject", f"{OSS}:elsewhere/run/1", (), passes),
    ]
    assert [asked for asked in may if not judged(*asked)] == []
    assert [asked for asked in may_not if judged(*asked)] == []
