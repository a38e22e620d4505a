"""Stacks that use an existing VPC, buckets or file systems of another owner, and answers to their lookups."""

from typing import Any

import boto3
import pytest

from gpu_fleet_stacks.rehearsal import monitor, program
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Cloud, Stack
from tests.stacks import alicloud_examples, examples, registrations
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES

CIDR = "10.77.0.0/16"
TABLE = "vtb-wz9f0000000000000000"
NO_BUCKET: dict[str, Any] = {"location": None}
ENCRYPTED_BUCKET = {"location": "oss-cn-shenzhen", "serverSideEncryptionRule": {"sseAlgorithm": "KMS"}}
NO_FILES: dict[str, Any] = {"fileSystemType": None}
NAS = {"fileSystemType": "standard", "protocolType": "NFS", "encryptType": 1}
# The vSwitch from which file systems are served, and its CIDR.
OF_FILES, NETWORK_OF_FILES = "vsw-wz9ffnvk4gn2tws0362400", "10.77.200.0/24"
NAT_ROUTE = {"cidrBlock": "0.0.0.0/0", "nextHopType": "NatGateway", "status": "Available"}

TO_NAT = {"cidrBlock": "0.0.0.0/0", "natGatewayId": "nat-0123456789abcdef0"}
ROUTE_FIELDS = (
    *("carrierGatewayId", "cidrBlock", "coreNetworkArn", "destinationPrefixListId", "egressOnlyGatewayId"),
    *("gatewayId", "instanceId", "ipv6CidrBlock", "localGatewayId", "natGatewayId", "networkInterfaceId"),
    *("odbNetworkArn", "transitGatewayId", "vpcEndpointId", "vpcPeeringConnectionId"),
)


def lead_out(vpc: str, subnet: str) -> None:
    """Give a VPC in moto a default route, by a NAT gateway."""
    ec2 = boto3.client("ec2", region_name="us-east-1")
    main = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "association.main", "Values": ["true"]}]
    (table,) = ec2.describe_route_tables(Filters=main)["RouteTables"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, ConnectivityType="private")["NatGateway"]
    ec2.create_route(
        RouteTableId=table["RouteTableId"],
        DestinationCidrBlock="0.0.0.0/0",
        NatGatewayId=gateway["NatGatewayId"],
    )


def answering(
    vpc: str,
    subnets: dict[str, str],
    region: str = "us-east-1",
    files: Any = None,
    routes: Any = (TO_NAT,),
    **of_subnets: Any,
):
    """Return the monitor's answers to a program's lookups: every subnet is in its zone of the VPC.

    Args:
        region: region of every bucket.
        files: changes to an encrypted EFS in several zones.
        routes: routes of every subnet's table.
        of_subnets: changes to every subnet.
    """
    zones = {subnet: zone for zone, subnet in subnets.items()}
    networks = {subnet: f"10.77.{number}.0/24" for number, subnet in enumerate(zones)}

    def answer(_, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if token == "aws:ec2/getSubnet:getSubnet":
            subnet = arguments["id"]
            return (
                arguments
                | {"vpcId": vpc, "availabilityZone": zones[subnet], "mapPublicIpOnLaunch": False}
                | {"cidrBlock": networks[subnet]}
                | of_subnets
            )
        if token == "aws:ec2/getRouteTables:getRouteTables":
            return arguments | {"ids": ["rtb-0123456789abcdef0"]}
        if token == "aws:ec2/getRouteTable:getRouteTable":
            return arguments | {"routes": [dict.fromkeys(ROUTE_FIELDS, "") | each for each in routes]}
        if token == "aws:s3/getBucket:getBucket":
            return arguments | {"bucketRegion": region}
        if token == "aws:efs/getFileSystem:getFileSystem":
            name = f"{arguments['fileSystemId']}.efs.{region}.amazonaws.com"
            found = {"encrypted": True, "availabilityZoneName": "", "dnsName": name}
            return arguments | found | (files or {})
        return {"id": "pl-0123456789abcdef0", "cidrBlock": CIDR} | arguments

    return answer


def alicloud_answering(
    vpc: str,
    subnets: dict[str, str],
    routes: Any = (NAT_ROUTE,),
    bucket: Any = None,
    *,
    files: Any = None,
    target: Any = None,
    **of_vswitches: Any,
):
    """Return the monitor's answers on Alibaba Cloud, where a missing resource is an empty list.

    Args:
        routes: routes of every vSwitch's table.
        bucket: changes to a bucket with encryption; ``NO_BUCKET`` for none.
        files: changes to an encrypted NAS or a CPFS; ``NO_FILES`` for none.
        target: changes to its active mount target in the VPC; ``NO_FILES`` for none.
        of_vswitches: changes to a vSwitch of its zone and the VPC.
    """
    known = {
        vswitch: {"id": vswitch, "vpcId": vpc, "zoneId": zone, "routeTableId": TABLE}
        | {"cidrBlock": f"10.77.{number}.0/24"}
        | of_vswitches
        for number, (zone, vswitch) in enumerate(subnets.items())
    }
    known[OF_FILES] = {"id": OF_FILES, "vpcId": vpc, "zoneId": "elsewhere", "cidrBlock": NETWORK_OF_FILES}

    def answer(_, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if token == "alicloud:vpc/getRouteEntries:getRouteEntries":
            return arguments | {"entries": list(routes)}
        if token == "alicloud:oss/getBuckets:getBuckets":
            return arguments | {"buckets": [ENCRYPTED_BUCKET | (bucket or {})] if bucket != NO_BUCKET else []}
        if token == "alicloud:nas/getMountTargets:getMountTargets":
            domain = f"{arguments['fileSystemId']}-abc12.cn-shenzhen.nas.aliyuncs.com"
            found = {"mountTargetDomain": domain, "status": "Active", "vswitchId": OF_FILES} | (target or {})
            return arguments | {"targets": [found] if target != NO_FILES else []}
        (wanted,) = arguments["ids"]
        if token == "alicloud:nas/getFileSystems:getFileSystems":
            cpfs = wanted.startswith("cpfs-")
            kind = {"fileSystemType": "cpfs", "protocolType": "cpfs", "encryptType": 0} if cpfs else NAS
            return arguments | {"systems": [kind | (files or {})] if files != NO_FILES else []}
        if token == "alicloud:vpc/getNetworks:getNetworks":
            return arguments | {"vpcs": [{"id": vpc, "cidrBlock": CIDR}] if wanted == vpc else []}
        assert token == "alicloud:vpc/getSwitches:getSwitches", token
        return arguments | {"vswitches": [known[wanted]] if wanted in known else []}

    return answer


def on_aws(network: Any = None, existing: Any = None, **changes: Any) -> Stack:
    """Return an AWS stack in the VPC, with these file systems or buckets; ``changes`` are of other keys."""
    section = {"zones": list(EXISTING["subnets"]), "existing": EXISTING} | (network or {})
    storage = changes.pop("storage", {}) | ({"existing": existing} if existing else {})
    return examples.stack("guest", **{"network": section, "storage": storage} | changes)


def on_alicloud(network: Any = None, existing: Any = None, **changes: Any) -> Stack:
    """Return an Alibaba Cloud stack in the VPC, with these file systems or buckets."""
    section = {"zones": list(EXISTING_VSWITCHES["subnets"]), "existing": EXISTING_VSWITCHES} | (network or {})
    storage = {"kms_instance_id": "kst-szh0000000000000000"} | changes.pop("storage", {})
    storage |= {"existing": existing} if existing else {}
    return alicloud_examples.stack("guest", **{"network": section, "storage": storage} | changes)


def registered(monkeypatch: pytest.MonkeyPatch, settings: Stack, **answers: Any) -> Rehearsed:
    """Return a stack's registrations in an account that has only the resources of the answers."""
    if settings.cloud is Cloud.ALICLOUD:
        found = alicloud_answering(EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"], **answers)
        monkeypatch.setattr(monitor, "answer", found)
        return registrations.run(settings)
    monkeypatch.setattr(program, "CREATORS", registrations.AnyType())
    monkeypatch.setattr(monitor, "answer", answering(EXISTING["vpc_id"], EXISTING["subnets"], **answers))
    return registrations.run(settings)
