"""One pool of instances: its identity, its launch source, its scaling groups.

Nothing declared here terminates a healthy on-demand instance. Groups have no rule that scales them in, do not
rebalance zones, and have no maximum lifetime. Once they exist, the sweep sets their desired capacity.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud.first_pass import HEALTH, DeclaredStage, stage_of
from gpu_fleet_stacks.alicloud.identity import Identity, IdentityArgs
from gpu_fleet_stacks.alicloud.launch import (
    LaunchArgs,
    launch_template,
    needs_configuration,
    scaling_configuration,
    spot_price_limits,
)
from gpu_fleet_stacks.alicloud.scaling import scale_by_load
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import instance_file
from gpu_fleet_stacks.payload.at_launch import QueueJoin
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import GroupPlan, group_plans, instance_tags

# A spot instance gets five minutes; an on-demand one that fails its health check may need longer to save. The
# provider waits 1,000 s for a deleted group, whatever timeout it is given.
DRAIN_S = 900
COOLDOWN_S = 300
# github.com/aliyun/terraform-provider-alicloud, alicloud_ess_scaling_group, spot_instance_pools.
MOST_SPOT_POOLS = 10
# Process to suspend on demand: it would terminate an instance that its user stopped, disks included. Not the
# process of scaling in: where that is suspended, Auto Scaling refuses the sweep's own DetachInstances too
# (www.alibabacloud.com/help/en/auto-scaling/suspend-a-scaling-process, "manually removing instances").
SUSPENDED = "HealthCheck"


@dataclass(frozen=True)
class FleetArgs:
    """Inputs of a pool.

    Attributes:
        subnet_ids: zone -> private vSwitch.
        bucket_arns: kind -> bucket.
        home: DNS name of the shared home, or empty.
        scratch: DNS name of the CPFS scratch, or empty.
        monitor_group: the application group that agents publish into.
        queue: what the stack's queue gives its nodes; None without one.
        surroundings: resources that an instance needs from its first minute to its last, beyond the ids
            above: routes, firewall rules, endpoints, mount targets. They exist before any group launches an
            instance, and a ``pulumi destroy`` removes them only after the groups are empty.
    """

    stack: Stack
    pool: Pool
    image_id: str
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]
    group_id: pulumi.Output[str]
    bucket_arns: dict[str, pulumi.Output[str]]
    home: pulumi.Output[str]
    scratch: pulumi.Output[str]
    monitor_group: pulumi.Output[str]
    surroundings: Sequence[pulumi.Resource]
    queue: QueueJoin | None = None


class Fleet(pulumi.ComponentResource):
    """The instances of one pool.

    Attributes:
        group_names: the pool's scaling groups, in order of preference.
        group_ids: their ids for the API of Auto Scaling.
        launch_template_id: the launch template; the first group's scaling configuration where the pool needs
            one (see ``launch``).
    """

    group_names: list[pulumi.Output[str]]
    group_ids: list[pulumi.Output[str]]
    launch_template_id: pulumi.Output[str]

    def __init__(self, name: str, args: FleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Fleet", name, None, opts)
        self._args, stack, pool = args, args.stack, args.pool
        secret_arn = args.queue.secret_arn if args.queue else None
        identity = Identity(
            name,
            IdentityArgs(stack, pool, args.key_arn, args.bucket_arns, secret_arn),
            pulumi.ResourceOptions(parent=self),
        )
        launch = LaunchArgs(
            stack,
            pool,
            args.image_id,
            args.key_id,
            args.group_id,
            identity.role_name,
            args.home,
            args.scratch,
            args.monitor_group,
            identity.user_role_arn,
            pool.reservation_id,
            args.queue.node_file if args.queue else None,
        )
        by_template = not needs_configuration(pool)
        template = launch_template(f"{name}-template", launch, self) if by_template else None
        stem = naming.prefixed(stack.name)
        plans = {f"{stem}-{plan.label}": plan for plan in group_plans(stack, pool)}
        groups = {label: self._group(label, plan, template) for label, plan in plans.items()}
        made = {
            label: scaling_configuration(
                label, replace(launch, reservation=plans[label].reservation), group.id, self
            )
            for label, group in groups.items()
            if template is None
        }
        for label, group in groups.items():
            self._suspend(label, group, after=[made[label]] if label in made else [])
        starts = (
            [template.id] if template is not None else [configuration.id for configuration in made.values()]
        )
        self.group_names = [pulumi.Output.from_input(label) for label in groups]
        self.group_ids = [group.id for group in groups.values()]
        self.launch_template_id = starts[0]
        self.register_outputs({"group_ids": self.group_ids, "launch_template_id": starts[0]})

    def _group(
        self, name: str, plan: GroupPlan, template: alicloud.ecs.EcsLaunchTemplate | None
    ) -> alicloud.ess.ScalingGroup:
        args = self._args
        group = alicloud.ess.ScalingGroup(
            name,
            scaling_group_name=name,
            min_size=plan.size.min,
            max_size=plan.size.max,
            # Never 0, which the provider does not send (GetOk): a group made without an expected number never
            # gets one, and grows by scaling activities alone (docs/explanation/clouds.md).
            desired_capacity=plan.size.desired or None,
            default_cooldown=COOLDOWN_S,
            vswitch_ids=[args.subnet_ids[zone] for zone in plan.zones],
            removal_policies=["OldestScalingConfiguration", "OldestInstance"],
            scaling_policy="release",
            health_check_type="ECS",
            group_type="ECS",
            az_balance=False,
            auto_rebalance=False,
            group_deletion_protection=args.stack.protected,
            tags=instance_tags(args.stack, args.pool),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=args.surroundings,
                # the provider reads back which instances are protected; an update would unprotect them all
                ignore_changes=[
                    "desiredCapacity",
                    "protectedInstances",
                    *(["maxSize"] if args.pool.drains else []),
                ],
            ),
            **capacity(args.pool),
            **_starts_from(args.pool, template),
        )
        if args.stack.image.managed:  # without an agent each termination would wait for an answer
            alicloud.ess.LifecycleHook(
                f"{name}-drain",
                name=instance_file.LIFECYCLE_HOOK,
                scaling_group_id=group.id,
                lifecycle_transition="SCALE_IN",
                heartbeat_timeout=DRAIN_S,
                default_result="CONTINUE",
                # It is deleted with its group. The order of dependencies would delete it first; it would then
                # hold no instance that the group's deletion terminates: DeleteLifecycleHook even ends waits.
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
            )
        if args.pool.scales:
            own = pulumi.ResourceOptions(parent=self)
            scale_by_load(
                name,
                args.stack,
                args.pool,
                plan=plan,
                group=group,
                monitor_group=args.monitor_group,
                opts=own,
            )
        return group

    def _suspend(
        self, name: str, group: alicloud.ess.ScalingGroup, *, after: Sequence[pulumi.Resource]
    ) -> None:
        """Suspend processes that must not run by themselves, once the group is enabled: ``first_pass``."""
        own = f"{name}{HEALTH}"
        if self._args.pool.market is Market.SPOT or stage_of(own, os.environ) is DeclaredStage.WITHHELD:
            return
        alicloud.ess.SuspendProcess(
            own,
            scaling_group_id=group.id,
            process=SUSPENDED,
            opts=pulumi.ResourceOptions(parent=self, depends_on=after),
        )


def capacity(pool: Pool) -> dict[str, Any]:
    """Return how a group spreads over types and zones.

    On demand uses zones and types in an order that the provider picks: it sends both as sets. A preferred
    zone needs a group of its own, a preferred type a pool of its own. Spot uses the cheapest of several pools
    and replaces an interrupted instance. Where the pool allows it, the group buys on demand when no spot
    instance is available. Spot's options need ``COST_OPTIMIZED`` (alicloud_ess_scaling_group).
    """
    if pool.market is not Market.SPOT:
        return {"multi_az_policy": "PRIORITY"}
    return {
        "multi_az_policy": "COST_OPTIMIZED",
        "on_demand_base_capacity": pool.on_demand_base,
        "on_demand_percentage_above_base_capacity": 0,
        "spot_instance_pools": min(len(pool.types), MOST_SPOT_POOLS),
        "spot_instance_remedy": True,
        "compensate_with_on_demand": pool.on_demand_fallback,
        # it would terminate healthy on-demand instances for cheaper ones
        "capacity_options_spot_auto_replace_on_demand": False,
    }


def _starts_from(pool: Pool, template: alicloud.ecs.EcsLaunchTemplate | None) -> dict[str, Any]:
    """Return the template's newest version with every type of the pool; empty for a scaling configuration."""
    if template is None:
        return {}
    limits = spot_price_limits(pool)
    return {
        "launch_template_id": template.id,
        "launch_template_version": "Latest",
        "launch_template_overrides": [
            alicloud.ess.ScalingGroupLaunchTemplateOverrideArgs(
                instance_type=kind, spot_price_limit=limits.get(kind)
            )
            for kind in pool.types
        ],
    }
