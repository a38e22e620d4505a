"""The agent on AWS: its clients, which hold less of botocore's data, and its group's lifecycle hook."""

import inspect
import json
from pathlib import Path

import boto3
import botocore
import pytest
from botocore.stub import Stubber

from gpu_fleet_image.core.model import TAG_WITHDRAWN
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent import aws as aws_agent
from gpu_fleet_image.instance.agent.aws import Hook, WithdrawnTag
from gpu_fleet_image.instance.agent.service_models import NEEDED, SmallModels, use_small_models
from gpu_fleet_image.providers.aws.instances import Tags
from tests.image.samples import NOON

DATA = Path(botocore.__file__).parent / "data"


@pytest.fixture
def small(monkeypatch, fleet):
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    use_small_models()


def test_what_an_agent_calls_answers_as_before(small, tmp_path):
    ec2, s3 = boto3.client("ec2", "us-east-1"), boto3.client("s3", "us-east-1")
    whole = boto3.session.Session(region_name="us-east-1").client("ec2")
    (made,) = whole.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"]
    WithdrawnTag("us-east-1", None, made["InstanceId"]).raise_for(NOON)
    ec2.create_tags(Resources=[made["InstanceId"]], Tags=[{"Key": "a", "Value": "b"}])
    ec2.delete_tags(Resources=[made["InstanceId"]], Tags=[{"Key": "a"}])
    tags = whole.describe_tags()["Tags"]
    (tmp_path / "notes").write_text("mine")
    s3.create_bucket(Bucket="kept")
    s3.upload_file(str(tmp_path / "notes"), "kept", "notes")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="kept")
    datum = {"MetricName": "Busy", "Value": 1.0}

    boto3.client("cloudwatch", "us-east-1").put_metric_data(Namespace="test", MetricData=[datum])
    boto3.client("sts", "us-east-1").get_caller_identity()
    autoscaling = boto3.client("autoscaling", "us-east-1").describe_auto_scaling_instances()

    assert [tag["Key"] for tag in tags] == [TAG_WITHDRAWN]
    assert [stored_object["Key"] for page in pages for stored_object in page["Contents"]] == ["notes"]
    assert s3.get_object(Bucket="kept", Key="notes")["Body"].read() == b"mine"
    assert autoscaling["AutoScalingInstances"] == []


def test_every_operation_of_ec2_that_an_agent_calls_is_there(small):
    text = inspect.getsource(aws_agent) + inspect.getsource(Tags)
    made = boto3.client("ec2", "us-east-1")
    called = {name for name in dir(made.__class__) if f".{name}" in text and name.islower()}

    operations = {made.meta.method_to_api_mapping.get(name) for name in called} - {None}
    assert operations == set(NEEDED["ec2"])


@pytest.mark.parametrize("name", ["ec2/2016-11-15/service-2", "s3/2006-03-01/service-2", "endpoints"])
def test_no_text_is_kept_and_nothing_else_is_lost(name):
    whole = botocore.loaders.JSONFileLoader().load_file(str(DATA / name))
    found = SmallModels().load_file(str(DATA / name))

    assert SmallModels().load_file(f"{DATA / name}-of-no-service") is None
    assert '"documentation": "' not in json.dumps(found).replace('"documentation": ""', "")
    if not name.startswith("ec2"):
        assert found == without_text(whole)
    else:
        assert found["metadata"] == whole["metadata"]
        assert {key: without_text(whole["shapes"][key]) for key in found["shapes"]} == found["shapes"]


def without_text(part):
    if isinstance(part, dict):
        empty = {"documentation": ""} if isinstance(part.get("documentation"), str) else {}
        return {key: without_text(value) for key, value in part.items()} | empty
    return [without_text(item) for item in part] if isinstance(part, list) else part


# the hook: moto has no CompleteLifecycleAction; botocore's Stubber checks each request and its order

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


def test_the_group_is_looked_up_once_for_asking_time_and_letting_go_and_a_refusal_is_reported(cloud, hook):
    member(cloud, MEMBER)
    cloud.add_response("record_lifecycle_action_heartbeat", {}, HOOK)
    cloud.add_response("complete_lifecycle_action", {}, HOOK | {"LifecycleActionResult": "CONTINUE"})

    hook.heartbeat()
    hook.complete()

    said = "No active Lifecycle Action found"
    cloud.add_client_error("complete_lifecycle_action", "ValidationError", said)
    with pytest.raises(CloudError, match=f"lifecycle hook gpu-fleet-drain: .*{said}"):
        hook.complete()


def test_an_instance_of_no_group_is_named(cloud, hook):
    member(cloud)

    with pytest.raises(CloudError, match="i-0a is in no scaling group"):
        hook.complete()
