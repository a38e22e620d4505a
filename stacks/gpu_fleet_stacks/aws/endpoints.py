"""Interface endpoints of the cloud's own services, so that a private stack needs no NAT."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

# Session Manager needs the first three, and logs where sessions are recorded; the agent publishes through
# monitoring; the reaper and the launcher ask ec2 and autoscaling who is there; credentials, keys, containers
# and homes need the others.
SERVICES = (
    "ssm",
    "ssmmessages",
    "ec2messages",
    "logs",
    "monitoring",
    "ec2",
    "autoscaling",
    "sts",
    "kms",
    "ecr.api",
    "ecr.dkr",
    "elasticfilesystem",
)


@dataclass(frozen=True)
class EndpointsArgs:
    """Inputs of the endpoints.

    Attributes:
        subnet_ids: one private subnet per zone.
        group_id: the security group that lets the pools in.
    """

    stack: Stack
    vpc_id: pulumi.Input[str]
    subnet_ids: list[pulumi.Output[str]]
    group_id: pulumi.Input[str]


class Endpoints(pulumi.ComponentResource):
    """One interface endpoint for each service, open to this account's own principals only."""

    def __init__(self, name: str, args: EndpointsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Endpoints", name, None, opts)
        stack = args.stack
        for service in SERVICES:
            label = service.replace(".", "-")
            aws.ec2.VpcEndpoint(
                f"{name}-{label}",
                vpc_id=args.vpc_id,
                service_name=f"com.amazonaws.{stack.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=args.subnet_ids,
                security_group_ids=[args.group_id],
                policy=_own_account_only(stack.account_id),
                tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, label)),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})


def _own_account_only(account_id: str) -> pulumi.Output[str]:
    """Return an endpoint policy for this account only.

    A policy can name no principal of an account but its root user, so a condition names the account.

    https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html
    """
    condition = {"StringEquals": {"aws:PrincipalAccount": account_id}}
    return policies.document(policies.allow("OwnAccount", ["*"], "*", condition, {"AWS": "*"}))
