"""The check of inputs against the provider SDK, on inputs that are wrong in one way each."""

import pytest

from stacks.rehearsal.registrations import RegistrationOutcome
from tests.rehearsal.examples import registered
from tests.rehearsal.provider_schema import problems

SUBNET = "aws:ec2/subnet:Subnet"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"


def found(type_token, **inputs):
    registration = registered(type_token, "it")
    registration.inputs.update(inputs)
    return problems(registration)


def test_valid_inputs_have_no_problem():
    assert found(SUBNET, vpcId="vpc-1", cidrBlock="10.0.0.0/24", tags={"Name": "mine"}) == []


def test_a_missing_required_key_is_named():
    assert found(SUBNET, cidrBlock="10.0.0.0/24") == [f"{SUBNET} 'it': vpcId is required, and missing"]


def test_an_unknown_key_is_named_with_the_nearest():
    (problem,) = found(SUBNET, vpcId="vpc-1", cidrBlok="10.0.0.0/24")

    assert problem == f"{SUBNET} 'it': cidrBlok is unknown; did you mean cidrBlock?"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [("cidrBlock", 10, "str"), ("mapPublicIpOnLaunch", "no", "bool"), ("mapPublicIpOnLaunch", 1, "bool")],
)
def test_a_value_of_another_type_is_named(key, value, wanted):
    (problem,) = found(SUBNET, vpcId="vpc-1", **{key: value})

    assert problem == f"{SUBNET} 'it': {key} = {value!r}: must be {wanted}"


def test_structures_are_looked_into():
    (problem,) = found(TEMPLATE, metadataOptions={"httpToken": "required"})

    assert "metadataOptions.httpToken is unknown; did you mean httpTokens?" in problem


def test_lists_of_structures_are_looked_into():
    (problem,) = found(TEMPLATE, blockDeviceMappings=[{"deviceName": "a"}, {"ebs": {"volumeSize": "200"}}])

    assert "blockDeviceMappings[1].ebs.volumeSize = '200': must be int" in problem


def test_a_text_outside_the_documented_list_is_named():
    (problem,) = found(TEMPLATE, metadataOptions={"httpTokens": "always"})

    assert "metadataOptions.httpTokens = 'always': documented are optional, required" in problem


def test_an_enumeration_may_be_wider_than_its_names():
    sound = {"role": "arn:aws:iam::1:role/r", "runtime": "python3.12"}

    assert found("aws:lambda/function:Function", **sound) == []


def test_a_structure_whose_name_the_sdk_gives_twice_is_the_resources_own():
    versions = {"bucket": "mine", "versioningConfiguration": {"status": "Enabled"}}

    assert found("aws:s3/bucketVersioning:BucketVersioning", **versions) == []


def test_alibaba_cloud_is_checked_the_same_way():
    token = "alicloud:ecs/securityGroupRule:SecurityGroupRule"

    (problem,) = found(token, securityGroupId="sg-1", type="ingress", ipProtocol="any")

    assert "ipProtocol = 'any': documented are all, gre, icmp, icmpv6, tcp, udp" in problem


def test_a_type_the_sdk_lacks_is_named():
    assert found("aws:ec2/nothing:Nothing") == ["aws:ec2/nothing:Nothing: the SDK has no such resource type"]


def test_the_settings_of_a_provider_are_checked():
    provider = registered("pulumi:providers:aws", "it", outcome=RegistrationOutcome.GROUPED)
    provider.inputs.update(
        {"region": "us-east-1", "skipMetadataApiCheck": "true", "endpoints": '[{"lamda": "http://here"}]'}
    )

    (problem,) = problems(provider)

    assert problem == "pulumi:providers:aws 'it': endpoints[0].lamda is unknown; did you mean lambda?"


def test_components_are_not_checked():
    assert problems(registered("gpu-fleet:aws:Network", "it", outcome=RegistrationOutcome.GROUPED)) == []
