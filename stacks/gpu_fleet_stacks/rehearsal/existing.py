"""Existing resources of a stack, made for the rehearsal.

On AWS they are made in moto, which chooses its own ids; the stack's configuration then names those. Alibaba
Cloud has no emulator, so its lookups are answered with the stack file's values.
"""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingNetwork

# The VPC's; every zone gets a subnet that holds the largest pool.
NETWORK = IPv4Network("10.77.0.0/16")
ANYWHERE, MAIN_TABLE = "0.0.0.0/0", "vtb-rehearsal"

Answers = Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]


def made(clients: RegionClients, stack: Stack) -> dict[str, str]:
    """Make the resources in the stack file on AWS: the VPC, its subnets, buckets, the EFS with mount targets.

    FSx for Lustre is not looked up, so it is not made.

    Returns:
        Id in the stack file -> id in moto. Buckets keep their names.
    """
    ids: dict[str, str] = {}
    network, home = stack.network.existing, stack.storage.existing.home
    if network is not None:
        ids |= _vpc(clients, stack, network)
    for name in stack.storage.existing.buckets:
        _bucket(clients, name)
    if home is not None and network is not None:
        ids[home.id] = _homes(clients, home.id, [ids[subnet] for subnet in network.subnets.values()])
    return ids


def renamed(config: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, str]:
    """Return a stack's configuration with moto's ids in place of those in the stack file."""
    changed = dict(config)
    for named, known in ids.items():
        changed = {key: text.replace(named, known) for key, text in changed.items()}
    return changed


def _vpc(clients: RegionClients, stack: Stack, network: ExistingNetwork) -> dict[str, str]:
    ec2 = clients("ec2")
    vpc_id = str(ec2.create_vpc(CidrBlock=str(NETWORK))["Vpc"]["VpcId"])
    ids = {network.vpc_id: vpc_id}
    for zone, cidr in _subnets(stack):
        subnet = ec2.create_subnet(VpcId=vpc_id, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]
        ids[network.subnets[zone]] = str(subnet["SubnetId"])
    _way_out(clients, vpc_id, next(iter(ids[subnet] for subnet in network.subnets.values())))
    return ids


def _way_out(clients: RegionClients, vpc_id: str, subnet_id: str) -> None:
    """Make the default route of the VPC's main table, by a NAT gateway."""
    ec2 = clients("ec2")
    main = [{"Name": "vpc-id", "Values": [vpc_id]}, {"Name": "association.main", "Values": ["true"]}]
    (table,) = ec2.describe_route_tables(Filters=main)["RouteTables"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet_id, ConnectivityType="private")["NatGateway"]
    ec2.create_route(
        RouteTableId=table["RouteTableId"],
        DestinationCidrBlock=ANYWHERE,
        NatGatewayId=gateway["NatGatewayId"],
    )


def _subnets(stack: Stack) -> Iterator[tuple[str, str]]:
    """Yield zone and CIDR of each private subnet."""
    slots = {zone: number for number, zone in enumerate(stack.network.zones)}
    for part in naming.subnets(NETWORK, slots):
        yield part.zone, str(part.private)


def _bucket(clients: RegionClients, name: str) -> None:
    s3 = clients("s3")
    elsewhere = clients.region != "us-east-1"  # API CreateBucket accepts no constraint for this region
    where = {"CreateBucketConfiguration": {"LocationConstraint": clients.region}} if elsewhere else {}
    s3.create_bucket(Bucket=name, **where)


def _homes(clients: RegionClients, token: str, subnet_ids: list[str]) -> str:
    efs = clients("efs")
    files = str(efs.create_file_system(CreationToken=token, Encrypted=True)["FileSystemId"])
    for subnet_id in subnet_ids:
        efs.create_mount_target(FileSystemId=files, SubnetId=subnet_id)
    return files


def alicloud_answers(stack: Stack) -> Answers:
    """Return answers to Alibaba Cloud's lookups: each resource in the stack file exists as needed."""
    network = stack.network.existing
    by_zone = dict(_subnets(stack))
    vswitches: list[dict[str, Any]] = []
    if network is not None:
        vswitches = [
            {"id": vswitch, "vpcId": network.vpc_id, "zoneId": zone, "routeTableId": MAIN_TABLE}
            | {"cidrBlock": by_zone[zone]}
            for zone, vswitch in network.subnets.items()
        ]
    nat = {"cidrBlock": ANYWHERE, "nextHopType": "NatGateway", "status": "Available"}
    encrypted = {"location": f"oss-{stack.region}", "serverSideEncryptionRule": {"sseAlgorithm": "KMS"}}

    def switches(asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {"vswitches": [known for known in vswitches if known["id"] in asked["ids"]]}

    def networks(asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {"vpcs": [{"id": id_, "cidrBlock": str(NETWORK)} for id_ in asked["ids"]]}

    def file_systems(asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {"systems": [_nas(id_) for id_ in asked["ids"]]}

    def mount_targets(asked: dict[str, Any]) -> dict[str, Any]:
        domain = f"{asked['fileSystemId']}.{stack.region}.nas.aliyuncs.com"
        target = {"mountTargetDomain": domain, "status": "Active", "vswitchId": vswitches[0]["id"]}
        return asked | {"targets": [target]}

    return {
        "alicloud:vpc/getNetworks:getNetworks": networks,
        "alicloud:vpc/getSwitches:getSwitches": switches,
        "alicloud:vpc/getRouteEntries:getRouteEntries": lambda asked: asked | {"entries": [nat]},
        "alicloud:oss/getBuckets:getBuckets": lambda asked: asked | {"buckets": [encrypted]},
        "alicloud:nas/getFileSystems:getFileSystems": file_systems,
        "alicloud:nas/getMountTargets:getMountTargets": mount_targets,
    }


def _nas(id_: str) -> dict[str, Any]:
    if id_.startswith("cpfs-"):
        return {"id": id_, "fileSystemType": "cpfs", "protocolType": "cpfs", "encryptType": 0}
    kind = "extreme" if id_.startswith("extreme-") else "standard"
    return {"id": id_, "fileSystemType": kind, "protocolType": "NFS", "encryptType": 1}
