"""Launch template of a pool's instance: image, disk, network cards, identity, user data."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi_aws.ec2 import (
    LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs as ReservationTarget,
)

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload.at_launch import encoded_user_data
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import instance_tags
from gpu_fleet_stacks.settings.quantities import VOLUME_IOPS

# A shuffling data loader wants more throughput than gp3's base, at 0.04 USD per MB/s and month.
VOLUME_THROUGHPUT_MB_PER_S = 250
ROOT_DEVICE = "/dev/sda1"
TAGGED_AT_LAUNCH = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class LaunchArgs:
    """Inputs of a launch template.

    Attributes:
        image_id: an AMI, or ``resolve:ssm:`` and a parameter that holds one.
        home: DNS name of the shared home, or empty.
        scratch: DNS name of the Lustre scratch, or empty.
        scratch_mount_name: Lustre's mount name, or empty.
        user_role_arn: role that the instance assumes for its users.
        reservation: in which alone it starts instances; None for none.
        queue: ``queue.json`` of a node; None without a queue.
    """

    stack: Stack
    pool: Pool
    image_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    group_id: pulumi.Output[str]
    profile_arn: pulumi.Output[str]
    home: pulumi.Output[str]
    scratch: pulumi.Output[str]
    scratch_mount_name: pulumi.Output[str]
    user_role_arn: pulumi.Output[str]
    reservation: str | None
    queue: pulumi.Output[str] | None = None


def launch_template(name: str, args: LaunchArgs, parent: pulumi.Resource) -> aws.ec2.LaunchTemplate:
    """Declare the pool's launch template; a change makes a new version and leaves running instances alone."""
    stack, pool = args.stack, args.pool
    return aws.ec2.LaunchTemplate(
        name,
        description=f"gpu-fleet {stack.name} pool {pool.name}",
        image_id=args.image_id,
        instance_type=pool.types[0],
        block_device_mappings=[_root_volume(pool, args.key_arn)],
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            http_put_response_hop_limit=1,
            instance_metadata_tags="enabled",
        ),
        network_interfaces=[
            aws.ec2.LaunchTemplateNetworkInterfaceArgs(**card)
            for card in network_interfaces(pool, args.group_id)
        ],
        capacity_reservation_specification=_reservation(args.reservation),
        instance_market_options=_market(pool),
        iam_instance_profile={"arn": args.profile_arn},
        instance_initiated_shutdown_behavior="stop" if _may_stop(pool) else "terminate",
        monitoring={"enabled": True},
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=instance_tags(stack, pool))
            for kind in TAGGED_AT_LAUNCH
        ],
        tags=naming.tags(stack.name, pool.owner or stack.owner, pool=pool.name),
        update_default_version=True,
        user_data=_user_data(args),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def network_interfaces(pool: Pool, group_id: pulumi.Input[str]) -> list[dict[str, Any]]:
    """Return one interface, or with EFA one for each network card of the catalog.

    Each interface names the security group: EC2 refuses it at the top beside interfaces. With several cards
    the template can neither request nor refuse a public address; the private subnets assign none.
    """
    cards = catalog.load().get(pool.types[0]).network_cards if pool.efa else ()
    if not cards:
        sole = {"device_index": 0, "delete_on_termination": "true", "security_groups": [group_id]}
        if pool.efa:
            sole["interface_type"] = "efa"
        return [sole | {"associate_public_ip_address": "false"}]
    return [
        {
            "network_card_index": card.card_index,
            "device_index": card.device_index,
            "interface_type": card.interface_type,
            "delete_on_termination": "true",
            "security_groups": [group_id],
        }
        for card in cards
    ]


def _root_volume(pool: Pool, key_arn: pulumi.Input[str]) -> aws.ec2.LaunchTemplateBlockDeviceMappingArgs:
    return aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
        device_name=ROOT_DEVICE,
        ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
            volume_type="gp3",
            volume_size=pool.volume_gib,
            iops=VOLUME_IOPS,
            throughput=VOLUME_THROUGHPUT_MB_PER_S,
            encrypted="true",
            kms_key_id=key_arn,
            delete_on_termination="true",
        ),
    )


def _may_stop(pool: Pool) -> bool:
    """Return whether an instance that powers itself off stays stopped: only if a stop loses nothing."""
    scratch = any(catalog.load().get(name).instance_store_scratch for name in pool.types)
    return pool.market is Market.ON_DEMAND and not scratch


def _reservation(named: str | None) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """Return the reservation, or the group of them by its ARN, to start in; None for none."""
    if named is None:
        return None
    by_group = named.startswith("arn:")
    key = "capacity_reservation_resource_group_arn" if by_group else "capacity_reservation_id"
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_target=ReservationTarget(**{key: named})
    )


def _market(pool: Pool) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    """Return the market option of a capacity block; the group's mix decides which instances are spot."""
    if pool.market is not Market.CAPACITY_BLOCK:
        return None
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")


def _user_data(args: LaunchArgs) -> pulumi.Output[str]:
    """Return base64 of the cloud-config, as EC2 wants it in a launch template."""
    names = {
        "home": args.home,
        "scratch": args.scratch,
        "scratch_mount_name": args.scratch_mount_name,
        "user_role": args.user_role_arn,
    }
    return encoded_user_data(args.stack, args.pool, "s3", names, args.queue)
