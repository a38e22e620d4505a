"""Answers to the lookups of an existing VPC, where nothing stands anywhere."""

from typing import Any

CIDR = "10.77.0.0/16"
TABLE = "vtb-wz9f0000000000000000"
NO_BUCKET: dict[str, Any] = {"location": None}
ENCRYPTED_BUCKET = {"location": "oss-cn-shenzhen", "serverSideEncryptionRule": {"sseAlgorithm": "KMS"}}
NAT_ROUTE = {"cidrBlock": "0.0.0.0/0", "nextHopType": "NatGateway", "status": "Available"}


def answering(vpc: str, subnets: dict[str, str], region: str = "us-east-1", **of_subnets: Any):
    """What the monitor answers to a program's lookups: every subnet lies in its zone of the VPC.

    Args:
        region: of every bucket.
        of_subnets: what differs from that.
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
        if token == "aws:s3/getBucket:getBucket":
            return arguments | {"bucketRegion": region}
        return {"id": "pl-0123456789abcdef0", "cidrBlock": CIDR} | arguments

    return answer


def alicloud_answering(
    vpc: str, subnets: dict[str, str], routes: Any = (NAT_ROUTE,), bucket: Any = None, **of_vswitches: Any
):
    """The same on Alibaba Cloud, where what is not there is an empty list.

    Args:
        routes: of every vSwitch's table.
        bucket: what differs from a bucket that encrypts what it holds; ``NO_BUCKET`` for none.
        of_vswitches: what differs from a vSwitch of its zone and the VPC.
    """
    known = {
        vswitch: {"id": vswitch, "vpcId": vpc, "zoneId": zone, "routeTableId": TABLE}
        | {"cidrBlock": f"10.77.{number}.0/24"}
        | of_vswitches
        for number, (zone, vswitch) in enumerate(subnets.items())
    }

    def answer(_, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if token == "alicloud:vpc/getRouteEntries:getRouteEntries":
            return arguments | {"entries": list(routes)}
        if token == "alicloud:oss/getBuckets:getBuckets":
            return arguments | {"buckets": [ENCRYPTED_BUCKET | (bucket or {})] if bucket != NO_BUCKET else []}
        (wanted,) = arguments["ids"]
        if token == "alicloud:vpc/getNetworks:getNetworks":
            return arguments | {"vpcs": [{"id": vpc, "cidrBlock": CIDR}] if wanted == vpc else []}
        assert token == "alicloud:vpc/getSwitches:getSwitches", token
        return arguments | {"vswitches": [known[wanted]] if wanted in known else []}

    return answer
