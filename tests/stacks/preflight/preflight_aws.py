"""An AWS account without limits, for preflight."""

from collections.abc import Iterable
from typing import Any

from gpu_fleet_stacks.preflight import aws
from gpu_fleet_stacks.preflight.findings import Finding
from gpu_fleet_stacks.settings import Stack
from tests.stacks.aws_account import Account, Refusal
from tests.stacks.examples import stack
from tests.stacks.preflight.preflight_rows import Row, wrong

ID = "123456789012"
AMI = "ami-0123456789abcdef0"
IMAGE = {
    "ImageId": AMI,
    "Name": "gpu-fleet-7",
    "OwnerId": ID,
    "State": "available",
    "Architecture": "x86_64",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}],
}


def offers(*zones: str):
    """Return an answer: every requested type is sold in these zones."""

    def answer(params):
        (names,) = (part["Values"] for part in params["Filters"])
        sold = [{"InstanceType": name, "Location": zone} for name in names for zone in zones]
        return {"InstanceTypeOfferings": sold}

    return answer


def adapters(most: int, *, supported: bool = True) -> dict[str, Any]:
    """Return an answer: every type has so many EFA interfaces."""
    network = {"EfaSupported": supported, "EfaInfo": {"MaximumEfaInterfaces": most}}
    return {"InstanceTypes": [{"NetworkInfo": network}]}


def functions(unreserved: int) -> dict[str, Any]:
    """Return an answer: `unreserved` of a thousand concurrent runs are reserved by no function."""
    return {"AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": unreserved}}


def account(allowed: float = 10_000, **changes: Any) -> Account:
    """Return the account with quotas of this size, and some answers replaced: ``ec2_DescribeImages=...``."""
    answers: dict[str, Any] = {
        "sts:GetCallerIdentity": {"Account": ID, "Arn": f"arn:aws:iam::{ID}:user/test"},
        "service-quotas:GetServiceQuota": {"Quota": {"Value": allowed}},
        "ec2:DescribeInstances": {"Reservations": []},
        "ec2:DescribeAddresses": {"Addresses": []},
        "ec2:DescribeVpcs": {"Vpcs": []},
        "ec2:DescribeInstanceTypeOfferings": offers("us-east-1a", "us-east-1b"),
        "ec2:DescribeInstanceTypes": adapters(32),
        "ec2:GetSpotPlacementScores": {"SpotPlacementScores": [{"Region": "us-east-1", "Score": 9}]},
        "ec2:DescribeImages": {"Images": [IMAGE]},
        "s3:HeadBucket": Refusal("404", "Not Found"),
        "kms:DescribeKey": Refusal("NotFoundException", "alias is not found"),
        "budgets:DescribeBudgets": {"Budgets": []},
        "lambda:GetAccountSettings": functions(unreserved=1000),
        "lambda:GetFunctionConcurrency": Refusal("ResourceNotFoundException", "Function not found"),
    }
    for name, answer in changes.items():
        service, _, operation = name.rpartition("_")
        answers[f"{service.replace('_', '-')}:{operation}"] = answer
    return Account(answers)


def look(settings: Stack, cloud: Account) -> Iterable[Finding]:
    return aws.look(settings, cloud.client)


def found(settings: Stack, cloud: Account) -> dict[str, Finding]:
    return {finding.subject: finding for finding in look(settings, cloud)}


def wrong_of(*rows: Row) -> list[str]:
    """Return the rows without a finding."""
    return wrong(rows, look, account(), stack())
