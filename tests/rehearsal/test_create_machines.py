"""What the launch-template and Auto Scaling creators leave in moto, read with boto3."""

import base64

import pytest

from tests.rehearsal.conftest import REGION
from tests.rehearsal.test_create_network import TAGS, as_map

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:autoscaling/group:Group"


@pytest.fixture
def data(clients, create):
    """``data(**inputs)`` makes a launch template and returns its data as EC2 tells it."""

    def told(**inputs):
        made, _ = create(TEMPLATE, imageId="ami-12c6146b", **inputs)
        versions = clients("ec2").describe_launch_template_versions(LaunchTemplateId=made)
        return versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]

    return told


@pytest.fixture
def template(create):
    return create(
        TEMPLATE,
        imageId="ami-12c6146b",
        instanceType="g5.xlarge",
        tagSpecifications=[{"resourceType": "instance", "tags": {"from": "template"}}],
    )[0]


def test_a_template_tells_its_versions_and_carries_its_tags(clients, create):
    made, outputs = create(TEMPLATE, imageId="ami-12c6146b", description="first", tags=TAGS)

    seen = clients("ec2").describe_launch_templates(LaunchTemplateIds=[made])["LaunchTemplates"][0]
    assert (outputs["latestVersion"], outputs["defaultVersion"], seen["LatestVersionNumber"]) == (1, 1, 1)
    assert seen["LaunchTemplateName"] == outputs["name"]


def test_a_template_encrypts_its_volume_with_the_key(data):
    volume = {
        "volumeType": "gp3",
        "volumeSize": 200,
        "iops": 3000,
        "throughput": 250,
        "encrypted": "true",
        "kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine",
        "deleteOnTermination": "true",
    }

    seen = data(blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": volume}])["BlockDeviceMappings"][0]

    assert seen["DeviceName"] == "/dev/sda1"
    assert seen["Ebs"] == {
        "VolumeType": "gp3",
        "VolumeSize": 200,
        "Iops": 3000,
        "Throughput": 250,
        "Encrypted": True,
        "KmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine",
        "DeleteOnTermination": True,
    }


def test_a_template_has_an_interface_for_each_network_card(data, group_id):
    cards = [(0, 0, "efa"), (1, 1, "efa-only"), (2, 1, "efa-only"), (3, 1, "efa-only")]

    seen = data(
        networkInterfaces=[
            {
                "networkCardIndex": card,
                "deviceIndex": device,
                "interfaceType": kind,
                "deleteOnTermination": "true",
                "securityGroups": [group_id],
            }
            for card, device, kind in cards
        ]
    )["NetworkInterfaces"]

    assert [(one["NetworkCardIndex"], one["DeviceIndex"], one["InterfaceType"]) for one in seen] == cards
    assert {tuple(one["Groups"]) for one in seen} == {(group_id,)}


def test_a_template_asks_for_a_metadata_token(data):
    options = {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
        "instanceMetadataTags": "enabled",
    }

    assert data(metadataOptions=options)["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
        "InstanceMetadataTags": "enabled",
    }


def test_a_template_tags_what_it_launches(data):
    specification = [{"resourceType": kind, "tags": TAGS} for kind in ("instance", "volume")]

    seen = data(tagSpecifications=specification)["TagSpecifications"]

    assert {one["ResourceType"]: as_map(one["Tags"]) for one in seen} == {"instance": TAGS, "volume": TAGS}


def test_a_template_starts_inside_its_capacity_block(data):
    target = {"capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}}

    seen = data(
        instanceMarketOptions={"marketType": "capacity-block"}, capacityReservationSpecification=target
    )

    assert seen["InstanceMarketOptions"]["MarketType"] == "capacity-block"
    reservation = seen["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert reservation["CapacityReservationId"] == "cr-0123456789abcdef0"


def test_a_template_hands_over_user_data_and_profile(data, create, role):
    _, profile = create("aws:iam/instanceProfile:InstanceProfile", role=role["name"])
    text = base64.b64encode(b"#cloud-config").decode()

    seen = data(userData=text, iamInstanceProfile={"arn": profile["arn"]}, monitoring={"enabled": True})

    assert base64.b64decode(seen["UserData"]) == b"#cloud-config"
    assert seen["IamInstanceProfile"] == {"Arn": profile["arn"]}
    assert seen["Monitoring"] == {"Enabled": True}


def test_a_group_starts_the_machines_it_desires(clients, create, template, subnet_id):
    name, _ = create(
        GROUP,
        minSize=0,
        maxSize=3,
        desiredCapacity=2,
        vpcZoneIdentifiers=[subnet_id],
        launchTemplate={"id": template, "version": "1"},
    )

    of_group = [{"Name": "tag:aws:autoscaling:groupName", "Values": [name]}]
    reservations = clients("ec2").describe_instances(Filters=of_group)["Reservations"]
    machines = [machine for reservation in reservations for machine in reservation["Instances"]]
    assert [machine["InstanceType"] for machine in machines] == ["g5.xlarge", "g5.xlarge"]
    assert {machine["SubnetId"] for machine in machines} == {subnet_id}


def test_machines_carry_the_tags_of_group_and_template(clients, create, template, subnet_id):
    create(
        GROUP,
        minSize=1,
        maxSize=1,
        vpcZoneIdentifiers=[subnet_id],
        launchTemplate={"id": template, "version": "$Latest"},
        tags=[{"key": "gpu-fleet:pool", "value": "dev", "propagateAtLaunch": True}],
    )

    machine = clients("ec2").describe_instances()["Reservations"][0]["Instances"][0]
    tags = as_map(machine["Tags"])
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
    types = [one["InstanceType"] for one in policy["LaunchTemplate"]["Overrides"]]
    assert types == ["g5.xlarge", "g6.xlarge"]
    assert policy["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert group["AutoScalingGroups"][0]["CapacityRebalance"] is True


def test_a_group_protects_its_machines_and_suspends_processes(clients, create, template, subnet_id):
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
    assert [machine["ProtectedFromScaleIn"] for machine in seen["Instances"]] == [True]
    assert [one["ProcessName"] for one in seen["SuspendedProcesses"]] == ["AZRebalance"]
    assert [one["Metric"] for one in seen["EnabledMetrics"]] == ["GroupDesiredCapacity"]
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


def test_a_scaling_policy_tells_its_arn(clients, create, group):
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


def test_a_lifecycle_hook_holds_an_ending_machine(clients, create, group):
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
    assert (seen["LifecycleTransition"], seen["DefaultResult"]) == (
        "autoscaling:EC2_INSTANCE_TERMINATING",
        "CONTINUE",
    )
