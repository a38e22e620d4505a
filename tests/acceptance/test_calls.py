"""Every call that an acceptance run makes is one that the cloud documents."""

import re
from pathlib import Path

import boto3
import pytest
from botocore import xform_name

from stacks.acceptance import aws
from stacks.acceptance.aws import CALLS, AwsAccount
from stacks.acceptance.clock import SystemClock
from stacks.acceptance.variant import name_of
from stacks.rehearsal.moto_server import moto_server
from stacks.settings.stack_files import settings_of


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_an_operation_of_its_service_and_its_page_is_of_that_operation(name):
    service, method = name.split(".")
    client = boto3.client(service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    operations = {
        xform_name(operation_name): operation_name
        for operation_name in client.meta.service_model.operation_names
    }

    assert method in operations
    assert re.fullmatch(r"https://docs\.aws\.amazon\.com/\S+\.html", CALLS[name])
    assert CALLS[name].removesuffix(".html").rpartition("API_")[2].rpartition("_")[2] == operations[method]


def test_the_module_asks_for_nothing_that_is_not_in_its_table():
    source = Path(aws.__file__).read_text(encoding="utf-8")
    asked = set(re.findall(r'"((?:[a-z0-9]+)\.(?:[a-z0-9]+_[a-z0-9_]+))"', source))

    assert asked == CALLS.keys()


def test_a_call_outside_of_the_table_is_never_made():
    account = AwsAccount(settings_of("aws-dev"), SystemClock(), clients=lambda service: None)

    with pytest.raises(KeyError):
        account._ask("ec2.run_instances")
    assert account.calls == []


def test_the_variant_has_a_name_of_its_own():
    assert name_of("aws-dev") == "aws-dev-accept"


def test_only_the_keys_of_the_stack_are_let_go():
    with moto_server("us-east-1"):
        kms = boto3.client("kms", region_name="us-east-1")
        own, other = (
            kms.create_key(Tags=[{"TagKey": "gpu-fleet:stack", "TagValue": name}])["KeyMetadata"]
            for name in ("aws-dev", "aws-prod")
        )
        account = AwsAccount(settings_of("aws-dev"), SystemClock())

        let_go = account.let_keys_go()

        states = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] for key in (own, other)]
        assert (let_go, states) == ([own["Arn"]], ["PendingDeletion", "Enabled"])
        assert account.let_keys_go() == []
