"""What the Auto Scaling creators leave in moto, and the instances that groups start, read with boto3."""

import pytest

from tests.stacks.rehearsal.examples import REGION, as_map

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:autoscaling/group:Group"


@pytest.fixture
def template(create):
    return create(
        TEMPLATE,
        imageId="ami-12c6146b",
        instanceType="g5.xlarge",
        tagSpecifications=[{"resourceType": "instance", "tags": {"from": "template"}}],
    )[0]


def test_a_group_starts_the_instances_it_desires_with_the_tags_of_group_and_template(
    clients, create, template, subnet_id
):
    name, _ = create(
        GROUP,
        minSize=0,
        maxSize=3,
        desiredCapacity=2,
        vpcZoneIdentifiers=[subnet_id],
        launchTemplate={"id": template, "version": "$Latest"},
        tags=[{"key": "gpu-fleet:pool", "value": "dev", "propagateAtLaunch": True}],
    )

    of_group = [{"Name": "tag:aws:autoscaling:groupName", "Values": [name]}]
    reservations = clients("ec2").describe_instances(Filters=of_group)["Reservations"]
    instances = [instance for reservation in reservations for instance in reservation["Instances"]]
    assert [instance["InstanceType"] for instance in instances] == ["g5.xlarge", "g5.xlarge"]
    assert {instance["SubnetId"] for instance in instances} == {subnet_id}
    tags = as_map(instances[0]["Tags"])
    assert (tags["gpu-fleet:pool"], tags["from"]) == ("dev", "template")


def test_a_group_mixes_types_and_markets(clients, create, template, subnet_id):
    name, _ = create(
        GROUP,
        minSize=0,
        maxSize=3,
        vpcZoneIdentifiers=[subnet_id],
        capacityRebalance=True,
        mixedInstancesPolicy={
            "launchTemplate": {
                "launchTemplateSpecification": {"launchTemplateId": template, "version": "1"},
                "overrides": [{"instanceType": "g5.xlarge"}, {"instanceType": "g6.xlarge"}],
            },
            "instancesDistribution": {
                "onDemandPercentageAboveBaseCapacity": 0,
                "spotAllocationStrategy": "price-capacity-optimized",
            },
        },
    )

    group = clients("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    policy = group["AutoScalingGroups"][0]["MixedInstancesPolicy"]
    types = [override["InstanceType"] for override in policy["LaunchTemplate"]["Overrides"]]
    assert types == ["g5.xlarge", "g6.xlarge"]
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert group["AutoScalingGroups"][0]["CapacityRebalance"] is True


def test_a_group_protects_its_instances_and_suspends_processes(clients, create, template, subnet_id):
    name, outputs = create(
        GROUP,
        minSize=1,
        maxSize=1,
        vpcZoneIdentifiers=[subnet_id],
        launchTemplate={"id": template, "version": "1"},
        protectFromScaleIn=True,
        suspendedProcesses=["AZRebalance"],
        enabledMetrics=["GroupDesiredCapacity"],
    )

    group = clients("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    seen = group["AutoScalingGroups"][0]
    assert [instance["ProtectedFromScaleIn"] for instance in seen["Instances"]] == [True]
    assert [process["ProcessName"] for process in seen["SuspendedProcesses"]] == ["AZRebalance"]
    assert [metric["Metric"] for metric in seen["EnabledMetrics"]] == ["GroupDesiredCapacity"]
    assert (outputs["arn"], outputs["availabilityZones"]) == (seen["AutoScalingGroupARN"], [f"{REGION}a"])


@pytest.fixture
def group(create, template, subnet_id):
    return create(
        GROUP,
        minSize=0,
        maxSize=3,
        vpcZoneIdentifiers=[subnet_id],
        launchTemplate={"id": template, "version": "1"},
    )[0]


def test_a_scaling_policy_reports_its_arn(clients, create, group):
    name, outputs = create(
        "aws:autoscaling/policy:Policy",
        autoscalingGroupName=group,
        policyType="SimpleScaling",
        adjustmentType="ChangeInCapacity",
        scalingAdjustment=1,
        cooldown=300,
    )

    seen = clients("autoscaling").describe_policies(AutoScalingGroupName=group)["ScalingPolicies"][0]
    assert (seen["PolicyName"], seen["PolicyARN"]) == (name, outputs["arn"])
    assert (seen["ScalingAdjustment"], seen["Cooldown"]) == (1, 300)


def test_a_lifecycle_hook_holds_an_ending_instance(clients, create, group):
    create(
        "aws:autoscaling/lifecycleHook:LifecycleHook",
        name="drain",
        autoscalingGroupName=group,
        lifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        heartbeatTimeout=900,
        defaultResult="CONTINUE",
    )

    seen = clients("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"][0]
    assert (seen["LifecycleHookName"], seen["HeartbeatTimeout"]) == ("drain", 900)
    assert seen["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    assert seen["DefaultResult"] == "CONTINUE"
