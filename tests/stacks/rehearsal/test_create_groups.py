"""What the Auto Scaling creators leave in moto, and the instances that groups start, read with boto3."""

import pytest

from tests.stacks.rehearsal.examples import REGION, as_map


@pytest.fixture
def template(create):
    tags = [{"resourceType": "instance", "tags": {"from": "template"}}]
    made, _ = create(
        "ec2/launchTemplate", imageId="ami-12c6146b", instanceType="g5.xlarge", tagSpecifications=tags
    )
    return {"id": made, "version": "1"}


@pytest.fixture
def group(create, seen, subnet_id):
    """``group(**inputs)`` makes a group; returns its name, its outputs, and what boto3 then sees."""

    def made(**inputs):
        size = {"minSize": 0, "maxSize": 3, "vpcZoneIdentifiers": [subnet_id]}
        name, outputs = create("autoscaling/group", **size | inputs)
        found = seen("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name])
        return name, outputs, found

    return made


def test_a_group_starts_the_instances_it_desires_with_the_tags_of_group_and_template(
    clients, group, template, subnet_id
):
    newest = template | {"version": "$Latest"}
    tags = [{"key": "gpu-fleet:pool", "value": "dev", "propagateAtLaunch": True}]

    name, _, _ = group(desiredCapacity=2, launchTemplate=newest, tags=tags)

    of_group = [{"Name": "tag:aws:autoscaling:groupName", "Values": [name]}]
    reservations = clients("ec2").describe_instances(Filters=of_group)["Reservations"]
    instances = [instance for reservation in reservations for instance in reservation["Instances"]]
    assert [instance["InstanceType"] for instance in instances] == ["g5.xlarge", "g5.xlarge"]
    assert {instance["SubnetId"] for instance in instances} == {subnet_id}
    tags = as_map(instances[0]["Tags"])
    assert (tags["gpu-fleet:pool"], tags["from"]) == ("dev", "template")


def test_a_group_mixes_types_and_markets(group, template):
    specification = {"launchTemplateId": template["id"], "version": "1"}
    types = [{"instanceType": "g5.xlarge"}, {"instanceType": "g6.xlarge"}]
    market = {"onDemandPercentageAboveBaseCapacity": 0, "spotAllocationStrategy": "price-capacity-optimized"}
    mixed = {
        "launchTemplate": {"launchTemplateSpecification": specification, "overrides": types},
        "instancesDistribution": market,
    }

    _, _, found = group(capacityRebalance=True, mixedInstancesPolicy=mixed)

    policy = found["MixedInstancesPolicy"]
    overrides = policy["LaunchTemplate"]["Overrides"]
    assert [override["InstanceType"] for override in overrides] == ["g5.xlarge", "g6.xlarge"]
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert found["CapacityRebalance"] is True


def test_a_group_protects_its_instances_and_suspends_processes(group, template):
    _, outputs, found = group(
        minSize=1,
        maxSize=1,
        launchTemplate=template,
        protectFromScaleIn=True,
        suspendedProcesses=["AZRebalance"],
        enabledMetrics=["GroupDesiredCapacity"],
    )

    assert [instance["ProtectedFromScaleIn"] for instance in found["Instances"]] == [True]
    assert [process["ProcessName"] for process in found["SuspendedProcesses"]] == ["AZRebalance"]
    assert [metric["Metric"] for metric in found["EnabledMetrics"]] == ["GroupDesiredCapacity"]
    assert (outputs["arn"], outputs["availabilityZones"]) == (found["AutoScalingGroupARN"], [f"{REGION}a"])


def test_a_scaling_policy_reports_its_arn(create, seen, group, template):
    name, _, _ = group(launchTemplate=template)
    step = {"adjustmentType": "ChangeInCapacity", "scalingAdjustment": 1, "cooldown": 300}

    made, outputs = create(
        "autoscaling/policy", autoscalingGroupName=name, policyType="SimpleScaling", **step
    )

    policy = seen("autoscaling", "describe_policies", AutoScalingGroupName=name)
    assert (policy["PolicyName"], policy["PolicyARN"]) == (made, outputs["arn"])
    assert (policy["ScalingAdjustment"], policy["Cooldown"]) == (1, 300)


def test_a_lifecycle_hook_holds_an_ending_instance(create, seen, group, template):
    name, _, _ = group(launchTemplate=template)
    ending = "autoscaling:EC2_INSTANCE_TERMINATING"
    hook = {"lifecycleTransition": ending, "heartbeatTimeout": 900, "defaultResult": "CONTINUE"}

    create("autoscaling/lifecycleHook", name="drain", autoscalingGroupName=name, **hook)

    found = seen("autoscaling", "describe_lifecycle_hooks", AutoScalingGroupName=name)
    assert (found["LifecycleHookName"], found["HeartbeatTimeout"]) == ("drain", 900)
    assert (found["LifecycleTransition"], found["DefaultResult"]) == (ending, "CONTINUE")
