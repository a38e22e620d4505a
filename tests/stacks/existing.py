"""Answers to the lookups of an existing VPC, where nothing stands anywhere."""

from typing import Any

CIDR = "10.77.0.0/16"


def answering(vpc: str, subnets: dict[str, str], **of_subnets: Any):
    """What the monitor answers to a program's lookups: every subnet lies in its zone of the VPC.

    Args:
        of_subnets: what differs from that.
    """
    zones = {subnet: zone for zone, subnet in subnets.items()}

    def answer(_, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if token == "aws:ec2/getSubnet:getSubnet":
            zone = zones[arguments["id"]]
            return (
                arguments
                | {"vpcId": vpc, "availabilityZone": zone, "mapPublicIpOnLaunch": False}
                | of_subnets
            )
        return {"id": "pl-0123456789abcdef0", "cidrBlock": CIDR} | arguments

    return answer
