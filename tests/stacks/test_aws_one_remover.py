"""Nothing that a stack declares ends a healthy on-demand instance; only the sweep does."""

import json

import pytest

from tests.stacks.examples import pool, stack

# What roles other than the sweep's may ask of the services that run instances: look, tag, and say in a drain
# under way that it goes on or is over. Nothing here ends, stops, detaches, judges, resizes or changes one.
HARMLESS = {
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "ec2:CreateTags",
    "ec2:DeleteTags",
    "ec2:DescribeInstances",
    "ec2:DescribeTags",
    # of Image Builder: an old image and its snapshot, of which no instance is
    *("ec2:DeleteSnapshot", "ec2:DeregisterImage", "ec2:DescribeImageAttribute", "ec2:DescribeImages"),
}
# What the mover may ask beside: it raises groups and tags instances.
MOVES = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "autoscaling:SetDesiredCapacity",
    "ec2:CreateTags",
    "ec2:DeleteTags",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
}
GROUP = "aws:autoscaling/group:Group"


def groups(shipped) -> list[dict]:
    names = [name for names in shipped.rehearsed.outputs["group_names"].values() for name in names]
    found = shipped.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    return found["AutoScalingGroups"]


def test_groups_never_choose_a_running_instance_when_they_shrink(shipped):
    assert groups(shipped)
    assert all(group["NewInstancesProtectedFromScaleIn"] for group in groups(shipped))


def test_groups_do_not_rebalance_zones_by_ending_instances(shipped):
    suspended = [{part["ProcessName"] for part in group["SuspendedProcesses"]} for group in groups(shipped)]

    assert all("AZRebalance" in processes for processes in suspended)


def test_groups_do_not_end_instances_for_their_age(shipped):
    assert all("maxInstanceLifetime" not in group.inputs for group in shipped.of_type(GROUP))


def test_a_later_update_leaves_the_size_and_the_suspended_processes_to_the_sweep(shipped):
    ignored = [set(group.ignored_changes) for group in shipped.of_type(GROUP)]

    assert all({"desiredCapacity", "suspendedProcesses"} <= changes for changes in ignored)


def rebalancing(found) -> list[bool]:
    return [group.inputs["capacityRebalance"] for group in found.of_type(GROUP)]


def test_only_spot_groups_replace_instances_ahead_of_an_interruption(shipped):
    """On a mere recommendation, and so none where people or a training job work on them."""
    assert rebalancing(shipped) == [False] * len(groups(shipped))


SERVING = {"market": "spot", "purpose": "serving"}


@pytest.mark.parametrize(
    ("changes", "rebalances"),
    [
        (SERVING, True),
        (SERVING | {"purpose": "interactive"}, False),
        (SERVING | {"purpose": "training"}, False),
        (SERVING | {"market": "on-demand"}, False),
        (SERVING | {"size": {"min": 2, "desired": 2, "max": 2}}, False),
        (SERVING | {"types": ["p4d.24xlarge"], "efa": True}, False),
    ],
)
def test_only_a_service_of_changing_size_has_spot_instances_replaced_on_a_recommendation(
    register, changes, rebalances
):
    found = register(stack(pools=[pool(**changes)]))

    assert set(rebalancing(found)) == {rebalances}


def test_groups_judge_instances_by_their_own_health_alone(shipped):
    assert {group["HealthCheckType"] for group in groups(shipped)} == {"EC2"}


def test_no_rule_changes_a_groups_size(shipped):
    assert shipped.of_type("aws:autoscaling/policy:Policy") == ()


def test_no_role_but_the_movers_raises_a_group(shipped):
    """SetDesiredCapacity alone raises: UpdateAutoScalingGroup is the sweep's for a limit, in a freeze."""
    raising = {
        resource.name.rpartition("-")[2]
        for resource in shipped.of_type("aws:iam/rolePolicy:RolePolicy")
        for part in json.loads(resource.inputs["policy"])["Statement"]
        if part["Effect"] == "Allow" and "autoscaling:SetDesiredCapacity" in part["Action"]
    }

    assert raising == {"capacity"}


def test_no_schedule_changes_a_groups_size(shipped):
    assert shipped.of_type("aws:autoscaling/schedule:Schedule") == ()


def test_an_alarm_for_little_load_asks_and_does_not_act(shipped):
    low = [
        alarm
        for alarm in shipped.of_type("aws:cloudwatch/metricAlarm:MetricAlarm")
        if alarm.inputs["comparisonOperator"].startswith("LessThan")
        and alarm.inputs["namespace"] == "AWS/EC2"
    ]

    assert all(alarm.inputs.get("alarmActions", []) == [] for alarm in low)


def test_no_alarm_raises_a_group(shipped):
    """Those on load are read by the mover and the sweep; all others notify operators."""
    alarms = shipped.of_type("aws:cloudwatch/metricAlarm:MetricAlarm")
    actions = {action for alarm in alarms for action in alarm.inputs.get("alarmActions", [])}

    assert actions == {shipped.rehearsed.outputs["topic_arn"]}


def test_no_role_but_the_sweeps_may_end_instances(shipped):
    """By what the roles may do at all, so that an action of tomorrow is refused too."""
    allowed = {
        (resource.name, action)
        for resource in shipped.of_type("aws:iam/rolePolicy:RolePolicy")
        for part in json.loads(resource.inputs["policy"])["Statement"]
        if part["Effect"] == "Allow"
        for action in part["Action"]
        if action.startswith(("ec2:", "autoscaling:", "*"))
    }

    others = {action for name, action in allowed if not name.endswith(("-reaper", "-capacity"))}
    assert others <= HARMLESS
    # what the mover may lower is what never started: its groups launch under protection, or count members
    assert {action for name, action in allowed if name.endswith("-capacity")} <= MOVES


def test_the_only_hooks_hold_instances_that_are_being_terminated(shipped):
    """CompleteLifecycleAction with ABANDON would terminate one that a hook holds at its launch."""
    hooks = shipped.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")

    assert hooks
    assert {hook.inputs["lifecycleTransition"] for hook in hooks} == {"autoscaling:EC2_INSTANCE_TERMINATING"}
    assert all("initialLifecycleHooks" not in group.inputs for group in shipped.of_type(GROUP))


def test_every_group_waits_for_a_checkpoint_before_an_instance_is_terminated(shipped):
    autoscaling = shipped.client("autoscaling")

    for group in groups(shipped):
        (hook,) = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group["AutoScalingGroupName"])[
            "LifecycleHooks"
        ]
        assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert hook["HeartbeatTimeout"] >= 900


def test_every_instance_is_launched_under_protection(shipped):
    members = [member for group in groups(shipped) for member in group["Instances"]]

    assert all(member["ProtectedFromScaleIn"] for member in members)
