"""The check of inputs against the provider SDK, on inputs that are wrong in one way each."""

from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from tests.stacks.rehearsal.examples import registered
from tests.stacks.rehearsal.provider_schema import problems

SUBNET = "aws:ec2/subnet:Subnet"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
RULE = "alicloud:ecs/securityGroupRule:SecurityGroupRule"


def found(type_token, **inputs):
    registration = registered(type_token, "it")
    registration.inputs.update(inputs)
    return problems(registration)


def test_valid_inputs_have_no_problem():
    """An enumeration may be wider than its names, and a name given twice is the resource's own."""
    function = {"role": "arn:aws:iam::1:role/r", "runtime": "python3.12"}
    versions = {"bucket": "mine", "versioningConfiguration": {"status": "Enabled"}}

    assert found(SUBNET, vpcId="vpc-1", cidrBlock="10.0.0.0/24", tags={"Name": "mine"}) == []
    assert found("aws:lambda/function:Function", **function) == []
    assert found("aws:s3/bucketVersioning:BucketVersioning", **versions) == []


WRONG = (
    (SUBNET, {"cidrBlock": "10.0.0.0/24"}, "vpcId is required, and missing"),
    (SUBNET, {"vpcId": "v", "cidrBlok": "10.0.0.0/24"}, "cidrBlok is unknown; did you mean cidrBlock?"),
    (SUBNET, {"vpcId": "v", "cidrBlock": 10}, "cidrBlock = 10: must be str"),
    (SUBNET, {"vpcId": "v", "mapPublicIpOnLaunch": "no"}, "mapPublicIpOnLaunch = 'no': must be bool"),
    (SUBNET, {"vpcId": "v", "mapPublicIpOnLaunch": 1}, "mapPublicIpOnLaunch = 1: must be bool"),
    (
        TEMPLATE,
        {"metadataOptions": {"httpToken": "required"}},
        "metadataOptions.httpToken is unknown; did you mean httpTokens?",
    ),
    (
        TEMPLATE,
        {"blockDeviceMappings": [{"deviceName": "a"}, {"ebs": {"volumeSize": "200"}}]},
        "blockDeviceMappings[1].ebs.volumeSize = '200': must be int",
    ),
    (
        TEMPLATE,
        {"metadataOptions": {"httpTokens": "always"}},
        "metadataOptions.httpTokens = 'always': documented are optional, required",
    ),
    (
        RULE,
        {"securityGroupId": "sg-1", "type": "ingress", "ipProtocol": "any"},
        "ipProtocol = 'any': documented are all, gre, icmp, icmpv6, tcp, udp",
    ),
)


def test_a_wrong_input_is_named_with_what_is_allowed_on_both_clouds():
    said = [(found(kind, **inputs), f"{kind} 'it': {problem}") for kind, inputs, problem in WRONG]

    assert [pair for pair in said if pair[0] != [pair[1]]] == []


def test_a_type_the_sdk_lacks_is_named():
    assert found("aws:ec2/nothing:Nothing") == ["aws:ec2/nothing:Nothing: the SDK has no such resource type"]


def test_the_settings_of_a_provider_are_checked_and_components_are_not():
    provider = registered("pulumi:providers:aws", "it", outcome=RegistrationOutcome.GROUPED)
    provider.inputs.update(
        {"region": "us-east-1", "skipMetadataApiCheck": "true", "endpoints": '[{"lamda": "http://here"}]'}
    )
    component = registered("gpu-fleet:aws:Network", "it", outcome=RegistrationOutcome.GROUPED)

    (problem,) = problems(provider)

    assert problem == "pulumi:providers:aws 'it': endpoints[0].lamda is unknown; did you mean lambda?"
    assert problems(component) == []
