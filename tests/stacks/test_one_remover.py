"""Nothing that a stack declares ends a healthy on-demand instance; only the sweep does."""

from gpu_fleet_stacks.settings import Cloud
from tests.stacks.examples import pool, stack
from tests.stacks.registrations import declared as declared_of

# What roles other than the sweep's may ask of the services that run instances: look, tag, and say in a drain
# under way that it goes on or is over. Nothing here ends, stops, detaches, judges, resizes or changes one,
# but the last two, which change attributes of the own pool's instances that end none: see "One remover" in
# docs/explanation/clouds.md.
HARMLESS = {
    Cloud.AWS: {
        "autoscaling:CompleteLifecycleAction",
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:RecordLifecycleActionHeartbeat",
        *("ec2:CreateTags", "ec2:DeleteTags", "ec2:DescribeInstances", "ec2:DescribeTags"),
        # of Image Builder: an old image and its snapshot, of which no instance is
        *("ec2:DeleteSnapshot", "ec2:DeregisterImage", "ec2:DescribeImageAttribute", "ec2:DescribeImages"),
    },
    Cloud.ALICLOUD: {
        *("ecs:DescribeInstances", "ecs:DescribeTags"),
        *("ess:CompleteLifecycleAction", "ess:RecordLifecycleActionHeartbeat"),
        *("ess:DescribeLifecycleActions", "ess:DescribeScalingActivities", "ess:DescribeScalingInstances"),
        *("ecs:ModifyInstanceMetadataOptions", "ess:SetInstancesProtection"),
    },
}
# What the mover may ask beside: it raises groups and tags instances. What it may lower is what never started:
# its groups launch under protection, or count members.
MOVES = {
    Cloud.AWS: {
        *("autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities"),
        *("autoscaling:SetDesiredCapacity", "ec2:CreateTags", "ec2:DeleteTags"),
        *("ec2:DescribeInstances", "ec2:DescribeSpotPriceHistory"),
    },
    Cloud.ALICLOUD: {
        *("ecs:DescribeInstances", "ecs:DescribeSpotPriceHistory", "ecs:TagResources", "ecs:UntagResources"),
        *("ess:DescribeAlarms", "ess:DescribeScalingActivities", "ess:DescribeScalingGroups"),
        *("ess:ModifyScalingGroup", "ess:ScaleWithAdjustment"),
    },
}
# What the controller of builds may ask on Alibaba Cloud.
BUILDS = {
    *("ecs:DescribeImagePipelineExecutions", "ecs:DescribeImagePipelines"),
    "ecs:StartImagePipelineExecution",
}
# The call that raises a group; AWS's UpdateAutoScalingGroup is the sweep's for a limit, in a freeze.
RAISES = {"autoscaling:SetDesiredCapacity", "ess:ScaleWithAdjustment"}
OF_INSTANCES = ("ec2:", "autoscaling:", "ecs:", "ess:", "*")
ON_LEAVING = {Cloud.AWS: "autoscaling:EC2_INSTANCE_TERMINATING", Cloud.ALICLOUD: "SCALE_IN"}
RULE, ALARM = "alicloud:ess/scalingRule:ScalingRule", "alicloud:ess/alarm:Alarm"
SUSPENSION = "alicloud:ess/suspendProcess:SuspendProcess"
AWS_ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"


def groups(found) -> list[dict]:
    return found.inputs(found.words.group)


def test_groups_do_not_end_instances_for_their_age_or_to_balance_zones(either):
    assert [group for group in groups(either) if "maxInstanceLifetime" in group] == []
    for group in groups(either):
        if either.settings.cloud is Cloud.AWS:
            assert "AZRebalance" in group["suspendedProcesses"]
        else:
            assert (group["azBalance"], group["autoRebalance"]) == (False, False)


def test_groups_judge_instances_by_their_own_health_alone(either):
    own = {Cloud.AWS: "EC2", Cloud.ALICLOUD: "ECS"}[either.settings.cloud]

    assert {group["healthCheckType"] for group in groups(either)} == {own}


def test_a_later_update_leaves_the_size_to_the_sweep_and_on_aws_the_suspended_processes(either):
    kept = {"desiredCapacity"} | ({"suspendedProcesses"} if either.settings.cloud is Cloud.AWS else set())

    assert all(kept <= set(group.ignored_changes) for group in either.of_type(either.words.group))


def test_no_schedule_changes_a_groups_size(either):
    kinds = ("aws:autoscaling/schedule:Schedule", "alicloud:ess/scheduledTask:ScheduledTask")

    assert either.of_type(*kinds) == []


def test_no_role_but_the_sweeps_may_end_instances(either):
    """The roles' allowed actions are compared, so that a future action is refused too."""
    allowed = {
        (role, action)
        for role, statement in either.statements()
        for action in statement["Action"]
        if action.startswith(OF_INSTANCES)
    }
    own = {"-capacity": MOVES[either.settings.cloud]}
    own |= {"-builds": BUILDS} if either.settings.cloud is Cloud.ALICLOUD else {}

    others = {action for role, action in allowed if not role.endswith(("-reaper", *own))}
    assert others <= HARMLESS[either.settings.cloud]
    for end, actions in own.items():
        assert {action for role, action in allowed if role.endswith(end)} <= actions


def test_no_role_but_the_movers_raises_a_group(either):
    raising = {role for role, statement in either.statements() if RAISES & set(statement["Action"])}

    assert {role.rpartition("-")[2] for role in raising} == {"capacity"}


def test_every_group_waits_for_a_checkpoint_before_an_instance_is_terminated_and_nowhere_else(either):
    """A hook at the launch, completed with ABANDON, would terminate the instance that it holds."""
    hooks, leaving = either.of_type(either.words.hook), ON_LEAVING[either.settings.cloud]

    assert len(hooks) == len(groups(either))
    assert all("initialLifecycleHooks" not in group for group in groups(either))
    for hook in hooks:
        assert (hook.inputs["lifecycleTransition"], hook.inputs["defaultResult"]) == (leaving, "CONTINUE")
        assert hook.inputs["heartbeatTimeout"] == 900
        assert hook.inputs["name"] == "gpu-fleet-drain"


# AWS


def test_every_instance_is_launched_under_protection_and_no_group_chooses_one_when_it_shrinks(declared):
    groups_ = declared.of_type("aws:autoscaling/group:Group")

    assert {group.inputs["protectFromScaleIn"] for group in groups_} == {True}


def rebalancing(found) -> set[bool]:
    return {group.inputs["capacityRebalance"] for group in found.of_type("aws:autoscaling/group:Group")}


SERVING = {"market": "spot", "purpose": "serving"}


NO_SERVICE = (
    {"purpose": "interactive"},
    {"purpose": "training"},
    {"market": "on-demand"},
    {"size": {"min": 2, "desired": 2, "max": 2}},
    {"types": ["p4d.24xlarge"], "efa": True},
)


def test_only_a_service_of_changing_size_has_spot_instances_replaced_on_a_recommendation():
    def replaces(**changes) -> set[bool]:
        return rebalancing(declared_of(stack(pools=[pool(**SERVING | changes)])))

    assert replaces() == {True}
    assert [changes for changes in NO_SERVICE if replaces(**changes) != {False}] == []


def test_no_shipped_group_replaces_instances_on_a_recommendation(declared):
    assert rebalancing(declared) == {False}


def test_no_rule_and_no_alarm_changes_a_groups_size_on_aws(declared):
    """The mover and the sweep read alarms on load; that for low load has no action, and others notify."""
    alarms = [alarm.inputs for alarm in declared.of_type(AWS_ALARM)]
    low = [alarm for alarm in alarms if alarm["comparisonOperator"].startswith("LessThan")]

    assert declared.of_type("aws:autoscaling/policy:Policy") == []
    actions = {action for alarm in alarms for action in alarm.get("alarmActions", [])}
    assert actions == {declared.rehearsed.outputs["topic_arn"]}
    assert not any(alarm.get("alarmActions") for alarm in low if alarm["namespace"] == "AWS/EC2")


# Alibaba Cloud


def test_no_group_refuses_the_sweep_itself_and_none_but_of_spot_terminates_what_a_user_stopped(alicloud):
    """Auto Scaling refuses DetachInstances, "manually removing instances", where ScaleIn is suspended."""
    suspended = alicloud.inputs(SUSPENSION)
    unchecked = {made["scalingGroupId"] for made in suspended if made["process"] == "HealthCheck"}
    made = alicloud.of_type(alicloud.words.group)
    on_demand = {group.id for group in made if group.inputs["multiAzPolicy"] != "COST_OPTIMIZED"}

    assert "ScaleIn" not in {each["process"] for each in suspended}
    assert unchecked == on_demand


def test_only_spot_groups_replace_instances_and_none_on_demand_for_a_cheaper_one(alicloud):
    """They act on the market's own notice, five minutes ahead, not on a recommendation."""
    for group in groups(alicloud):
        spot = group["multiAzPolicy"] == "COST_OPTIMIZED"
        assert group.get("spotInstanceRemedy", False) is spot
        assert group.get("capacityOptionsSpotAutoReplaceOnDemand", False) is False
        assert ("capacityOptionsSpotAutoReplaceOnDemand" in group) is spot


def test_alarms_act_by_rules_that_change_nothing(alicloud):
    """The mover and the sweep read them. They are in percent, as not every release accepts zero instances."""
    rules, alarms = alicloud.of_type(RULE), alicloud.inputs(ALARM)
    low = [alarm for alarm in alarms if alarm["comparisonOperator"].startswith("<")]

    changes = {(rule.inputs["adjustmentType"], rule.inputs["adjustmentValue"]) for rule in rules}
    assert changes <= {("PercentChangeInCapacity", 0)}
    assert bool(rules) is bool(alarms)
    actions = {action for alarm in alarms for action in alarm["alarmActions"]}
    assert actions <= {rule.outputs["ari"] for rule in rules}
    assert len(low) == len(rules)


def test_no_instance_is_born_with_a_time_to_die(alicloud):
    templates = alicloud.inputs("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate")

    assert [template for template in templates if "autoReleaseTime" in template] == []
