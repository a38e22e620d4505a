"""The lifecycle hook of a scaling group, against the requests that botocore's service model allows.

moto has no CompleteLifecycleAction; botocore's Stubber checks each request and its order.
"""

import boto3
import pytest
from botocore.stub import Stubber

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent.aws import Hook

HOOK = {"LifecycleHookName": "gpu-fleet-drain", "AutoScalingGroupName": "dev", "InstanceId": "i-0a"}
MEMBER = {"InstanceId": "i-0a", "AutoScalingGroupName": "dev", "AvailabilityZone": "us-east-1a"}
MEMBER |= {"LifecycleState": "Terminating:Wait", "HealthStatus": "HEALTHY", "ProtectedFromScaleIn": True}


@pytest.fixture
def cloud():
    keys = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up"}
    with Stubber(boto3.client("autoscaling", "us-east-1", **keys)) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def hook(cloud):
    return Hook(cloud.client, "gpu-fleet-drain", "i-0a")


def member(cloud, *found):
    answer = {"AutoScalingInstances": [*found]}
    cloud.add_response("describe_auto_scaling_instances", answer, {"InstanceIds": ["i-0a"]})


def test_the_group_is_looked_up_once_for_asking_time_and_letting_go(cloud, hook):
    member(cloud, MEMBER)
    cloud.add_response("record_lifecycle_action_heartbeat", {}, HOOK)
    cloud.add_response("complete_lifecycle_action", {}, HOOK | {"LifecycleActionResult": "CONTINUE"})

    hook.heartbeat()
    hook.complete()


def test_an_instance_of_no_group_is_named(cloud, hook):
    member(cloud)

    with pytest.raises(CloudError, match="i-0a is in no scaling group"):
        hook.complete()


def test_a_refusal_of_the_cloud_is_reported(cloud, hook):
    member(cloud, MEMBER)
    refusal_text = "No active Lifecycle Action found"
    cloud.add_client_error("complete_lifecycle_action", "ValidationError", refusal_text)

    with pytest.raises(CloudError, match=f"lifecycle hook gpu-fleet-drain: .*{refusal_text}"):
        hook.complete()
