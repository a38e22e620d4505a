"""Provider functions a program may call, each against moto or against what AWS documents."""

import json

import pulumi
import pulumi_aws as aws
import pytest

from gpu_fleet_stacks.rehearsal.errors import UnknownInvokeError
from gpu_fleet_stacks.rehearsal.invokes import answer
from gpu_fleet_stacks.rehearsal.program import run_program
from tests.stacks.rehearsal.examples import REGION


def test_account_region_partition_and_zones_are_those_of_the_provider(clients):
    zones = clients("ec2").describe_availability_zones()["AvailabilityZones"]
    here, there = (
        answer(clients.at(region), "aws:index/getPartition:getPartition", {})
        for region in (REGION, "cn-north-1")
    )
    found = answer(clients, "aws:index/getAvailabilityZones:getAvailabilityZones", {"state": "available"})

    assert answer(clients, "aws:index/getRegion:getRegion", {})["region"] == REGION
    assert (here["partition"], here["dnsSuffix"]) == ("aws", "amazonaws.com")
    assert (there["partition"], there["dnsSuffix"]) == ("aws-cn", "amazonaws.com.cn")
    assert found["names"] == [zone["ZoneName"] for zone in zones]


def test_a_parameter_that_stands_in_moto_is_read(clients):
    clients("ssm").put_parameter(Name="/image", Value="ami-1", Type="String")

    assert answer(clients, "aws:ssm/getParameter:getParameter", {"name": "/image"})["value"] == "ami-1"


@pytest.fixture
def images_of_amazon(monkeypatch):
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")


def test_the_newest_image_that_fits_is_found_and_one_that_moto_lacks_is_refused(images_of_amazon, clients):
    def image(name, **wanted):
        filters = [{"name": "name", "values": [name]}]
        return answer(clients, "aws:ec2/getAmi:getAmi", {"filters": filters} | wanted)

    found = image("amzn2-ami-hvm-*", mostRecent=True, owners=["amazon"])

    (seen,) = clients("ec2").describe_images(ImageIds=[found["imageId"]])["Images"]
    assert seen["Name"].startswith("amzn2-ami-hvm-")
    with pytest.raises(UnknownInvokeError, match="nobody-has-this"):
        image("nobody-has-this")


def test_a_policy_document_is_what_iam_takes_and_everyone_a_star_in_it(clients):
    read = {
        "sid": "Read",
        "actions": ["s3:GetObject"],
        "resources": ["arn:b", "arn:a"],
        "principals": [{"type": "Service", "identifiers": ["ec2.amazonaws.com"]}],
        "conditions": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["true"]}],
    }
    deny = {"effect": "Deny", "principals": [{"type": "*", "identifiers": ["*"]}]}

    made = answer(clients, "aws:iam/getPolicyDocument:getPolicyDocument", {"statements": [read, deny]})

    assert json.loads(made["json"])["Statement"] == [
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


def test_a_program_gets_the_answer_and_what_moto_refuses_is_named_by_its_function(clients):
    def program():
        pulumi.export("account", aws.get_caller_identity_output().account_id)

    def missing():
        pulumi.export("image", aws.ssm.get_parameter_output(name="/missing").value)

    of_moto = clients("sts").get_caller_identity()["Account"]
    assert run_program("test", program=program, config={}).outputs == {"account": of_moto}
    assert of_moto == clients.account_id
    with pytest.raises(
        Exception, match=r"aws:ssm/getParameter:getParameter 'call' was refused: GetParameter"
    ):
        run_program("test", program=missing, config={})
