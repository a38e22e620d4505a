"""Every call that an acceptance run makes is one that the cloud documents."""

import re
from functools import cache
from pathlib import Path

import boto3
import botocore.session
import pytest
from botocore import xform_name

from gpu_fleet_stacks import acceptance
from gpu_fleet_stacks.acceptance.aws import AwsAccount
from gpu_fleet_stacks.acceptance.aws_calls import CALLS, RecordedAws
from gpu_fleet_stacks.acceptance.clock import SystemClock
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.settings.stack_files import settings_of

# Calls that modules of `clients` make for the account.
BY_CLIENTS = {
    *("ec2.describe_instances", "s3.abort_multipart_upload"),
    *("s3.delete_objects", "s3.list_multipart_uploads"),
}


@cache
def operations_of(service):
    """Method of boto3 -> operation of the API."""
    names = botocore.session.get_session().get_service_model(service).operation_names
    return {xform_name(name): name for name in names}


def test_the_modules_ask_for_what_is_in_the_table_and_its_page_is_of_that_operation():
    sources = [path.read_text(encoding="utf-8") for path in Path(acceptance.__path__[0]).glob("aws*.py")]
    pairs = re.findall(r'\(\s*"([a-z0-9]+)",\s*"([a-z0-9]+_[a-z0-9_]+)"', "\n".join(sources))

    assert {".".join(pair) for pair in pairs} | BY_CLIENTS == CALLS.keys()
    for name, address in CALLS.items():
        service, method = name.split(".")
        page = re.fullmatch(r"https://docs\.aws\.amazon\.com/\S*API_(?:\S+_)?(\w+)\.html", address)
        assert page, name
        assert page[1] == operations_of(service)[method], name


def test_a_call_outside_of_the_table_is_never_made():
    calls = RecordedAws(lambda service: None, SystemClock())

    with pytest.raises(KeyError):
        calls.ask("ec2", "run_instances")
    assert calls.made == []


def test_only_the_keys_of_the_stack_are_let_go():
    with moto_server("us-east-1"):
        kms = boto3.client("kms", region_name="us-east-1")
        own, other = (
            kms.create_key(Tags=[{"TagKey": "gpu-fleet:stack", "TagValue": name}])["KeyMetadata"]
            for name in ("aws-dev", "aws-prod")
        )
        account = AwsAccount(settings_of("aws-dev"), SystemClock())

        let_go = account.cleanup.let_keys_go()

        states = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] for key in (own, other)]
        assert (let_go, states) == ([own["Arn"]], ["PendingDeletion", "Enabled"])
        assert account.cleanup.let_keys_go() == []
