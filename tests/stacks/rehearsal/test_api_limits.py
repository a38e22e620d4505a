"""The check of AWS calls against the API's limits, on calls that break one each."""

import boto3
import pytest

from tests.stacks.rehearsal.api_limits import violations
from tests.stacks.rehearsal.examples import REGION


def of_call(service, operation, **parameters):
    client = boto3.client(service, region_name=REGION)
    return violations(client.meta.service_model.operation_model(operation), parameters)


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "word"),
    [
        (
            "iam",
            "CreateRole",
            {"RoleName": "r" * 65, "AssumeRolePolicyDocument": "{}"},
            "is 65: allowed 1 to 64",
        ),
        ("iam", "CreateRole", {"RoleName": "a role", "AssumeRolePolicyDocument": "{}"}, "must match"),
        ("lambda", "CreateFunction", {"MemorySize": 64}, "is 64: allowed 128 to"),
        ("autoscaling", "PutLifecycleHook", {"LifecycleHookName": "drain!"}, "LifecycleHookName"),
        ("kms", "CreateKey", {"Tags": [{"TagKey": "k" * 129, "TagValue": ""}]}, "is 129"),
        ("kms", "CreateKey", {"KeySpec": "AES"}, "allowed"),
        ("ec2", "CreateSecurityGroup", {"Description": "people's"}, "must match"),
        ("ec2", "CreateLaunchTemplate", {"LaunchTemplateName": "it"}, "must match"),
        ("sns", "CreateTopic", {"Tags": [{"Key": "why?", "Value": "because"}]}, "no tag may be"),
    ],
)
def test_what_the_api_refuses_is_named(service, operation, parameters, word):
    (violation,) = of_call(service, operation, **parameters)

    assert word in violation


def test_what_the_api_takes_has_no_violation():
    tags = [{"Key": "gpu-fleet:owner", "Value": "ml-platform@example.com"}]

    assert of_call("iam", "CreateRole", RoleName="instances", AssumeRolePolicyDocument="{}", Tags=tags) == []
