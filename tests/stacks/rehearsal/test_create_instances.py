"""What the launch-template creator leaves in moto, read with boto3."""

import base64

import pytest

from tests.stacks.rehearsal.examples import TAGS, as_map

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"


@pytest.fixture
def data(clients, create):
    """``data(**inputs)`` makes a launch template and returns its data as EC2 describes it."""

    def launched_with(**inputs):
        made, _ = create(TEMPLATE, imageId="ami-12c6146b", **inputs)
        versions = clients("ec2").describe_launch_template_versions(LaunchTemplateId=made)
        return versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]

    return launched_with


def test_a_template_reports_its_versions_and_carries_its_tags(clients, create):
    made, outputs = create(TEMPLATE, imageId="ami-12c6146b", description="first", tags=TAGS)

    seen = clients("ec2").describe_launch_templates(LaunchTemplateIds=[made])["LaunchTemplates"][0]
    assert (outputs["latestVersion"], outputs["defaultVersion"], seen["LatestVersionNumber"]) == (1, 1, 1)
    assert seen["LaunchTemplateName"] == outputs["name"]


def capital(value):
    """The same with keys as EC2 writes them, and switches that Pulumi's provider takes as text."""
    if isinstance(value, dict):
        return {key[0].upper() + key[1:]: capital(inner) for key, inner in value.items()}
    return value == "true" if value in ("true", "false") else value


def test_a_template_encrypts_its_volume_and_asks_for_a_metadata_token(data):
    volume = {
        "volumeType": "gp3",
        "volumeSize": 200,
        "iops": 3000,
        "throughput": 250,
        "encrypted": "true",
        "kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/mine",
        "deleteOnTermination": "true",
    }
    metadata = {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
        "instanceMetadataTags": "enabled",
    }

    seen = data(blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": volume}], metadataOptions=metadata)

    assert seen["BlockDeviceMappings"][0] == {"DeviceName": "/dev/sda1", "Ebs": capital(volume)}
    assert seen["MetadataOptions"] == capital(metadata)


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

    assert [
        (entry["NetworkCardIndex"], entry["DeviceIndex"], entry["InterfaceType"]) for entry in seen
    ] == cards
    assert {tuple(entry["Groups"]) for entry in seen} == {(group_id,)}


def test_a_template_tags_what_it_launches(data):
    specification = [{"resourceType": kind, "tags": TAGS} for kind in ("instance", "volume")]

    seen = data(tagSpecifications=specification)["TagSpecifications"]

    tags = {entry["ResourceType"]: as_map(entry["Tags"]) for entry in seen}
    assert tags == {"instance": TAGS, "volume": TAGS}


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
