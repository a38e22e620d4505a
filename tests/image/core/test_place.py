"""Users' commands find the right stack by its published policy, from any computer."""

import json
import os
from datetime import UTC, datetime
from functools import partial
from unittest.mock import Mock

import boto3
import pytest
from botocore.stub import Stubber
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.controllers.meter.freeze_rules import Before, Freeze, FreezeStage
from gpu_fleet_image.core import place
from gpu_fleet_image.core.calls import permission_of
from gpu_fleet_image.core.place import Asked, Place, place_of
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import stack_files
from tests.image.fake_aws import fake_aws
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.moto_fleet import REGION, STACK, MotoFleet, budget_json, policy_json
from tests.stacks.shipped import SHIPPED

ACCOUNT = "123456789012"  # moto's
BUCKET = f"gpu-fleet-{STACK}-records-{ACCOUNT}"


HERE = ("--stack", STACK, "--region", REGION)


def files_of(**places):
    """Fake stack files of a checkout; nobody asks for their pools."""
    return Mock(names=lambda: list(places), place=places.__getitem__, pools=None)


@pytest.fixture
def elsewhere(monkeypatch):
    """Set up a computer that is no instance, without a region and a policy.json."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "GPU_FLEET_LEDGER_URI", "GPU_FLEET_POLICY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", "/nowhere.toml")


@pytest.fixture
def fleet(elsewhere):
    with fake_aws():
        yield MotoFleet()


@pytest.fixture
def published(fleet):
    """Return a stack that has put its policy into its bucket."""
    s3 = boto3.client("s3", region_name=REGION)
    s3.create_bucket(Bucket=BUCKET)
    body = json.dumps(policy_json(budget=budget_json()))
    s3.put_object(Bucket=BUCKET, Key="reaper/policy.json", Body=body)
    return fleet


def run(*arguments: str, status: int = 0) -> str:
    """Return the output of a command that must end with a status."""
    done = CliRunner().invoke(main, [*arguments])
    assert done.exit_code == status, done.output
    return done.output


refused = partial(run, status=1)


def test_commands_read_the_policy_that_the_stack_published(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (instance,) = published.start()

    for words in (("status",), ("sweep",), ("report",), ("unfreeze", "--reason", "deadline")):
        run(*words, *HERE)
    assert f"{instance}: dev " in run("explain", instance, *HERE)


def test_an_unfreeze_from_a_laptop_is_recorded_in_the_stacks_own_ledger(published):
    s3 = boto3.client("s3", region_name=REGION)
    now = datetime.now(UTC)
    frozen = Freeze(
        f"{now:%Y-%m}", FreezeStage.CLOSED, since=now, groups={"pool": Before(10, closed=False, cap=2)}
    )
    s3.put_object(Bucket=BUCKET, Key="reaper/freeze.json", Body=json.dumps(frozen.to_json()))
    published.start_group("pool", desired=1)

    said = run("unfreeze", "--reason", "paper deadline", *HERE)

    assert "pools start instances again" in said
    (record,) = s3.list_objects_v2(Bucket=BUCKET, Prefix="reaper/budget/")["Contents"]
    content = json.loads(s3.get_object(Bucket=BUCKET, Key=record["Key"])["Body"].read())
    assert (content["action"], content["reason"]) == ("unfreeze", "paper deadline")


def test_on_an_instance_the_stack_is_that_of_its_file(published, tmp_path, monkeypatch):
    file = tmp_path / "instance.toml"
    file.write_text(INSTANCE_TOML.replace("aws-dev", STACK))
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
    monkeypatch.chdir(tmp_path)

    run("report")


def test_a_stack_without_a_file_needs_a_region_and_says_so(elsewhere):
    said = refused("status", "--stack", "research")

    assert "stack 'research' has no file here; name its region with --region (or AWS_REGION)" in said
    assert "the stack files here are alicloud-dev, " in said


def test_a_stack_that_is_not_deployed_or_published_nothing_is_named_with_what_helps(fleet):
    boto3.client("s3", region_name=REGION).create_bucket(Bucket=BUCKET)

    absent = refused("status", "--stack", "research", "--region", REGION)
    silent = refused("status", *HERE)

    assert f"gpu-fleet-research-records-{ACCOUNT}/reaper/policy.json: no such bucket" in absent
    assert f"is stack 'research' deployed in account {ACCOUNT}?" in absent
    assert f"{BUCKET}/reaper/policy.json: not there; `gpu-fleet up {STACK}` publishes it" in silent


def test_a_denied_read_names_the_object_and_the_permission(monkeypatch):
    client = boto3.client("s3", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    monkeypatch.setattr(place.clouds, "bucket_client", lambda cloud, region: client)
    with Stubber(client) as stub:
        stub.add_client_error("get_object", "AccessDenied", "Access Denied", 403)
        with pytest.raises(place.CloudError) as raised:
            place.published(Place(STACK, "aws", REGION), ACCOUNT)

    assert str(raised.value) == (
        f"s3://{BUCKET}/reaper/policy.json may not be read with these credentials: "
        "get_object: AccessDenied: Access Denied; missing permission: s3:GetObject"
    )


@pytest.mark.parametrize(
    ("service", "endpoint", "method", "permission"),
    [
        ("autoscaling", None, "update_auto_scaling_group", "autoscaling:UpdateAutoScalingGroup"),
        ("cloudwatch", None, "get_metric_data", "cloudwatch:GetMetricData"),
        ("s3", None, "list_objects_v2", "s3:ListBucket"),
        ("s3", "https://oss-cn-shenzhen.aliyuncs.com", "get_object", "oss:GetObject"),
    ],
)
def test_a_permission_is_named_as_policies_spell_it(service, endpoint, method, permission):
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client(service, region_name=REGION, endpoint_url=endpoint, **keys)

    assert permission_of(getattr(client, method)) == permission


def test_flags_come_before_the_file_and_the_file_before_the_environment(elsewhere, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    files = files_of(prod={"cloud": "aws", "region": "us-east-1", "account_id": "1" * 12})

    assert place_of(Asked(stack="prod", files=files)) == Place("prod", "aws", "us-east-1", "1" * 12)
    assert place_of(Asked(stack="prod", region="us-west-2", account_id="2" * 12, files=files)) == Place(
        "prod", "aws", "us-west-2", "2" * 12
    )
    assert place_of(Asked(stack="other", files=files)) == Place("other", "aws", "eu-west-1")


def test_a_policy_of_another_stack_is_refused(published, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy_json(stack="prod")))

    said = refused("status", "--policy", str(file), *HERE)

    assert "error: --policy is of stack 'prod', --stack is 'test'" in said


def test_a_hold_on_an_instance_of_another_stack_is_refused(published):
    (instance,) = published.start(**{"gpu-fleet:stack": "prod"})

    said = refused("keep", "1h", "--reason", "x", "--instance", instance, *HERE)

    assert f"error: {instance} is of stack 'prod', not of 'test'" in said


def test_an_emulator_of_a_stack_file_takes_any_credentials(elsewhere, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    files = files_of(local={"cloud": "aws", "region": "us-east-1", "endpoint_url": "http://127.0.0.1:5000"})

    place_of(Asked(stack="local", files=files))

    assert os.environ["AWS_ENDPOINT_URL"] == "http://127.0.0.1:5000"
    assert os.environ["AWS_ACCESS_KEY_ID"] == "emulator"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_commands_look_where_the_stack_puts_its_policy(name):
    stack = stack_files.settings_of(name)
    found = Place(name, str(stack.cloud), stack.region).bucket(stack.account_id)

    assert found == naming.prefixed(name, "records", stack.account_id)


@pytest.mark.parametrize("command", [["take", "dev"], ["status"], ["report"], ["runs"]])
def test_a_command_without_a_stack_names_the_flag_and_the_stacks_there_are(elsewhere, command):
    said = refused(*command)

    assert said.startswith("error: --stack is missing, and this is no instance of a stack")
    assert "aws-dev" in said


def test_a_wrong_instance_file_is_one_message(elsewhere, tmp_path, monkeypatch):
    file = tmp_path / "instance.toml"
    file.write_text("schema_version = 7")
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))

    assert f"error: instance file {file}: schema_version = 7" in refused("report")
