"""The check of AWS calls against the API's limits, on calls that break one each."""

import boto3

from tests.stacks.rehearsal.api_limits import violations
from tests.stacks.rehearsal.examples import REGION


def of_call(service, operation, **parameters):
    client = boto3.client(service, region_name=REGION)
    return violations(client.meta.service_model.operation_model(operation), parameters)


ROLE = {"RoleName": "instances", "AssumeRolePolicyDocument": "{}"}
TAGGED = {"Key": "gpu-fleet:owner", "Value": "ml-platform@example.com"}
REFUSED = (
    ("iam", "CreateRole", ROLE | {"RoleName": "r" * 65}, "is 65: allowed 1 to 64"),
    ("iam", "CreateRole", ROLE | {"RoleName": "a role"}, "must match"),
    ("lambda", "CreateFunction", {"MemorySize": 64}, "is 64: allowed 128 to"),
    ("autoscaling", "PutLifecycleHook", {"LifecycleHookName": "drain!"}, "LifecycleHookName"),
    ("kms", "CreateKey", {"Tags": [{"TagKey": "k" * 129, "TagValue": ""}]}, "is 129"),
    ("kms", "CreateKey", {"KeySpec": "AES"}, "allowed"),
    ("ec2", "CreateSecurityGroup", {"Description": "people's"}, "must match"),
    ("ec2", "CreateLaunchTemplate", {"LaunchTemplateName": "it"}, "must match"),
    ("sns", "CreateTopic", {"Tags": [{"Key": "why?", "Value": "because"}]}, "no tag may be"),
)


def test_what_the_api_refuses_is_named_and_what_it_takes_has_no_violation():
    for service, operation, parameters, word in REFUSED:
        (violation,) = of_call(service, operation, **parameters)
        assert word in violation
    assert of_call("iam", "CreateRole", **ROLE, Tags=[TAGGED]) == []
