"""Preflight on AWS of another owner's VPC, buckets and file systems."""

import json
from datetime import UTC, datetime
from typing import Any

from gpu_fleet_stacks.preflight.findings import Rating
from gpu_fleet_stacks.settings import Stack
from tests.stacks.aws_account import Account, Refusal
from tests.stacks.edits import EXISTING
from tests.stacks.examples import stack
from tests.stacks.preflight.preflight_aws import ID, account, found, wrong_of
from tests.stacks.preflight.preflight_rows import Row, about

FINE, NOTE, PROBLEM, UNCHECKED = Rating
VPC, SUBNETS = EXISTING["vpc_id"], EXISTING["subnets"]
CIDRS = dict(zip(SUBNETS.values(), ("172.20.0.0/24", "172.20.1.0/24"), strict=True))
TO_NAT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-0123456789abcdef0", "State": "active"}
TO_S3 = {"DestinationPrefixListId": "pl-63a5400a", "GatewayId": "vpce-0123456789abcdef0", "State": "active"}


def guest(**network: Any) -> Stack:
    section = {"zones": list(SUBNETS), "existing": EXISTING} | network
    return stack(network=section, storage={"home": True})


def foreign_vpc(subnet: dict[str, Any] | None = None, routes: Any = (TO_NAT,), **changes: Any) -> Account:
    """Return an account with the VPC: each subnet in its zone, and a main table with these routes."""
    zones = {subnet: zone for zone, subnet in SUBNETS.items()}

    def subnets(params):
        found = [
            {"SubnetId": asked, "VpcId": VPC, "AvailabilityZone": zones[asked], "CidrBlock": CIDRS[asked]}
            | {"AvailableIpAddressCount": 250}
            | (subnet or {})
            for asked in params["SubnetIds"]
        ]
        return {"Subnets": found}

    def tables(params):
        main = params["Filters"][0]["Name"] == "vpc-id"
        return {"RouteTables": [{"Routes": list(routes)}] if main else []}

    answers: dict[str, Any] = {
        "ec2_DescribeVpcs": {"Vpcs": [{"VpcId": VPC, "CidrBlock": "172.20.0.0/16"}]},
        "ec2_DescribeVpcAttribute": dns("EnableDnsSupport", "EnableDnsHostnames"),
        "ec2_DescribeVpcEndpoints": {"VpcEndpoints": []},
        "ec2_DescribeSubnets": subnets,
        "ec2_DescribeRouteTables": tables,
    }
    return account(**answers | changes)


def dns(*switched_on: str):
    def attribute(params):
        name = params["Attribute"][:1].upper() + params["Attribute"][1:]
        return {name: {"Value": name in switched_on}}

    return attribute


def test_an_existing_vpc_with_its_routes_is_fine_and_needs_no_quota_of_networks():
    answers = found(guest(), foreign_vpc())

    assert {finding.rating for finding in answers.values()} == {FINE}
    assert answers["VPC"].says == f"{VPC} has 172.20.0.0/16"
    assert answers["subnet of us-east-1b"].says.endswith("has its routes and 250 free addresses")
    assert {"VPCs", "elastic addresses"} & answers.keys() == set()


def test_a_subnet_of_an_existing_vpc_is_private_in_its_zone_and_leads_out():
    def own_table_leads_nowhere(params):
        own = params["Filters"][0]["Name"] == "association.subnet-id"
        return {"RouteTables": [{"Routes": [] if own else [TO_NAT]}]}

    to_internet = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-0123456789abcdef0"}
    public_alone = "reaches 0.0.0.0/0 by igw-0123456789abcdef0, which answers public addresses alone"
    remedy = "network.existing.subnets.us-east-1a"
    table = (
        ("has no route to 0.0.0.0/0", foreign_vpc(routes=())),
        ("has no route to 0.0.0.0/0", foreign_vpc(routes=[TO_NAT | {"State": "blackhole"}])),
        ("has no route to 0.0.0.0/0", foreign_vpc(ec2_DescribeRouteTables=own_table_leads_nowhere)),
        (public_alone, foreign_vpc(routes=[to_internet])),
        ("is in vpc-0ffffffffffffffff", foreign_vpc({"VpcId": "vpc-0ffffffffffffffff"})),
        ("is in us-east-1f", foreign_vpc({"AvailabilityZone": "us-east-1f"})),
        ("gives public addresses", foreign_vpc({"MapPublicIpOnLaunch": True})),
    )
    rows = [
        Row("subnet of us-east-1a", PROBLEM, f"{SUBNETS['us-east-1a']} {says}", cloud, guest(), remedy=remedy)
        for says, cloud in table
    ]

    assert wrong_of(*rows) == []


def test_without_internet_a_subnet_needs_the_way_to_s3_alone():
    inside = guest(existing=EXISTING | {"internet": False})
    rows = about(
        "subnet of us-east-1a",
        inside,
        (FINE, "", foreign_vpc(routes=[TO_S3])),
        (PROBLEM, "no route to an S3 gateway endpoint", foreign_vpc(routes=())),
        (PROBLEM, "no route to an S3 gateway endpoint", foreign_vpc(routes=[TO_NAT])),
    )

    assert wrong_of(*rows) == []


def test_an_existing_vpc_is_there_with_the_names_that_homes_need():
    gone = Refusal("InvalidVpcID.NotFound", "The vpc ID does not exist")
    nameless = foreign_vpc(ec2_DescribeVpcAttribute=dns("EnableDnsSupport"))
    off = f"{VPC} has enableDnsHostnames switched off, which homes and endpoints need"
    rows = (
        Row("VPC", PROBLEM, f"{VPC} is not in us-east-1", foreign_vpc(ec2_DescribeVpcs=gone), guest()),
        Row("VPC", PROBLEM, f"{VPC} is not in", foreign_vpc(ec2_DescribeVpcs={"Vpcs": []}), guest()),
        Row("VPC", PROBLEM, off, nameless, guest(), remedy=f"--vpc-id {VPC} --enable-dns-hostnames"),
    )

    assert wrong_of(*rows) == []


def test_endpoints_of_the_owner_with_private_names_leave_no_room_for_the_stacks():
    def endpoint(owner: str, *, private: bool = True) -> Account:
        tags = [{"Key": "gpu-fleet:stack", "Value": owner}]
        there = {"ServiceName": "com.amazonaws.us-east-1.ecr.api", "PrivateDnsEnabled": private, "Tags": tags}
        return foreign_vpc(ec2_DescribeVpcEndpoints={"VpcEndpoints": [there]})

    private = guest(interface_endpoints=True)
    rows = (
        Row("endpoints", PROBLEM, "private names already: ecr.api", endpoint("other"), private),
        Row("endpoints", FINE, "has room", endpoint("other", private=False), private),
        Row("endpoints", FINE, "has room", endpoint("test"), private),
    )

    assert wrong_of(*rows) == []


# buckets

LAB_KEY = f"arn:aws:kms:us-east-1:{ID}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
TLS_ONLY = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::lab-datasets/*"}
TLS_ONLY |= {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}


def bucket_of(*, encrypted_by: str = "", policy: Any = (TLS_ONLY,), **changes: Any) -> Account:
    """Return an account with the bucket, and without the stack's own."""
    by_kms = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": encrypted_by}
    rule = {"ApplyServerSideEncryptionByDefault": by_kms if encrypted_by else {"SSEAlgorithm": "AES256"}}

    def head(params):
        there = params["Bucket"] == "lab-datasets"
        return {"BucketRegion": "us-east-1"} if there else Refusal("404", "Not Found")

    answers: dict[str, Any] = {
        "s3_HeadBucket": head,
        "s3_GetBucketEncryption": {"ServerSideEncryptionConfiguration": {"Rules": [rule]}},
        "s3_GetBucketPolicy": {"Policy": json.dumps({"Statement": policy})},
    }
    return account(**answers | changes)


def test_an_existing_bucket_is_in_the_region_under_a_key_of_the_stack_file_and_behind_tls():
    def using(**use: Any) -> Stack:
        return stack(storage={"existing": {"buckets": {"lab-datasets": use}}})

    unpolicied = bucket_of(s3_GetBucketPolicy=Refusal("NoSuchBucketPolicy", "does not exist"))
    denied = bucket_of(s3_GetBucketEncryption=Refusal("AccessDenied", "no"))
    by_key = f"is encrypted by the KMS key {LAB_KEY}, which"
    plain = "its policy does not refuse plain HTTP"
    table = (
        (FINE, "is in us-east-1, and reached by TLS alone", bucket_of(), using()),
        (FINE, "is in us-east-1", bucket_of(encrypted_by=LAB_KEY), using(key=LAB_KEY)),
        (PROBLEM, "there is no such bucket", bucket_of(s3_HeadBucket=Refusal("404", "Not Found")), using()),
        (PROBLEM, "is in eu-west-1", bucket_of(s3_HeadBucket={"BucketRegion": "eu-west-1"}), using()),
        (PROBLEM, by_key, bucket_of(encrypted_by=LAB_KEY), using()),
        (NOTE, plain, bucket_of(policy=()), using()),
        (NOTE, plain, unpolicied, using()),
        (UNCHECKED, "could not be checked", denied, using()),
    )
    rows = [
        Row("bucket lab-datasets", rating, says, cloud, settings) for rating, says, cloud, settings in table
    ]

    assert wrong_of(*rows) == []


# file systems

EFS, FSX = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
GROUP, POOLS_GROUP = "sg-0123456789abcdef0", "sg-0fedcba9876543210"
ALL = {"CidrIpv4": "172.20.0.0/16"}
ANY_PORT = {"IsEgress": False, "IpProtocol": "-1", "FromPort": -1, "ToPort": -1} | ALL
NFS = {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}


def borrowing(**existing: Any) -> Stack:
    section = {"zones": list(SUBNETS), "existing": EXISTING}
    return stack(network=section, storage={"existing": existing})


def file_system(**changes: Any) -> dict[str, Any]:
    required = {"OwnerId": ID, "CreationToken": "lab", "CreationTime": datetime.now(UTC), "Tags": []}
    required |= {"LifeCycleState": "available", "NumberOfMountTargets": 2, "SizeInBytes": {"Value": 0}}
    found = required | {"PerformanceMode": "generalPurpose", "FileSystemId": EFS, "Encrypted": True}
    return {"FileSystems": [found | changes]}


def mount_targets(*zones: str, **changes: Any) -> dict[str, Any]:
    standing = {"FileSystemId": EFS, "LifeCycleState": "available", "VpcId": VPC} | changes
    found = [
        {"MountTargetId": f"fsmt-{zone}", "SubnetId": SUBNETS[zone], "AvailabilityZoneName": zone} | standing
        for zone in zones
    ]
    return {"MountTargets": found}


def with_files(*rules: dict[str, Any], **changes: Any) -> Account:
    """Return an account with an encrypted EFS, mount targets in each zone, and these rules of their group."""
    interface = {"NetworkInterfaceId": "eni-0123456789abcdef0", "Groups": [{"GroupId": GROUP}]}
    answers: dict[str, Any] = {
        "efs_DescribeFileSystems": file_system(),
        "efs_DescribeFileSystemPolicy": Refusal("PolicyNotFound", "no policy"),
        "efs_DescribeMountTargets": mount_targets(*SUBNETS),
        "efs_DescribeMountTargetSecurityGroups": {"SecurityGroups": [GROUP]},
        "ec2_DescribeSecurityGroupRules": {"SecurityGroupRules": list(rules)},
        "ec2_DescribeSecurityGroups": {"SecurityGroups": [{"GroupId": POOLS_GROUP}]},
        "fsx_DescribeFileSystems": lustre(),
        "ec2_DescribeNetworkInterfaces": {"NetworkInterfaces": [interface]},
    }
    return foreign_vpc(**answers | changes)


def lustre(**changes: Any) -> dict[str, Any]:
    files = {"FileSystemId": FSX, "FileSystemType": "LUSTRE", "VpcId": VPC}
    files |= {"NetworkInterfaceIds": ["eni-0123456789abcdef0"]}
    return {"FileSystems": [files | {"LustreConfiguration": {"MountName": "abcdefgh"}} | changes]}


def test_existing_homes_let_the_subnets_in_or_the_remedy_says_what_their_owner_must_open():
    open_ = f"{EFS} is encrypted, and lets the stack's subnets in"
    shut = f"the groups of {EFS} do not let in "
    owner = (
        "its owner runs: aws ec2 authorize-security-group-ingress --region us-east-1 "
        f"--group-id {GROUP} --protocol tcp --port 2049 --cidr 172.20.1.0/24"
    )

    def by_group(name: str) -> dict[str, Any]:
        return NFS | {"ReferencedGroupInfo": {"GroupId": name}}

    rows = about(
        "homes",
        borrowing(home={"id": EFS}),
        (FINE, open_, with_files(ANY_PORT)),
        (FINE, open_, with_files(by_group(POOLS_GROUP))),
        (PROBLEM, f"{shut}172.20.1.0/24 at TCP 2049", with_files(NFS | {"CidrIpv4": "172.20.0.0/24"}), owner),
        (PROBLEM, shut, with_files(NFS | ALL | {"IsEgress": True})),
        (PROBLEM, shut, with_files(NFS | ALL | {"IpProtocol": "udp"})),
        (PROBLEM, shut, with_files(NFS | ALL | {"FromPort": 22, "ToPort": 22})),
        (PROBLEM, shut, with_files(by_group("sg-0aaaaaaaaaaaaaaaa"))),
    )

    assert wrong_of(*rows) == []


def test_what_keeps_instances_from_existing_homes_is_reported():
    role = {"AWS": f"arn:aws:iam::{ID}:role/lab"}
    named_alone = {"Effect": "Allow", "Principal": role, "Action": "elasticfilesystem:ClientMount"}
    iam_alone = f"the policy of {EFS} requires IAM to mount, and instances mount without it"
    elsewhere, one_zone = mount_targets(*SUBNETS, VpcId="vpc-0aaaaaaaaaaaaaaaa"), mount_targets("us-east-1a")
    answers = {
        f"{EFS} is not in us-east-1": {"efs_DescribeFileSystems": Refusal("FileSystemNotFound", "no")},
        f"{EFS} is not encrypted": {"efs_DescribeFileSystems": file_system(Encrypted=False)},
        f"{EFS} has no mount target of {VPC} in us-east-1b": {"efs_DescribeMountTargets": one_zone},
        f"of {VPC} in us-east-1a, us-east-1b": {"efs_DescribeMountTargets": elsewhere},
        iam_alone: {"efs_DescribeFileSystemPolicy": {"Policy": json.dumps({"Statement": [named_alone]})}},
    }
    settings = borrowing(home={"id": EFS})
    rows = [
        Row("homes", PROBLEM, says, with_files(ANY_PORT, **changes), settings)
        for says, changes in answers.items()
    ]

    assert wrong_of(*rows) == []


def test_an_existing_lustre_is_there_by_its_name_and_lets_the_subnets_in():
    def fsx(answer: Any) -> Account:
        return with_files(ANY_PORT, fsx_DescribeFileSystems=answer)

    half_open = with_files(NFS | ALL | {"FromPort": 988, "ToPort": 988})
    shut = "172.20.0.0/24 at TCP 1018-1023, 172.20.1.0/24 at TCP 1018-1023"
    another_name = fsx(lustre(LustreConfiguration={"MountName": "fsx"}))
    rows = about(
        "scratch",
        borrowing(scratch={"id": FSX, "mount_name": "abcdefgh"}),
        (FINE, f"{FSX} is encrypted, and lets the stack's subnets in", with_files(ANY_PORT)),
        (PROBLEM, f"the groups of {FSX} do not let in {shut}", half_open),
        (PROBLEM, f"{FSX} is not in us-east-1", fsx(Refusal("FileSystemNotFound", "no"))),
        (PROBLEM, f"{FSX} is of kind OPENZFS", fsx(lustre(FileSystemType="OPENZFS"))),
        (PROBLEM, f"{FSX} is in vpc-0aaaaaaaa", fsx(lustre(VpcId="vpc-0aaaaaaaa"))),
        (PROBLEM, f"the mount name of {FSX} is fsx", another_name),
    )

    assert wrong_of(*rows) == []
