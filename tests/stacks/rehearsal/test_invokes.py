"""Provider functions a program may call, each against moto or against what AWS documents."""

import json

import pulumi
import pulumi_aws as aws
import pytest

from gpu_fleet_stacks.rehearsal.errors import UnknownInvokeError
from gpu_fleet_stacks.rehearsal.invokes import answer
from gpu_fleet_stacks.rehearsal.program import run_program
from tests.stacks.rehearsal.examples import REGION


def answer_to(clients, function, **arguments):
    return answer(clients, function, arguments)


def test_the_caller_is_motos_account(clients):
    said = answer_to(clients, "aws:index/getCallerIdentity:getCallerIdentity")

    assert said["accountId"] == clients("sts").get_caller_identity()["Account"] == clients.account_id


def test_region_partition_and_zones_are_those_of_the_provider(clients):
    zones = clients("ec2").describe_availability_zones()["AvailabilityZones"]
    partitions = {
        region: answer_to(clients.at(region), "aws:index/getPartition:getPartition")
        for region in (REGION, "cn-north-1")
    }
    here, there = partitions.values()
    said = answer_to(clients, "aws:index/getAvailabilityZones:getAvailabilityZones", state="available")

    assert answer_to(clients, "aws:index/getRegion:getRegion")["region"] == REGION
    assert (here["partition"], here["dnsSuffix"]) == ("aws", "amazonaws.com")
    assert (there["partition"], there["dnsSuffix"]) == ("aws-cn", "amazonaws.com.cn")
    assert said["names"] == [zone["ZoneName"] for zone in zones]


def test_a_parameter_that_stands_in_moto_is_read(clients):
    clients("ssm").put_parameter(Name="/image", Value="ami-1", Type="String")

    assert answer_to(clients, "aws:ssm/getParameter:getParameter", name="/image")["value"] == "ami-1"


@pytest.fixture
def images_of_amazon(monkeypatch):
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")


def test_the_newest_image_that_fits_is_found(images_of_amazon, clients):
    filters = [{"name": "name", "values": ["amzn2-ami-hvm-*"]}]

    said = answer_to(clients, "aws:ec2/getAmi:getAmi", mostRecent=True, owners=["amazon"], filters=filters)

    (seen,) = clients("ec2").describe_images(ImageIds=[said["imageId"]])["Images"]
    assert seen["Name"].startswith("amzn2-ami-hvm-")


def test_an_image_that_moto_lacks_is_refused(clients):
    filters = [{"name": "name", "values": ["nobody-has-this"]}]

    with pytest.raises(UnknownInvokeError, match="nobody-has-this"):
        answer_to(clients, "aws:ec2/getAmi:getAmi", filters=filters)


def test_a_policy_document_is_what_iam_takes_and_everyone_a_star_in_it(clients):
    said = answer_to(
        clients,
        "aws:iam/getPolicyDocument:getPolicyDocument",
        statements=[
            {
                "sid": "Read",
                "actions": ["s3:GetObject"],
                "resources": ["arn:b", "arn:a"],
                "principals": [{"type": "Service", "identifiers": ["ec2.amazonaws.com"]}],
                "conditions": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["true"]}],
            },
            {"effect": "Deny", "principals": [{"type": "*", "identifiers": ["*"]}]},
        ],
    )

    assert json.loads(said["json"])["Statement"] == [
        {
            "Sid": "Read",
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": ["arn:b", "arn:a"],
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Condition": {"Bool": {"aws:SecureTransport": "true"}},
        },
        {"Effect": "Deny", "Principal": "*"},
    ]


def test_a_program_gets_the_answer(clients):
    def program():
        pulumi.export("account", aws.get_caller_identity_output().account_id)

    assert run_program("test", program=program, config={}).outputs == {"account": clients.account_id}


def test_what_moto_refuses_is_named_by_its_function(clients):
    def program():
        pulumi.export("image", aws.ssm.get_parameter_output(name="/missing").value)

    with pytest.raises(
        Exception, match=r"aws:ssm/getParameter:getParameter 'call' was refused: GetParameter"
    ):
        run_program("test", program=program, config={})
