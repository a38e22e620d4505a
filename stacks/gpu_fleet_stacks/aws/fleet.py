"""One pool of instances: its identity, its launch template, its Auto Scaling groups.

Nothing declared here terminates a healthy on-demand instance. Groups launch with scale-in protection, do not
rebalance zones, and have no maximum lifetime. Once they exist, the sweep sets their desired capacity.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws.identity import Identity, IdentityArgs
from gpu_fleet_stacks.aws.launch import LaunchArgs, launch_template
from gpu_fleet_stacks.aws.scaling import scale_by_load
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import instance_file
from gpu_fleet_stacks.payload.at_launch import QueueJoin
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import GroupPlan, group_plans, instance_tags

# A spot instance gets two minutes; an on-demand one that fails its health check may need longer to save.
DRAIN_S = 900
# A group is deleted after its instances; the provider waits 10 minutes unless set otherwise,
# and an instance may drain for 15 and then take its time to shut down.
EMPTYING_S = 3600
HEALTH_GRACE_S = 600
GROUP_METRICS = (
    aws.autoscaling.Metric.GROUP_DESIRED_CAPACITY,
    aws.autoscaling.Metric.GROUP_IN_SERVICE_INSTANCES,
    aws.autoscaling.Metric.GROUP_PENDING_INSTANCES,
    aws.autoscaling.Metric.GROUP_TOTAL_INSTANCES,
)


def _in_placement_group(stack: Stack, pool: Pool, plan: GroupPlan) -> bool:
    """Return whether a group's instances are close together, in a cluster placement group.

    A reservation has its own placement group or none, so a pool with one asks for none. The emulator of a
    local stack has none.
    """
    return pool.efa and len(plan.zones) == 1 and not pool.reserves and not stack.emulated


@dataclass(frozen=True)
class FleetArgs:
    """Inputs of a pool.

    Attributes:
        image_id: the image of launch templates; known only once such an image exists.
        autoscaling_role_arn: the scaling role that the key trusts.
        subnet_ids: zone -> private subnet.
        bucket_arns: kind -> bucket.
        home: DNS name of the shared home, or empty.
        scratch: DNS name of the Lustre scratch, or empty.
        scratch_mount_name: Lustre's mount name, or empty.
        queue: what the stack's queue gives its nodes; None without one.
        surroundings: resources that an instance needs from its first minute to its last, beyond the ids
            above: routes, firewall rules, endpoints, mount targets. They exist before any group launches an
            instance, and a ``pulumi destroy`` removes them only after the groups are empty.
    """

    stack: Stack
    pool: Pool
    image_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    autoscaling_role_arn: pulumi.Output[str]
    subnet_ids: dict[str, pulumi.Output[str]]
    group_id: pulumi.Output[str]
    bucket_arns: dict[str, pulumi.Output[str]]
    home: pulumi.Output[str]
    scratch: pulumi.Output[str]
    scratch_mount_name: pulumi.Output[str]
    surroundings: Sequence[pulumi.Resource]
    queue: QueueJoin | None = None


class Fleet(pulumi.ComponentResource):
    """The instances of one pool.

    Attributes:
        group_names: the pool's Auto Scaling groups, in order of preference.
    """

    group_names: list[pulumi.Output[str]]
    launch_template_id: pulumi.Output[str]

    def __init__(self, name: str, args: FleetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Fleet", name, None, opts)
        self._args = args
        secret_arn = args.queue.secret_arn if args.queue else None
        identity = Identity(
            name,
            IdentityArgs(args.stack, args.pool, args.key_arn, args.bucket_arns, secret_arn),
            pulumi.ResourceOptions(parent=self),
        )
        launch = LaunchArgs(
            stack=args.stack,
            pool=args.pool,
            image_id=args.image_id,
            key_arn=args.key_arn,
            group_id=args.group_id,
            profile_arn=identity.profile_arn,
            home=args.home,
            scratch=args.scratch,
            scratch_mount_name=args.scratch_mount_name,
            user_role_arn=identity.user_role_arn,
            reservation=args.pool.reservation_id,
            queue=args.queue.node_file if args.queue else None,
        )
        stem, plans = naming.prefixed(args.stack.name), group_plans(args.stack, args.pool)
        templates = self._templates(name, launch, plans)
        groups = [self._group(f"{stem}-{plan.label}", plan, templates[plan.reservation]) for plan in plans]
        self.group_names = [group.name for group in groups]
        self.launch_template_id = templates[plans[0].reservation].id
        self.register_outputs(
            {"group_names": self.group_names, "launch_template_id": self.launch_template_id}
        )

    def _templates(
        self, name: str, launch: LaunchArgs, plans: Sequence[GroupPlan]
    ) -> dict[str | None, aws.ec2.LaunchTemplate]:
        """Return reservation -> the launch template that names it; one for all groups without several."""
        if not launch.pool.reservations:
            return {launch.reservation: launch_template(f"{name}-template", launch, self)}
        return {
            plan.reservation: launch_template(
                f"{name}-{plan.reservation}-template", replace(launch, reservation=plan.reservation), self
            )
            for plan in plans
        }

    def _group(self, name: str, plan: GroupPlan, template: aws.ec2.LaunchTemplate) -> aws.autoscaling.Group:
        args = self._args
        placed = _in_placement_group(args.stack, args.pool, plan)
        group = aws.autoscaling.Group(
            name,
            min_size=plan.size.min,
            max_size=plan.size.max,
            desired_capacity=plan.size.desired,
            vpc_zone_identifiers=[args.subnet_ids[zone] for zone in plan.zones],
            placement_group=self._placement(name) if placed else None,
            service_linked_role_arn=args.autoscaling_role_arn,
            protect_from_scale_in=True,
            suspended_processes=["AZRebalance"],
            capacity_rebalance=args.pool.rebalances,
            health_check_type="EC2",
            health_check_grace_period=HEALTH_GRACE_S,
            wait_for_capacity_timeout="0",
            enabled_metrics=list(GROUP_METRICS),
            tags=self._tags(),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=args.surroundings,
                ignore_changes=[
                    "desired_capacity",
                    "suspended_processes",
                    *(["max_size"] if args.pool.drains else []),
                ],
                custom_timeouts=pulumi.CustomTimeouts(delete=f"{EMPTYING_S}s"),
            ),
            **capacity(args.pool, template, plan.market),
        )
        if args.stack.image.managed:  # without an agent each termination would wait for an answer
            aws.autoscaling.LifecycleHook(
                f"{name}-drain",
                name=instance_file.LIFECYCLE_HOOK,
                autoscaling_group_name=group.name,
                lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
                heartbeat_timeout=DRAIN_S,
                default_result="CONTINUE",
                # It is deleted with its group. The order of dependencies would delete it first; it would then
                # not hold the instances that the group's deletion terminates, and nothing would be saved.
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
            )
        if args.pool.scales:
            own = pulumi.ResourceOptions(parent=self)
            scale_by_load(name, args.stack, args.pool, plan=plan, group=group, opts=own)
        return group

    def _placement(self, name: str) -> pulumi.Output[str]:
        placement = aws.ec2.PlacementGroup(
            f"{name}-cluster",
            strategy="cluster",
            tags=naming.tags(self._args.stack.name, self._args.stack.owner, pool=self._args.pool.name),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return placement.name

    def _tags(self) -> list[aws.autoscaling.GroupTagArgs]:
        tags = instance_tags(self._args.stack, self._args.pool)
        return [
            aws.autoscaling.GroupTagArgs(key=key, value=value, propagate_at_launch=True)
            for key, value in tags.items()
        ]


def capacity(pool: Pool, template: aws.ec2.LaunchTemplate, market: Market) -> dict[str, Any]:
    """Return the launch arguments of a group: the template's reservation, or else a mix of types.

    Spot launches from the pools with most capacity among the cheap (``price-capacity-optimized``,
    https://docs.aws.amazon.com/autoscaling/ec2/userguide/allocation-strategies.html); on demand tries the
    types in the order of the settings.

    Args:
        market: the group's own; a spot pool that may fall back has groups that buy on demand.
    """
    latest = template.latest_version.apply(str)
    if pool.reserves:
        return {"launch_template": {"id": template.id, "version": latest}}
    on_demand = market is Market.ON_DEMAND
    return {
        "mixed_instances_policy": {
            "launch_template": {
                "launch_template_specification": {"launch_template_id": template.id, "version": latest},
                "overrides": [{"instance_type": name} for name in pool.types],
            },
            "instances_distribution": {
                "on_demand_allocation_strategy": "prioritized",
                "on_demand_base_capacity": 0 if on_demand else pool.on_demand_base,
                "on_demand_percentage_above_base_capacity": 100 if on_demand else 0,
                "spot_allocation_strategy": "price-capacity-optimized",
            },
        }
    }
