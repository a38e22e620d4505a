"""Nothing that a stack declares ends a healthy on-demand machine; only the sweep does."""

import json

TERMINATE = ("ec2:TerminateInstances", "ec2:StopInstances", "autoscaling:TerminateInstanceInAutoScalingGroup")
GROUP = "aws:autoscaling/group:Group"


def groups(shipped) -> list[dict]:
    names = [name for names in shipped.rehearsed.outputs["group_names"].values() for name in names]
    found = shipped.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=names)
    return found["AutoScalingGroups"]


def test_groups_never_choose_a_running_machine_when_they_shrink(shipped):
    assert groups(shipped)
    assert all(group["NewInstancesProtectedFromScaleIn"] for group in groups(shipped))


def test_groups_do_not_rebalance_zones_by_ending_machines(shipped):
    suspended = [{part["ProcessName"] for part in group["SuspendedProcesses"]} for group in groups(shipped)]

    assert all("AZRebalance" in processes for processes in suspended)


def test_groups_do_not_end_machines_for_their_age(shipped):
    assert all("maxInstanceLifetime" not in group.inputs for group in shipped.of_type(GROUP))


def test_a_later_update_leaves_the_size_and_the_suspended_processes_to_the_sweep(shipped):
    ignored = [set(group.ignored_changes) for group in shipped.of_type(GROUP)]

    assert all({"desiredCapacity", "suspendedProcesses"} <= changes for changes in ignored)


def test_only_spot_groups_replace_machines_ahead_of_an_interruption(shipped):
    spot = {pool.name for pool in shipped.settings.pools if pool.market == "spot"}
    names = shipped.rehearsed.outputs["group_names"]

    for pool, members in names.items():
        for group in shipped.of_type(GROUP):
            if group.outputs["name"] in members:
                assert group.inputs.get("capacityRebalance", False) is (pool in spot)


def test_groups_judge_machines_by_their_own_health_alone(shipped):
    assert {group["HealthCheckType"] for group in groups(shipped)} == {"EC2"}


def test_no_policy_takes_machines_away(shipped):
    policies = shipped.of_type("aws:autoscaling/policy:Policy")

    assert {policy.inputs["policyType"] for policy in policies} <= {"SimpleScaling"}
    assert all(policy.inputs["scalingAdjustment"] > 0 for policy in policies)


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


def test_no_role_but_the_sweeps_may_end_machines(shipped):
    allowed = {
        one.name
        for one in shipped.of_type("aws:iam/rolePolicy:RolePolicy")
        for part in json.loads(one.inputs["policy"])["Statement"]
        if part["Effect"] == "Allow" and set(TERMINATE) & set(part["Action"])
    }

    assert {name for name in allowed if "reaper" not in name} == set()


def test_every_group_waits_for_a_checkpoint_before_a_machine_goes(shipped):
    autoscaling = shipped.client("autoscaling")

    for group in groups(shipped):
        (hook,) = autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group["AutoScalingGroupName"])[
            "LifecycleHooks"
        ]
        assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert hook["HeartbeatTimeout"] >= 900


def test_every_machine_is_launched_under_protection(shipped):
    members = [member for group in groups(shipped) for member in group["Instances"]]

    assert all(member["ProtectedFromScaleIn"] for member in members)
