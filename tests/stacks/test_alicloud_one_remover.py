"""Nothing that an Alibaba Cloud stack declares ends a healthy on-demand instance; only the sweep does."""

import pytest

from tests.stacks import alicloud_programs as programs
from tests.stacks.alicloud_programs import STACKS, inputs, shipped, statements

# What the mover may ask beside: it raises groups and tags instances.
MOVES = {
    "ecs:DescribeInstances",
    "ecs:DescribeSpotPriceHistory",
    "ecs:TagResources",
    "ecs:UntagResources",
    "ess:DescribeAlarms",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingGroups",
    "ess:ModifyScalingGroup",
    "ess:ScaleWithAdjustment",
}
BUILDS = {
    "ecs:DescribeImagePipelineExecutions",
    "ecs:DescribeImagePipelines",
    "ecs:StartImagePipelineExecution",
}
GROUP = "alicloud:ess/scalingGroup:ScalingGroup"
RULE = "alicloud:ess/scalingRule:ScalingRule"
ALARM = "alicloud:ess/alarm:Alarm"
SUSPENSION = "alicloud:ess/suspendProcess:SuspendProcess"
# What roles other than the sweep's may ask of the services that run instances. The last two change attributes
# of the own pool's instances that end none: see "One remover" in stacks/alicloud/README.md.
HARMLESS = {
    "ecs:DescribeInstances",
    "ecs:DescribeTags",
    "ess:CompleteLifecycleAction",
    "ess:DescribeLifecycleActions",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingInstances",
    "ess:RecordLifecycleActionHeartbeat",
    "ecs:ModifyInstanceMetadataOptions",
    "ess:SetInstancesProtection",
}


@pytest.fixture(scope="module", params=[*STACKS, "everything"])
def found(request):
    return programs.everything() if request.param == "everything" else shipped(request.param)


def test_no_group_refuses_the_sweep_itself_by_a_suspended_scale_in(found):
    """Auto Scaling refuses DetachInstances, "manually removing instances", where ScaleIn is suspended."""
    assert "ScaleIn" not in {resource["process"] for resource in inputs(found, SUSPENSION)}


def test_no_group_but_of_spot_terminates_what_a_user_stopped(found):
    suspended = {
        resource["scalingGroupId"]
        for resource in inputs(found, SUSPENSION)
        if resource["process"] == "HealthCheck"
    }
    on_demand = {
        resource.id
        for resource in found.of_type(GROUP)
        if resource.inputs["multiAzPolicy"] != "COST_OPTIMIZED"
    }

    assert suspended == on_demand


def test_groups_do_not_end_instances_for_their_age(found):
    assert [resource for resource in inputs(found, GROUP) if "maxInstanceLifetime" in resource] == []


def test_groups_do_not_rebalance_zones_by_ending_instances(found):
    for group in inputs(found, GROUP):
        assert group["azBalance"] is False
        assert group["autoRebalance"] is False


def test_no_group_terminates_an_on_demand_instance_for_a_cheaper_one(found):
    spot = [resource for resource in inputs(found, GROUP) if resource["multiAzPolicy"] == "COST_OPTIMIZED"]

    assert [group["capacityOptionsSpotAutoReplaceOnDemand"] for group in spot] == [False] * len(spot)


def test_only_spot_groups_replace_instances_ahead_of_an_interruption(found):
    """By the market's own notice, five minutes before it takes the instance, not by a recommendation."""
    for group in inputs(found, GROUP):
        assert group.get("spotInstanceRemedy", False) is (group["multiAzPolicy"] == "COST_OPTIMIZED")


def test_groups_judge_instances_by_their_own_health_alone(found):
    assert {group["healthCheckType"] for group in inputs(found, GROUP)} == {"ECS"}


def test_no_role_but_the_sweeps_may_end_instances(found):
    """By what the roles may do at all, so that an action of tomorrow is refused too."""
    allowed = {
        (policy.name, action)
        for policy in found.of_type("alicloud:ram/policy:Policy")
        for statement in statements(policy.inputs["policyDocument"])
        if statement["Effect"] == "Allow"
        for action in statement["Action"]
        if action.startswith(("ecs:", "ess:", "*"))
    }

    others = {action for name, action in allowed if not name.endswith(("-reaper", "-capacity", "-builds"))}
    assert others <= HARMLESS
    # what the mover may lower is what never started: its groups launch under protection, or count members
    assert {action for name, action in allowed if name.endswith("-capacity")} <= MOVES
    assert {action for name, action in allowed if name.endswith("-builds")} <= BUILDS


def test_the_only_hooks_hold_instances_that_are_being_terminated(found):
    """CompleteLifecycleAction with ABANDON would release one that a hook holds at its launch."""
    hooks = inputs(found, "alicloud:ess/lifecycleHook:LifecycleHook")

    assert hooks
    assert {hook["lifecycleTransition"] for hook in hooks} == {"SCALE_IN"}


def test_a_later_update_leaves_the_size_to_the_sweep(found):
    assert all("desiredCapacity" in resource.ignored_changes for resource in found.of_type(GROUP))


def test_no_rule_changes_a_groups_size(found):
    for rule in inputs(found, RULE):
        assert rule["adjustmentType"] != "TotalCapacity"
        assert rule["adjustmentValue"] == 0


def test_a_rule_that_changes_nothing_does_so_in_percent_since_not_every_release_takes_zero_instances(
    found,
):
    asking = [rule for rule in inputs(found, RULE) if rule["adjustmentValue"] == 0]

    assert {rule["adjustmentType"] for rule in asking} <= {"PercentChangeInCapacity"}
    assert bool(asking) is bool(inputs(found, ALARM))


def test_an_alarm_for_little_load_asks_and_does_not_act(found):
    asking = {rule.outputs["ari"] for rule in found.of_type(RULE) if rule.inputs["adjustmentValue"] == 0}
    low = [alarm for alarm in inputs(found, ALARM) if alarm["comparisonOperator"].startswith("<")]

    assert len(low) == len(asking)


def test_no_alarm_raises_a_group(found):
    """Those on load act by a rule that changes nothing; the mover and the sweep read them."""
    asking = {rule.outputs["ari"] for rule in found.of_type(RULE) if rule.inputs["adjustmentValue"] == 0}

    assert {action for alarm in inputs(found, ALARM) for action in alarm["alarmActions"]} <= asking


def test_no_role_but_the_movers_raises_a_group(found):
    raising = {
        policy.name.rpartition("-")[2]
        for policy in found.of_type("alicloud:ram/policy:Policy")
        for statement in statements(policy.inputs["policyDocument"])
        if statement["Effect"] == "Allow" and "ess:ScaleWithAdjustment" in statement["Action"]
    }

    assert raising == {"capacity"}


def test_no_schedule_changes_a_groups_size(found):
    assert found.of_type("alicloud:ess/scheduledTask:ScheduledTask") == ()


def test_no_instance_is_born_with_a_time_to_die(found):
    for template in inputs(found, "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"):
        assert "autoReleaseTime" not in template


def test_every_group_waits_for_a_checkpoint_before_an_instance_is_terminated(found):
    hooks = inputs(found, "alicloud:ess/lifecycleHook:LifecycleHook")

    assert {hook["scalingGroupId"] for hook in hooks} == {resource.id for resource in found.of_type(GROUP)}
    for hook in hooks:
        assert (hook["lifecycleTransition"], hook["defaultResult"]) == ("SCALE_IN", "CONTINUE")
        assert hook["heartbeatTimeout"] == 900
        assert hook["name"] == "gpu-fleet-drain"
