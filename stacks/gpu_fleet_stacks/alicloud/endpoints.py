"""Endpoints of the cloud's own services inside the network.

Alibaba Cloud serves all of them at addresses of its own (``firewall.CLOUD_SERVICES``) that every VPC reaches
without NAT, so a private stack works without endpoints. PrivateLink adds OSS at addresses of the network
itself, which peered networks and offices reach too.
"""

import json
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

# The one service whose endpoint name the provider's reference gives (alicloud_privatelink_vpc_endpoint).
SERVICES = ("oss",)


@dataclass(frozen=True)
class EndpointsArgs:
    """Inputs of the endpoints.

    Attributes:
        subnet_ids: zone -> private vSwitch.
        group_id: the security group that lets the pools in.
    """

    stack: Stack
    vpc_id: pulumi.Input[str]
    subnet_ids: dict[str, pulumi.Output[str]]
    group_id: pulumi.Input[str]


class Endpoints(pulumi.ComponentResource):
    """One interface endpoint a service, with an address in every zone, open to the stack's own buckets."""

    def __init__(self, name: str, args: EndpointsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Endpoints", name, None, opts)
        stack, child = args.stack, pulumi.ResourceOptions(parent=self)
        for service in SERVICES:
            endpoint = alicloud.privatelink.VpcEndpoint(
                f"{name}-{service}",
                vpc_id=args.vpc_id,
                service_name=f"com.aliyuncs.privatelink.{stack.region}.{service}",
                endpoint_type="Interface",
                vpc_endpoint_name=naming.prefixed(stack.name, service),
                endpoint_description=f"gpu-fleet {stack.name} {service}",
                security_group_ids=[args.group_id],
                zone_private_ip_address_count=1,
                policy_document=_own_buckets_only(stack),
                tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, service)),
                opts=child,
            )
            for zone, subnet_id in args.subnet_ids.items():
                alicloud.privatelink.VpcEndpointZone(
                    f"{name}-{service}-{zone}",
                    endpoint_id=endpoint.id,
                    vswitch_id=subnet_id,
                    zone_id=zone,
                    opts=child,
                )
        self.register_outputs({})


def _own_buckets_only(stack: Stack) -> str:
    """Return an endpoint policy that lets data pass only by TLS into the stack's own buckets."""
    named = (f"{naming.prefixed(stack.name)}-*", *stack.storage.existing.buckets)
    buckets = [f"acs:oss:*:{stack.account_id}:{name}" for name in named]
    statement = {
        "Effect": "Allow",
        "Action": ["oss:*"],
        "Resource": [part for bucket in buckets for part in (bucket, f"{bucket}/*")],
        "Principal": "*",
        "Condition": {"Bool": {"acs:SecureTransport": ["true"]}},
    }
    return json.dumps({"Version": "1", "Statement": [statement]})
