"""What the launch-template creator leaves in moto, read with boto3."""

import base64

import pytest

from tests.stacks.rehearsal.examples import TAGS, as_map


@pytest.fixture
def data(create, seen):
    """``data(**inputs)`` makes a launch template and returns its data as EC2 describes it."""

    def launched_with(**inputs):
        made, _ = create("ec2/launchTemplate", imageId="ami-12c6146b", **inputs)
        return seen("ec2", "describe_launch_template_versions", LaunchTemplateId=made)["LaunchTemplateData"]

    return launched_with


def test_a_template_reports_its_versions_and_carries_its_tags(create, seen):
    made, outputs = create("ec2/launchTemplate", imageId="ami-12c6146b", description="first", tags=TAGS)

    found = seen("ec2", "describe_launch_templates", LaunchTemplateIds=[made])
    assert (outputs["latestVersion"], outputs["defaultVersion"], found["LatestVersionNumber"]) == (1, 1, 1)
    assert found["LaunchTemplateName"] == outputs["name"]


def capital(value):
    """The same with keys as EC2 writes them, and switches that Pulumi's provider takes as text."""
    if isinstance(value, dict):
        return {key[0].upper() + key[1:]: capital(inner) for key, inner in value.items()}
    return value == "true" if value in ("true", "false") else value


def test_a_template_encrypts_its_volume_and_asks_for_a_metadata_token(data):
    volume = {"volumeType": "gp3", "volumeSize": 200, "iops": 3000, "throughput": 250, "encrypted": "true"}
    volume |= {"kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine", "deleteOnTermination": "true"}
    metadata = {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1}
    metadata |= {"instanceMetadataTags": "enabled"}

    found = data(blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": volume}], metadataOptions=metadata)

    assert found["BlockDeviceMappings"][0] == {"DeviceName": "/dev/sda1", "Ebs": capital(volume)}
    assert found["MetadataOptions"] == capital(metadata)


def test_a_template_has_an_interface_for_each_network_card(data, group_id):
    names = ("networkCardIndex", "deviceIndex", "interfaceType")
    cards = [
        dict(zip(names, row, strict=True))
        for row in ((0, 0, "efa"), (1, 1, "efa-only"), (2, 1, "efa-only"), (3, 1, "efa-only"))
    ]
    same = {"deleteOnTermination": "true", "securityGroups": [group_id]}

    found = data(networkInterfaces=[card | same for card in cards])["NetworkInterfaces"]

    assert [{name: entry[name[0].upper() + name[1:]] for name in names} for entry in found] == cards
    assert {tuple(entry["Groups"]) for entry in found} == {(group_id,)}


def test_a_template_tags_what_it_launches(data):
    specification = [{"resourceType": kind, "tags": TAGS} for kind in ("instance", "volume")]

    found = data(tagSpecifications=specification)["TagSpecifications"]

    tags = {entry["ResourceType"]: as_map(entry["Tags"]) for entry in found}
    assert tags == {"instance": TAGS, "volume": TAGS}


def test_a_template_starts_inside_its_capacity_block(data):
    target = {"capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}}
    market = {"marketType": "capacity-block"}

    found = data(instanceMarketOptions=market, capacityReservationSpecification=target)

    assert found["InstanceMarketOptions"]["MarketType"] == "capacity-block"
    reservation = found["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert reservation["CapacityReservationId"] == "cr-0123456789abcdef0"


def test_a_template_hands_over_user_data_and_profile(data, create, role):
    _, profile = create("iam/instanceProfile", role=role["name"])
    text = base64.b64encode(b"#cloud-config").decode()

    found = data(userData=text, iamInstanceProfile={"arn": profile["arn"]}, monitoring={"enabled": True})

    assert base64.b64decode(found["UserData"]) == b"#cloud-config"
    assert found["IamInstanceProfile"] == {"Arn": profile["arn"]}
    assert found["Monitoring"] == {"Enabled": True}
