"""Launch template of a pool's instance: image, disks, network interface, identity, user data.

There are two ways to launch, since no resource of the cloud has all that a pool may need. A launch template
can require metadata tokens, but supports neither eRDMA nor private pools. A scaling configuration supports
those, and cannot require tokens.
"""

import os
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud.first_pass import DeclaredStage, stage_of
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload.at_launch import encoded_user_data
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import instance_tags

# ESSD PL1: 50,000 IOPS at most (www.alibabacloud.com/help/en/ecs/user-guide/essds).
DISK_CATEGORY, DISK_PERFORMANCE_LEVEL = "cloud_essd", "PL1"
# Name of the pool's data disk, and so its label in ECS, by which the image's /scratch step finds it.
SCRATCH_DISK = "scratch"


@dataclass(frozen=True)
class LaunchArgs:
    """Inputs of a launch template.

    Attributes:
        home: DNS name of the shared home, or empty.
        scratch: DNS name of the CPFS scratch, or empty.
        monitor_group: the application group that agents publish into.
        user_role_arn: role that the instance assumes for its users.
        reservation: the private pool in which alone it starts instances; None for none.
        queue: ``queue.json`` of a node; None without a queue.
    """

    stack: Stack
    pool: Pool
    image_id: str
    key_id: pulumi.Output[str]
    group_id: pulumi.Output[str]
    role_name: pulumi.Output[str]
    home: pulumi.Output[str]
    scratch: pulumi.Output[str]
    monitor_group: pulumi.Output[str]
    user_role_arn: pulumi.Output[str]
    reservation: str | None
    queue: pulumi.Output[str] | None = None


def needs_configuration(pool: Pool) -> bool:
    """Return whether the pool's instances need a scaling configuration rather than a launch template."""
    return pool.erdma or pool.reserves


def launch_template(name: str, args: LaunchArgs, parent: pulumi.Resource) -> alicloud.ecs.EcsLaunchTemplate:
    """Declare the pool's launch template; a change makes a new version and leaves running instances alone."""
    stack, pool = args.stack, args.pool
    disk = f"{naming.prefixed(stack.name, pool.name)}-root"
    return alicloud.ecs.EcsLaunchTemplate(
        name,
        launch_template_name=naming.prefixed(stack.name, pool.name),
        description=f"gpu-fleet {stack.name} pool {pool.name}",
        version_description=f"gpu-fleet {stack.name} pool {pool.name}",
        image_id=args.image_id,
        instance_type=pool.types[0],
        instance_name=naming.prefixed(stack.name, pool.name),
        instance_charge_type="PostPaid",
        network_type="vpc",
        security_group_ids=[args.group_id],
        ram_role_name=args.role_name,
        http_endpoint="enabled",
        http_tokens="required",
        http_put_response_hop_limit=1,
        internet_max_bandwidth_out=0,
        system_disk=alicloud.ecs.EcsLaunchTemplateSystemDiskArgs(
            category=DISK_CATEGORY,
            performance_level=DISK_PERFORMANCE_LEVEL,
            name=disk,
            size=pool.volume_gib,
            encrypted=True,
            kms_key_id=args.key_id,
            delete_with_instance=True,
        ),
        data_disks=[alicloud.ecs.EcsLaunchTemplateDataDiskArgs(**disk) for disk in _data_disks(args)],
        spot_strategy=_spot_strategy(pool),
        update_default_version_number=True,
        tags=instance_tags(stack, pool),
        template_tags=naming.tags(stack.name, pool.owner or stack.owner, pool=pool.name),
        user_data=_user_data(args),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def scaling_configuration(
    name: str, args: LaunchArgs, group_id: pulumi.Input[str], parent: pulumi.Resource
) -> alicloud.ess.ScalingConfiguration:
    """Declare a scaling configuration for a group that a launch template cannot express.

    A change leaves running instances alone. The configuration is deleted with its group, never before: the
    provider deletes a group's last configuration with the group and all its instances, or, without
    ``force_delete``, not at all.
    """
    stack, pool = args.stack, args.pool
    stage = stage_of(name, os.environ)
    joined = pool.erdma and stage is not DeclaredStage.MADE
    return alicloud.ess.ScalingConfiguration(
        name,
        scaling_group_id=group_id,
        scaling_configuration_name=name,
        active=True,
        enable=stage is None,
        image_id=args.image_id,
        instance_types=list(pool.types),
        instance_name=naming.prefixed(stack.name, pool.name),
        instance_description=f"gpu-fleet {stack.name} pool {pool.name}",
        security_group_ids=None if joined else [args.group_id],
        network_interfaces=network_interfaces(args.group_id) if joined else None,
        role_name=args.role_name,
        http_endpoint="enabled",
        internet_max_bandwidth_out=0,
        system_disk_category=DISK_CATEGORY,
        system_disk_performance_level=DISK_PERFORMANCE_LEVEL,
        system_disk_size=pool.volume_gib,
        system_disk_encrypted=True,
        system_disk_kms_key_id=args.key_id,
        data_disks=[alicloud.ess.ScalingConfigurationDataDiskArgs(**disk) for disk in _data_disks(args)],
        spot_strategy=_spot_strategy(pool),
        spot_price_limits=[
            alicloud.ess.ScalingConfigurationSpotPriceLimitArgs(instance_type=kind, price_limit=limit)
            for kind, limit in spot_price_limits(pool).items()
        ],
        resource_pool_options_strategy="PrivatePoolOnly" if args.reservation else None,
        resource_pool_options_private_pool_ids=[args.reservation] if args.reservation else None,
        tags=instance_tags(stack, pool),
        user_data=_user_data(args),
        opts=pulumi.ResourceOptions(parent=parent, retain_on_delete=True),
    )


def network_interfaces(
    group_id: pulumi.Input[str],
) -> list[alicloud.ess.ScalingConfigurationNetworkInterfaceArgs]:
    """Return the primary interface of an eRDMA instance, which alone names the security group.

    The provider can update a configuration to this form but not create it: see ``first_pass``.
    """
    return [
        alicloud.ess.ScalingConfigurationNetworkInterfaceArgs(
            instance_type="Primary",
            network_interface_traffic_mode="HighPerformance",
            security_group_ids=[group_id],
        )
    ]


def _spot_strategy(pool: Pool) -> str:
    """Return the strategy: on demand, at the spot market's price, or up to a limit."""
    if pool.market is not Market.SPOT:
        return "NoSpot"
    return "SpotAsPriceGo" if pool.spot_price_limit is None else "SpotWithPriceLimit"


def spot_price_limits(pool: Pool) -> dict[str, float]:
    """Return type -> highest price of an hour; empty without a limit. The provider accepts no Decimal."""
    if pool.market is not Market.SPOT or pool.spot_price_limit is None:
        return {}
    return dict.fromkeys(pool.types, float(pool.spot_price_limit))


def _data_disks(args: LaunchArgs) -> list[dict[str, Any]]:
    """Return the pool's scratch disk in the form that both resources accept."""
    disk = {
        "category": DISK_CATEGORY,
        "performance_level": DISK_PERFORMANCE_LEVEL,
        "name": SCRATCH_DISK,
        "size": args.pool.scratch_gib,
        "encrypted": True,
        "kms_key_id": args.key_id,
        "delete_with_instance": True,
    }
    return [disk] if args.pool.scratch_gib else []


def _user_data(args: LaunchArgs) -> pulumi.Output[str]:
    """Return the cloud-config in base64, as both resources need it."""
    names = {
        "home": args.home,
        "scratch": args.scratch,
        "monitor_group": args.monitor_group,
        "user_role": args.user_role_arn,
    }
    return encoded_user_data(args.stack, args.pool, "oss", names, args.queue)
