"""Rules for ownership, budget, clean-up and region of resources."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from gpu_fleet_stacks.crossguard.model import (
    TAG_PREFIX,
    UNKNOWN,
    Finding,
    PolicyRule,
    Profile,
    Resource,
    Severity,
    items,
)

REQUIRED_TAGS = (f"{TAG_PREFIX}stack", f"{TAG_PREFIX}owner")
INSTANCE_TAGS = (*REQUIRED_TAGS, f"{TAG_PREFIX}pool", f"{TAG_PREFIX}managed")
PROVIDER = "pulumi:providers:"

# Types of both clouds that take tags and cost money, hold data or allow access.
TAGGED = frozenset(
    {
        "aws:autoscaling/group:Group",
        "aws:budgets/budget:Budget",
        "aws:cloudwatch/eventRule:EventRule",
        "aws:cloudwatch/logGroup:LogGroup",
        "aws:cloudwatch/metricAlarm:MetricAlarm",
        "aws:ec2/eip:Eip",
        "aws:ec2/launchTemplate:LaunchTemplate",
        "aws:ec2/natGateway:NatGateway",
        "aws:ec2/securityGroup:SecurityGroup",
        "aws:ec2/subnet:Subnet",
        "aws:ec2/vpc:Vpc",
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "aws:efs/fileSystem:FileSystem",
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        "aws:iam/instanceProfile:InstanceProfile",
        "aws:iam/role:Role",
        "aws:kms/key:Key",
        "aws:lambda/function:Function",
        "aws:s3/bucket:Bucket",
        "aws:sns/topic:Topic",
        "aws:sqs/queue:Queue",
        "alicloud:cms/alarm:Alarm",
        "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
        "alicloud:ecs/eipAddress:EipAddress",
        "alicloud:ecs/securityGroup:SecurityGroup",
        "alicloud:ess/scalingConfiguration:ScalingConfiguration",
        "alicloud:ess/scalingGroup:ScalingGroup",
        "alicloud:kms/key:Key",
        "alicloud:log/project:Project",
        "alicloud:nas/fileSystem:FileSystem",
        "alicloud:oss/bucket:Bucket",
        "alicloud:privatelink/vpcEndpoint:VpcEndpoint",
        "alicloud:ram/role:Role",
        "alicloud:vpc/natGateway:NatGateway",
        "alicloud:vpc/network:Network",
        "alicloud:vpc/switch:Switch",
    }
)
GROUPS = frozenset({"aws:autoscaling/group:Group", "alicloud:ess/scalingGroup:ScalingGroup"})


def tags(resource: Resource) -> Iterator[Finding]:
    """Require the tags by which bills, sweeps and users find resources."""
    if resource.type not in TAGGED:
        return
    wanted = INSTANCE_TAGS if resource.type in GROUPS else REQUIRED_TAGS
    missing = [tag for tag in wanted if not resource.tags().get(tag)]
    if missing:
        yield f"lacks {', '.join(missing)}"


def budget(resources: Sequence[Resource], _: Profile) -> Iterator[tuple[Resource | None, Finding]]:
    """Require a budget on AWS; on Alibaba Cloud, alarms on the metered month."""
    clouds = {resource.type.split(":")[0] for resource in resources}
    budgets = [resource for resource in resources if resource.type == "aws:budgets/budget:Budget"]
    if "aws" in clouds and not budgets:
        yield None, "has no budget"
    for entry in budgets:
        recipients = [
            address
            for notification in items(entry.inputs.get("notifications"))
            for address in items(notification.get("subscriberEmailAddresses"))
        ]
        if not recipients:
            yield entry, "has no recipient"
    if "alicloud" in clouds:
        yield from _budget_of_alicloud(resources)


def _budget_of_alicloud(resources: Sequence[Resource]) -> Iterator[tuple[Resource | None, Finding]]:
    alarms = [resource for resource in resources if resource.type == "alicloud:cms/alarm:Alarm"]
    if not any(alarm.inputs.get("metric") == "MonthCost" for alarm in alarms):
        yield None, "has no alarm on what the month has cost (MonthCost)"
    contacts = [
        resource for resource in resources if resource.type == "alicloud:cms/alarmContact:AlarmContact"
    ]
    if not any(contact.inputs.get("channelsMail") for contact in contacts):
        yield None, "has no recipient (no AlarmContact with an address)"


def reaper(resources: Sequence[Resource], _: Profile) -> Iterator[tuple[Resource | None, Finding]]:
    """Require that an active schedule sweeps every pool that may have instances."""
    pools = [resource for resource in resources if resource.type in GROUPS and resource.inputs.get("maxSize")]
    if pools and not any(_sweeps(resource) for resource in resources):
        yield None, f"has {len(pools)} groups that may hold instances and no schedule that sweeps them"
    for pool in pools:
        if pool.tags().get(f"{TAG_PREFIX}managed") != "true":
            yield pool, f"is out of the sweep's reach: {TAG_PREFIX}managed is not true"


def _sweeps(resource: Resource) -> bool:
    """Return whether this is an active schedule of the reaper."""
    inputs = resource.inputs
    if resource.type == "aws:scheduler/schedule:Schedule":
        return resource.name.endswith("-reaper") and inputs.get("state", "ENABLED") == "ENABLED"
    if resource.type == "alicloud:fc/v3Trigger:V3Trigger":
        configuration = str(inputs.get("triggerConfig") or "").replace(" ", "")
        return resource.name.endswith("-reaper") and '"enable":true' in configuration
    return False


def regions(resources: Sequence[Resource], profile: Profile) -> Iterator[tuple[Resource | None, Finding]]:
    """Require that providers name an allowed region; otherwise the region comes from the user's shell."""
    for provider in (resource for resource in resources if resource.type.startswith(PROVIDER)):
        region: Any = provider.inputs.get("region")
        if not region:
            if provider.type.removeprefix(PROVIDER) in ("aws", "alicloud"):
                yield provider, "names no region"
        elif region != UNKNOWN and not any(fnmatch(str(region), pattern) for pattern in profile.regions):
            yield provider, f"is in {region}; allowed are {', '.join(profile.regions)}"


RULES = (
    PolicyRule(
        "required-tags",
        "a resource without an owner is never removed, and no team's bill shows it",
        f"tag it with naming.tags: {', '.join(REQUIRED_TAGS)}; groups also with their pool and managed",
        Severity.MEDIUM,
        each=tags,
    ),
    PolicyRule(
        "budget-with-recipient",
        "owners must be notified of rising costs at once, not by the next bill",
        "name budget.monthly and at least one of budget.recipients",
        Severity.HIGH,
        whole=budget,
    ),
    PolicyRule(
        "reaper-for-every-pool",
        "forgotten GPU instances are the most expensive mistake",
        "build the stack with its reaper, and leave the groups' managed tag on",
        Severity.HIGH,
        whole=reaper,
    ),
    PolicyRule(
        "allowed-regions",
        "the region decides which law applies to the data",
        "move the stack, or change its profile in stacks/gpu_fleet_stacks/crossguard/profiles.toml",
        Severity.HIGH,
        whole=regions,
    ),
)
