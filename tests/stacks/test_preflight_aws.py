"""Is there room on AWS: what each answer of the cloud becomes, and that every problem is told at once."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from click.testing import CliRunner

from stacks.calls import aws as aws_calls
from stacks.preflight import aws
from stacks.preflight.command import preflight
from stacks.preflight.findings import Finding, Rating
from stacks.rehearsal.moto_server import environment, moto_server
from stacks.settings import Stack, stack_files
from tests.stacks.aws_account import Account, Refusal
from tests.stacks.edits import EXISTING
from tests.stacks.examples import pool, stack

ID = "123456789012"
IMAGE = {
    "ImageId": "ami-0123456789abcdef0",
    "Name": "gpu-fleet-7",
    "OwnerId": ID,
    "State": "available",
    "Architecture": "x86_64",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}],
}
RESERVATION = {
    "CapacityReservationId": "cr-0123456789abcdef0",
    "State": "active",
    "InstanceType": "p5.48xlarge",
    "AvailabilityZone": "us-east-1a",
    "TotalInstanceCount": 4,
    "AvailableInstanceCount": 4,
    "ReservationType": "default",
}


def quota(value: float) -> dict[str, Any]:
    return {"Quota": {"Value": value}}


def functions(unreserved: int, allowed: int = 1000) -> dict[str, Any]:
    limit = {"ConcurrentExecutions": allowed, "UnreservedConcurrentExecutions": unreserved}
    return {"AccountLimit": limit}


def offers(*zones: str):
    """Every type that is asked for is sold in these zones."""

    def answer(params):
        (names,) = (part["Values"] for part in params["Filters"])
        sold = [{"InstanceType": name, "Location": zone} for name in names for zone in zones]
        return {"InstanceTypeOfferings": sold}

    return answer


def account(**changes: Any) -> Account:
    """An account with room for anything, with some answers replaced: ``ec2_DescribeImages=...``."""
    answers: dict[str, Any] = {
        "sts:GetCallerIdentity": {"Account": ID, "Arn": f"arn:aws:iam::{ID}:user/test"},
        "service-quotas:GetServiceQuota": quota(10_000),
        "ec2:DescribeInstances": {"Reservations": []},
        "ec2:DescribeAddresses": {"Addresses": []},
        "ec2:DescribeVpcs": {"Vpcs": []},
        "ec2:DescribeInstanceTypeOfferings": offers("us-east-1a", "us-east-1b"),
        "ec2:DescribeInstanceTypes": {
            "InstanceTypes": [
                {"NetworkInfo": {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 32}}}
            ]
        },
        "ec2:GetSpotPlacementScores": {"SpotPlacementScores": [{"Region": "us-east-1", "Score": 9}]},
        "ec2:DescribeCapacityReservations": {"CapacityReservations": [RESERVATION]},
        "ec2:DescribeImages": {"Images": [IMAGE]},
        "s3:HeadBucket": Refusal("404", "Not Found"),
        "kms:DescribeKey": Refusal("NotFoundException", "alias is not found"),
        "budgets:DescribeBudgets": {"Budgets": []},
        "lambda:GetAccountSettings": functions(unreserved=1000),
        "lambda:GetFunctionConcurrency": Refusal("ResourceNotFoundException", "Function not found"),
    }
    return Account(answers | {name.replace("_", ":", 1): value for name, value in changes.items()})


def look(settings: Stack, cloud: Account) -> dict[str, Finding]:
    return {finding.subject: finding for finding in aws.look(settings, cloud.client)}


def ratings(found: dict[str, Finding]) -> set[Rating]:
    return {finding.rating for finding in found.values()}


def test_where_there_is_room_every_answer_is_fine():
    found = look(stack(), account())

    assert ratings(found) == {Rating.FINE}
    assert list(found) == [
        "account",
        "vCPUs for dev",
        "elastic addresses",
        "VPCs",
        "functions at once",
        "types of dev",
        "name",
        "image",
        "key",
        "budget",
        "instances",
    ]


def test_too_small_a_quota_is_a_problem_with_the_command_that_asks_for_more():
    pools = [pool(types=["p5.48xlarge"], size={"max": 4})]

    found = look(stack(pools=pools), account(**{"service-quotas_GetServiceQuota": quota(96)}))

    finding = found["vCPUs for dev"]
    assert finding.rating is Rating.PROBLEM
    assert finding.says == "needs 768, 0 in use beside it, 96 allowed (L-417A185B)"
    assert finding.remedy == (
        "aws service-quotas request-service-quota-increase --region us-east-1 "
        "--service-code ec2 --quota-code L-417A185B --desired-value 768"
    )


def test_what_others_of_the_account_run_counts_and_what_this_stack_runs_does_not():
    def instance(name: str, cores: int, owner: str, **more: Any) -> dict[str, Any]:
        tags = [{"Key": "gpu-fleet:stack", "Value": owner}]
        options = {"CoreCount": cores, "ThreadsPerCore": 2}
        return {"InstanceType": name, "CpuOptions": options, "Tags": tags, **more}

    running = [
        instance("g5.48xlarge", 96, "other"),
        instance("g5.48xlarge", 96, "test"),
        instance("g5.48xlarge", 96, "other", InstanceLifecycle="spot"),
        instance("g7.unheard-of", 4, "other"),
        instance("m5.large", 1, "other"),
    ]
    cloud = account(
        ec2_DescribeInstances={"Reservations": [{"Instances": running}]},
        **{"service-quotas_GetServiceQuota": quota(200)},
    )

    found = look(stack(), cloud)

    finding = found["vCPUs for dev"]
    assert finding.rating is Rating.PROBLEM
    assert finding.says == "needs 8, 200 in use beside it, 200 allowed (L-DB2E81BA)"
    assert finding.remedy.endswith("--desired-value 208")


def test_a_spot_pool_needs_the_spot_quota_and_its_certain_instances_the_other():
    mixed = pool(market="spot", types=["g5.xlarge"], on_demand_base=1, size={"max": 3})

    messages = [finding.says for finding in aws.look(stack(pools=[mixed]), account().client)]
    assert [says for says in messages if says.startswith("needs 4,") and "(L-DB2E81BA)" in says]
    assert [says for says in messages if says.startswith("needs 8,") and "(L-3819A6DF)" in says]


def test_each_group_of_a_pool_buys_its_own_certain_instances():
    """A p4d.24xlarge has 96 virtual CPUs; the pool has a group in each of two zones."""
    mixed = pool(market="spot", types=["p4d.24xlarge"], efa=True, on_demand_base=1, size={"max": 2})

    messages = [finding.says for finding in aws.look(stack(pools=[mixed]), account().client)]
    assert [says for says in messages if says.startswith("needs 192,") and "(L-417A185B)" in says]
    assert [says for says in messages if says.startswith("needs 192,") and "(L-7212CCBC)" in says]


def test_a_denied_quota_is_a_line_that_names_the_permission_and_hides_no_other_answer():
    found = look(stack(), account(**{"service-quotas_GetServiceQuota": Refusal()}))

    finding = found["vCPUs for dev"]
    assert finding.rating is Rating.UNCHECKED
    assert finding.says == "could not be checked: denied servicequotas:GetServiceQuota"
    assert found["image"].rating is Rating.FINE


def of_functions(cloud: Account) -> Finding:
    return look(stack(), cloud)["functions at once"]


def test_a_young_account_has_no_runs_that_sweep_and_mover_could_reserve():
    """Lambda answers "decreases account's UnreservedConcurrentExecution below its minimum value of [10]"."""
    finding = of_functions(account(**{"service-quotas_GetServiceQuota": quota(10)}))

    assert finding.rating is Rating.PROBLEM
    assert finding.says == "needs 102, 0 in use beside it, 10 allowed (L-B99A9384)"
    assert "--service-code lambda --quota-code L-B99A9384" in finding.remedy


@pytest.mark.parametrize(
    ("own", "rating"),
    [
        (Refusal("ResourceNotFoundException", "Function not found"), Rating.PROBLEM),
        ({"ReservedConcurrentExecutions": 1}, Rating.FINE),
    ],
    ids=["before the first up", "with their runs reserved"],
)
def test_what_other_functions_reserve_counts_and_what_sweep_and_mover_have_already_does_not(own, rating):
    cloud = account(
        **{"service-quotas_GetServiceQuota": quota(1000)},
        lambda_GetAccountSettings=functions(unreserved=100),
        lambda_GetFunctionConcurrency=own,
    )

    assert of_functions(cloud).rating is rating


def test_addresses_and_networks_of_others_count():
    elsewhere = {"Tags": [{"Key": "gpu-fleet:stack", "Value": "other"}]}
    cloud = account(
        ec2_DescribeVpcs={"Vpcs": [elsewhere] * 5},
        ec2_DescribeAddresses={"Addresses": [elsewhere] * 5},
        **{
            "service-quotas_GetServiceQuota": lambda asked: quota(
                5 if "L-D" not in asked["QuotaCode"] else 99
            )
        },
    )

    found = look(stack(), cloud)

    assert found["VPCs"].says == "needs 1, 5 in use beside it, 5 allowed (L-F678F1CE)"
    assert "--service-code vpc --quota-code L-F678F1CE --desired-value 6" in found["VPCs"].remedy
    assert "--quota-code L-0263D0A3 --desired-value 6" in found["elastic addresses"].remedy


@pytest.mark.parametrize(
    ("sold_in", "rating", "says", "remedy"),
    [
        (("us-east-1a", "us-east-1b"), Rating.FINE, "us-east-1a, us-east-1b sell g5.xlarge", ""),
        (("us-east-1b",), Rating.NOTE, "us-east-1a sell no g5.xlarge", "sold in us-east-1b"),
        (("us-east-1f",), Rating.PROBLEM, "us-east-1a, us-east-1b sell no", "sold in us-east-1f"),
        ((), Rating.PROBLEM, "sell no g5.xlarge", "name other types"),
    ],
    ids=["everywhere", "in-one-zone", "elsewhere", "nowhere"],
)
def test_a_type_must_be_sold_in_a_zone_of_the_pool(sold_in, rating, says, remedy):
    finding = look(stack(), account(ec2_DescribeInstanceTypeOfferings=offers(*sold_in)))["types of dev"]

    assert finding.rating is rating
    assert says in finding.says
    assert remedy in finding.remedy


def test_a_pool_with_a_group_for_each_zone_needs_the_type_in_each():
    cluster = pool(types=["p4d.24xlarge"], efa=True)

    found = look(stack(pools=[cluster]), account(ec2_DescribeInstanceTypeOfferings=offers("us-east-1a")))

    assert found["types of dev"].rating is Rating.PROBLEM


@pytest.mark.parametrize(("most", "rating"), [(4, Rating.FINE), (2, Rating.PROBLEM), (0, Rating.PROBLEM)])
def test_an_efa_pool_needs_as_many_adapters_as_its_template_asks_for(most, rating):
    network = {"EfaSupported": most > 0, "EfaInfo": {"MaximumEfaInterfaces": most}}
    cloud = account(ec2_DescribeInstanceTypes={"InstanceTypes": [{"NetworkInfo": network}]})

    finding = look(stack(pools=[pool(types=["p4d.24xlarge"], efa=True)]), cloud)["EFA of dev"]

    assert finding.rating is rating
    assert finding.says == f"p4d.24xlarge has {most} adapters, the template asks for 4"


@pytest.mark.parametrize(("score", "rating"), [(4, Rating.FINE), (3, Rating.NOTE), (1, Rating.NOTE)])
def test_scarce_spot_capacity_is_worth_a_note_and_stops_nothing(score, rating):
    cloud = account(ec2_GetSpotPlacementScores={"SpotPlacementScores": [{"Score": 1}, {"Score": score}]})

    finding = look(stack(pools=[pool(market="spot")]), cloud)["spot for dev"]

    assert finding.rating is rating
    assert finding.says == f"2 instances at once: placement score {score} of 10"


def reserved(**changes: Any) -> dict[str, Any]:
    own = {
        "market": "reservation",
        "types": ["p5.48xlarge"],
        "zones": ["us-east-1a"],
        "reservation_id": "cr-0123456789abcdef0",
        "size": {"max": 4},
    }
    return pool(**own | changes)


@pytest.mark.parametrize(
    ("changes", "market", "says"),
    [
        ({}, "reservation", "active, 4 of 4 free"),
        ({"State": "expired"}, "reservation", "is expired;"),
        ({"InstanceType": "p4d.24xlarge"}, "reservation", "is of p4d.24xlarge;"),
        ({"AvailabilityZone": "us-east-1b"}, "reservation", "lies in us-east-1b;"),
        ({"TotalInstanceCount": 3}, "reservation", "holds 3;"),
        ({"ReservationType": "capacity-block"}, "reservation", "is a capacity block;"),
        ({}, "capacity-block", "is no capacity block;"),
        ({"ReservationType": "capacity-block", "State": "scheduled"}, "capacity-block", "scheduled, 4 of 4"),
        ({"EndDate": datetime(2020, 1, 1, tzinfo=UTC)}, "reservation", "ended 2020-01-01;"),
    ],
    ids=["usable", "expired", "type", "zone", "size", "is-block", "is-none", "block", "ended"],
)
def test_a_reservation_must_be_there_and_fit_the_pool(changes, market, says):
    cloud = account(ec2_DescribeCapacityReservations={"CapacityReservations": [RESERVATION | changes]})

    finding = look(stack(pools=[reserved(market=market)]), cloud)["reservation of dev"]

    assert says in finding.says
    assert (finding.rating is Rating.PROBLEM) is (";" in says)


RESERVED_GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/odcr"
HALF = {"TotalInstanceCount": 2, "AvailableInstanceCount": 1}
RESERVATION_ARN = "arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-0123456789abcde"


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ([HALF, HALF], "active, 2 of 4 free"),
        ([HALF, HALF | {"State": "expired"}], "holds 2;"),
        ([{"InstanceType": "p4d.24xlarge"}], "is of p4d.24xlarge;"),
        ([], "holds 0;"),
    ],
    ids=["together", "one expired", "another type", "empty"],
)
def test_reservations_of_a_group_count_together(held, says):
    arns = [{"Identifier": {"ResourceArn": f"{RESERVATION_ARN}{number}0"}} for number in range(len(held))]
    cloud = account(
        **{"resource-groups_ListGroupResources": {"Resources": arns}},
        ec2_DescribeCapacityReservations={"CapacityReservations": [RESERVATION | each for each in held]},
    )

    finding = look(stack(pools=[reserved(reservation_id=RESERVED_GROUP)]), cloud)["reservation of dev"]

    assert says in finding.says


def test_a_capacity_block_needs_no_quota_of_virtual_cpus():
    found = look(stack(pools=[reserved(market="capacity-block")]), account())

    assert not [subject for subject in found if subject.startswith("vCPUs")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"OwnerId": "999999999999"}, "is of account 999999999999, which is not ours"),
        ({"State": "failed"}, "is failed"),
        ({"Architecture": "arm64"}, "is arm64"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 900}}]},
            "has 900 GiB, more than a pool's volume_gib of 200",
        ),
    ],
    ids=["owner", "state", "architecture", "size"],
)
def test_an_image_must_be_ours_valid_and_small_enough(changes, says):
    finding = look(stack(), account(ec2_DescribeImages={"Images": [IMAGE | changes]}))["image"]

    assert finding.rating is Rating.PROBLEM
    assert says in finding.says
    assert "image/README.md" in finding.remedy


@pytest.mark.parametrize(
    "answer", [{"Images": []}, Refusal("InvalidAMIID.NotFound", "does not exist")], ids=["none", "refused"]
)
def test_an_image_that_is_not_there_is_a_problem(answer):
    finding = look(stack(), account(ec2_DescribeImages=answer))["image"]

    assert finding.rating is Rating.PROBLEM
    assert "ami-0123456789abcdef0 is not in us-east-1" in finding.says


FOLLOWING = {"id": "ami-0123456789abcdef0", "base_id": "ami-0aaaaaaaaaaaaaaaa", "mode": "baked"}


@pytest.mark.parametrize(
    ("written", "name", "says"),
    [
        (None, "deep learning", "ami-0123456789abcdef0 (deep learning), bootstrapped until the first build"),
        (
            "ami-0123456789abcdef0",
            "deep learning",
            "ami-0123456789abcdef0 (deep learning), bootstrapped until",
        ),
        (
            "ami-0bbbbbbbbbbbbbbbb",
            "gpu-fleet-test-2026-11-22",
            "ami-0bbbbbbbbbbbbbbbb (gpu-fleet-test-2026-11-22), baked",
        ),
    ],
    ids=["before the first up", "before the first build", "after it"],
)
def test_which_image_would_boot_now_is_said(written, name, says):
    written_ami = {"Parameter": {"Value": written}} if written else Refusal("ParameterNotFound", "")
    cloud = account(ssm_GetParameter=written_ami, ec2_DescribeImages={"Images": [IMAGE | {"Name": name}]})

    found = look(stack(image=FOLLOWING), cloud)["image"]

    assert found.rating is Rating.FINE
    assert found.says.startswith(says)
    assert ("ssm:GetParameter", {"Name": "/imagebuilder/gpu-fleet-test/ami"}) in cloud.asked


def test_an_image_of_amazon_behind_a_parameter_is_trusted():
    cloud = account(
        ssm_GetParameter={"Parameter": {"Value": "ami-0aaaaaaaaaaaaaaaa"}},
        ec2_DescribeImages={"Images": [IMAGE | {"OwnerId": "1", "ImageOwnerAlias": "amazon"}]},
    )

    found = look(stack(image={"parameter": "/aws/service/some/ami-id"}), cloud)

    assert found["image"].rating is Rating.FINE
    assert found["image"].says.startswith("ami-0aaaaaaaaaaaaaaaa")
    assert ("ec2:DescribeImages", {"ImageIds": ["ami-0aaaaaaaaaaaaaaaa"]}) in cloud.asked


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("Disabled", "aws kms enable-key"), ("PendingDeletion", "aws kms cancel-key-deletion")],
)
def test_a_key_that_opens_nothing_is_a_problem_with_its_remedy(state, remedy):
    finding = look(stack(), account(kms_DescribeKey={"KeyMetadata": {"KeyId": "k-1", "KeyState": state}}))[
        "key"
    ]

    assert finding.rating is Rating.PROBLEM
    assert f"is {state}" in finding.says
    assert finding.remedy.startswith(f"{remedy} --region us-east-1 --key-id k-1")


def test_a_stack_of_the_same_name_in_another_region_is_a_problem():
    finding = look(stack(), account(s3_HeadBucket={"BucketRegion": "eu-west-1"}))["name"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says.startswith(
        "a stack 'test' is in eu-west-1: gpu-fleet-test-records-123456789012 is there"
    )


def test_the_stack_itself_does_not_stand_in_its_own_way():
    finding = look(stack(), account(s3_HeadBucket={"BucketRegion": "us-east-1"}))["name"]

    assert finding.rating is Rating.FINE


def test_a_name_that_may_not_be_looked_up_is_not_taken_for_free():
    finding = look(stack(), account(s3_HeadBucket=Refusal("403", "Forbidden")))["name"]

    assert finding.rating is Rating.UNCHECKED


def test_a_budget_that_may_not_be_seen_names_the_permission_that_users_know():
    finding = look(stack(), account(budgets_DescribeBudgets=Refusal()))["budget"]

    assert finding.rating is Rating.UNCHECKED
    assert finding.says == "could not be checked: denied budgets:ViewBudget"


def test_credentials_of_another_account_are_the_first_problem():
    other = {"Account": "210987654321", "Arn": "arn:aws:iam::210987654321:user/test"}

    finding = look(stack(), account(sts_GetCallerIdentity=other))["account"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == "the credentials are of 210987654321, the stack belongs to 123456789012"


def run(name: str, cloud: Account, monkeypatch):
    monkeypatch.setattr(aws, "clients_in", lambda region, emulator: cloud.client)
    return CliRunner().invoke(preflight, [name])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ssm_GetParameter": {"Parameter": {"Value": IMAGE["ImageId"]}}}, 0),
        ({"ssm_GetParameter": Refusal()}, 3),
        ({"ssm_GetParameter": Refusal(), "service-quotas_GetServiceQuota": quota(1)}, 1),
    ],
    ids=["room", "unchecked", "problems"],
)
def test_the_exit_code_says_whether_there_is_room(changes, code, monkeypatch):
    assert run("aws-dev", account(**changes), monkeypatch).exit_code == code


def test_every_problem_is_reported_at_once_with_what_to_do(monkeypatch):
    cloud = account(
        ssm_GetParameter=Refusal(),
        ec2_DescribeInstanceTypeOfferings=offers(),
        kms_DescribeKey={"KeyMetadata": {"KeyId": "k-1", "KeyState": "Disabled"}},
        **{"service-quotas_GetServiceQuota": quota(1)},
    )

    done = run("aws-prod", cloud, monkeypatch)

    text = " ".join(done.output.split())
    for part in (
        "--quota-code L-DB2E81BA --desired-value 64",
        "--quota-code L-7212CCBC --desired-value 384",
        "types of train: name other types",
        "aws kms enable-key",
        "could not be checked: denied ssm:GetParameter",
    ):
        assert part in text
    assert "aws-prod: " in text
    assert "Traceback" not in done.output


def test_without_credentials_one_line_says_so(monkeypatch):
    done = run("aws-dev", Account({}), monkeypatch)

    assert done.exit_code == 3
    assert "could not be checked, and nothing else: Could not connect to the endpoint" in done.output


def test_against_moto_whatever_it_knows_is_answered():
    """moto has no EC2 quotas; everything else of the local stack it answers by itself."""
    settings = stack_files.settings_of("local")
    with environment({"MOTO_EC2_LOAD_DEFAULT_AMIS": "true"}), moto_server(settings.region):
        found = look_at(settings)

    unchecked = {subject for subject, finding in found.items() if finding.rating is Rating.UNCHECKED}
    assert {subject for subject in found if subject.startswith("vCPUs")} <= unchecked
    assert {found[subject].rating for subject in ("account", "VPCs", "types of shared", "image", "key")} == {
        Rating.FINE
    }


def look_at(settings: Stack) -> dict[str, Finding]:
    """With the clients that moto's environment gives, wherever its server listens."""
    session = boto3.session.Session(region_name=settings.region)
    clients = {
        service: session.client(service, config=aws_calls.LIMITS)
        for service in ("sts", "ec2", "service-quotas", "ssm", "kms", "budgets", "s3")
    }
    return {finding.subject: finding for finding in aws.look(settings, clients.__getitem__)}


MAILING = {"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"}
ROOM = {"webhooks": [{"kind": "slack", "secret": "rooms/vision"}]}
SENDS = {"SendingEnabled": True, "ProductionAccessEnabled": True}
NO_IDENTITY = Refusal("NotFoundException", "no such identity")


def verified(*identities: str):
    def answer(params):
        known = params["EmailIdentity"] in identities
        return {"VerifiedForSendingStatus": True} if known else NO_IDENTITY

    return answer


@pytest.mark.parametrize(
    ("identities", "account_says", "rating", "says"),
    [
        (["fleet@mail.example.com"], SENDS, Rating.FINE, "fleet@mail.example.com is verified"),
        (["mail.example.com"], SENDS, Rating.FINE, "mail.example.com is verified"),
        (["example.com"], SENDS, Rating.PROBLEM, "neither fleet@mail.example.com nor its domain"),
        (["mail.example.com"], SENDS | {"ProductionAccessEnabled": False}, Rating.PROBLEM, "sandbox"),
        (["mail.example.com"], SENDS | {"SendingEnabled": False}, Rating.PROBLEM, "sending is paused"),
    ],
    ids=["address", "domain", "another", "sandbox", "paused"],
)
def test_a_sender_is_verified_and_may_mail_anybody(identities, account_says, rating, says):
    cloud = account(sesv2_GetEmailIdentity=verified(*identities), sesv2_GetAccount=account_says)

    finding = look(stack(notify=MAILING), cloud)["sender"]

    assert (finding.rating, bool(finding.remedy)) == (rating, rating is Rating.PROBLEM)
    assert says in finding.says


@pytest.mark.parametrize(
    ("secret", "rating", "says"),
    [
        ({"Name": "rooms/vision"}, Rating.FINE, "is there"),
        ({"Name": "rooms/vision", "KmsKeyId": "alias/gpu-fleet-test"}, Rating.FINE, "is there"),
        ({"Name": "rooms/vision", "KmsKeyId": "alias/other"}, Rating.PROBLEM, "the sweep may not use"),
        ({"DeletedDate": datetime(2026, 11, 1, tzinfo=UTC)}, Rating.PROBLEM, "is being deleted"),
        (Refusal("ResourceNotFoundException", "no"), Rating.PROBLEM, "there is no secret rooms/vision"),
        (Refusal(), Rating.UNCHECKED, "secretsmanager:DescribeSecret"),
    ],
    ids=["amazons-key", "own-key", "other-key", "deleted", "missing", "denied"],
)
def test_a_webhooks_secret_is_there_under_a_key_that_the_sweep_may_use(secret, rating, says):
    cloud = account(
        secretsmanager_DescribeSecret=secret,
        kms_DescribeKey=lambda params: {"KeyMetadata": {"KeyId": params["KeyId"], "KeyState": "Enabled"}},
    )

    finding = look(stack(notify=ROOM), cloud)["webhook rooms/vision"]

    assert finding.rating is rating
    assert says in finding.says
    assert "secretsmanager:GetSecretValue" not in [name for name, _ in cloud.asked]


VPC, SUBNETS = EXISTING["vpc_id"], EXISTING["subnets"]
TO_NAT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-0123456789abcdef0", "State": "active"}
TO_S3 = {"DestinationPrefixListId": "pl-63a5400a", "GatewayId": "vpce-0123456789abcdef0", "State": "active"}


def guest(**network: Any) -> Stack:
    section = {"zones": list(SUBNETS), "existing": EXISTING} | network
    return stack(network=section, storage={"home": True})


def foreign_vpc(subnet: dict[str, Any] | None = None, routes: Any = (TO_NAT,), **changes: Any) -> Account:
    """An account with the VPC: each of its subnets in its zone, and a main table with these routes."""

    def subnet_of(params):
        (asked,) = params["SubnetIds"]
        zone = next(zone for zone, known in SUBNETS.items() if known == asked)
        found = {"SubnetId": asked, "VpcId": VPC, "AvailabilityZone": zone, "AvailableIpAddressCount": 250}
        return {"Subnets": [found | (subnet or {})]}

    def tables(params):
        main = params["Filters"][0]["Name"] == "vpc-id"
        return {"RouteTables": [{"Routes": list(routes)}] if main else []}

    answers: dict[str, Any] = {
        "ec2_DescribeVpcs": {"Vpcs": [{"VpcId": VPC, "CidrBlock": "172.20.0.0/16"}]},
        "ec2_DescribeVpcAttribute": lambda params: {
            params["Attribute"][:1].upper() + params["Attribute"][1:]: {"Value": True}
        },
        "ec2_DescribeVpcEndpoints": {"VpcEndpoints": []},
        "ec2_DescribeSubnets": subnet_of,
        "ec2_DescribeRouteTables": tables,
    }
    return account(**answers | changes)


def test_an_existing_vpc_with_its_routes_is_fine_and_needs_no_quota_of_networks():
    found = look(guest(), foreign_vpc())

    assert ratings(found) == {Rating.FINE}
    assert found["VPC"].says == f"{VPC} has 172.20.0.0/16"
    assert found["subnet of us-east-1b"].says.endswith("has its routes and 250 free addresses")
    assert {"VPCs", "elastic addresses"} & found.keys() == set()


def test_a_subnets_own_routes_come_before_those_of_the_vpc():
    def tables(params):
        own = params["Filters"][0]["Name"] == "association.subnet-id"
        return {"RouteTables": [{"Routes": [] if own else [TO_NAT]}]}

    found = look(guest(), foreign_vpc(ec2_DescribeRouteTables=tables))

    assert found["subnet of us-east-1a"].rating is Rating.PROBLEM


@pytest.mark.parametrize(
    ("subnet", "routes", "says"),
    [
        ({}, (), "has no route to 0.0.0.0/0"),
        ({}, (TO_NAT | {"State": "blackhole"},), "has no route to 0.0.0.0/0"),
        (
            {},
            ({"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-0123456789abcdef0"},),
            "reaches 0.0.0.0/0 by igw-0123456789abcdef0, which answers public addresses alone",
        ),
        ({"VpcId": "vpc-0ffffffffffffffff"}, (TO_NAT,), "lies in vpc-0ffffffffffffffff"),
        ({"AvailabilityZone": "us-east-1f"}, (TO_NAT,), "lies in us-east-1f"),
        ({"MapPublicIpOnLaunch": True}, (TO_NAT,), "gives public addresses"),
    ],
)
def test_a_subnet_of_an_existing_vpc_must_be_private_in_its_zone_and_lead_out(subnet, routes, says):
    finding = look(guest(), foreign_vpc(subnet, routes))["subnet of us-east-1a"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == f"{SUBNETS['us-east-1a']} {says}"
    assert "network.existing.subnets.us-east-1a" in finding.remedy


@pytest.mark.parametrize(
    ("routes", "rating"), [((TO_S3,), Rating.FINE), ((), Rating.PROBLEM), ((TO_NAT,), Rating.PROBLEM)]
)
def test_without_internet_a_subnet_needs_the_way_to_s3_alone(routes, rating):
    settings = guest(existing=EXISTING | {"internet": False})

    assert look(settings, foreign_vpc(routes=routes))["subnet of us-east-1a"].rating is rating


@pytest.mark.parametrize(
    "answer", [Refusal("InvalidVpcID.NotFound", "The vpc ID does not exist"), {"Vpcs": []}]
)
def test_a_vpc_that_is_not_there_is_a_problem(answer):
    finding = look(guest(), foreign_vpc(ec2_DescribeVpcs=answer))["VPC"]

    assert (finding.rating, finding.says) == (Rating.PROBLEM, f"{VPC} is not in us-east-1")


def test_a_vpc_without_names_mounts_no_homes():
    def attribute(params):
        name = params["Attribute"][:1].upper() + params["Attribute"][1:]
        return {name: {"Value": name == "EnableDnsSupport"}}

    finding = look(guest(), foreign_vpc(ec2_DescribeVpcAttribute=attribute))["VPC"]

    assert finding.says == f"{VPC} has enableDnsHostnames switched off, which homes and endpoints need"
    assert finding.remedy.endswith(f"--vpc-id {VPC} --enable-dns-hostnames")


@pytest.mark.parametrize(
    ("owner", "private", "rating"),
    [("other", True, Rating.PROBLEM), ("other", False, Rating.FINE), ("test", True, Rating.FINE)],
)
def test_endpoints_of_the_owner_with_private_names_leave_no_room_for_the_stacks(owner, private, rating):
    endpoint = {
        "ServiceName": "com.amazonaws.us-east-1.ecr.api",
        "PrivateDnsEnabled": private,
        "Tags": [{"Key": "gpu-fleet:stack", "Value": owner}],
    }
    cloud = foreign_vpc(ec2_DescribeVpcEndpoints={"VpcEndpoints": [endpoint]})

    finding = look(guest(interface_endpoints=True), cloud)["endpoints"]

    assert finding.rating is rating
    assert ("ecr.api" in finding.says) is (rating is Rating.PROBLEM)


# buckets of somebody else's

LAB = "bucket lab-datasets"
TLS_ONLY = {
    "Statement": [
        {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": "arn:aws:s3:::lab-datasets/*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    ]
}
LAB_KEY = f"arn:aws:kms:us-east-1:{ID}:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def bucket_of(region="us-east-1", algorithm="AES256", policy: Any = None, **changes: Any) -> Account:
    """An account that has the bucket, and none of the stack's own."""
    default = {"SSEAlgorithm": algorithm} | ({"KMSMasterKeyID": LAB_KEY} if algorithm != "AES256" else {})
    rules = [{"ApplyServerSideEncryptionByDefault": default}]
    answers: dict[str, Any] = {
        "s3_HeadBucket": lambda params: (
            {"BucketRegion": region} if params["Bucket"] == "lab-datasets" else Refusal("404", "Not Found")
        ),
        "s3_GetBucketEncryption": {"ServerSideEncryptionConfiguration": {"Rules": rules}},
        "s3_GetBucketPolicy": {"Policy": json.dumps(TLS_ONLY if policy is None else policy)},
    }
    return account(**answers | changes)


def using_lab(**use: Any) -> Stack:
    return stack(storage={"existing": {"buckets": {"lab-datasets": use}}})


def test_an_existing_bucket_in_the_region_behind_tls_is_fine():
    finding = look(using_lab(), bucket_of())[LAB]

    assert (finding.rating, finding.says) == (Rating.FINE, "is in us-east-1, and reached by TLS alone")


@pytest.mark.parametrize(
    ("cloud", "rating", "says"),
    [
        (bucket_of(s3_HeadBucket=Refusal("404", "Not Found")), Rating.PROBLEM, "there is no such bucket"),
        (bucket_of(region="eu-west-1"), Rating.PROBLEM, "lies in eu-west-1"),
        (bucket_of(algorithm="aws:kms"), Rating.PROBLEM, f"is encrypted by the KMS key {LAB_KEY}, which"),
        (bucket_of(policy={"Statement": []}), Rating.NOTE, "its policy does not refuse plain HTTP"),
        (
            bucket_of(s3_GetBucketPolicy=Refusal("NoSuchBucketPolicy", "The bucket policy does not exist")),
            Rating.NOTE,
            "its policy does not refuse plain HTTP",
        ),
        (
            bucket_of(s3_GetBucketEncryption=Refusal("AccessDenied", "no")),
            Rating.UNCHECKED,
            "could not be checked",
        ),
    ],
)
def test_what_is_wrong_with_an_existing_bucket_is_reported(cloud, rating, says):
    finding = look(using_lab(), cloud)[LAB]

    assert finding.rating is rating
    assert says in finding.says


def test_a_bucket_under_a_key_that_the_stack_file_names_is_fine():
    assert look(using_lab(key=LAB_KEY), bucket_of(algorithm="aws:kms"))[LAB].rating is Rating.FINE


# file systems of somebody else's

EFS, FSX = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
CIDRS = dict(zip(SUBNETS.values(), ("172.20.0.0/24", "172.20.1.0/24"), strict=True))
GROUP, POOLS_GROUP = "sg-0123456789abcdef0", "sg-0fedcba9876543210"
ANY_PORT = {"IsEgress": False, "IpProtocol": "-1", "CidrIpv4": "172.20.0.0/16", "FromPort": -1, "ToPort": -1}
NFS = {"IsEgress": False, "IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
BY_GROUP = NFS | {"ReferencedGroupInfo": {"GroupId": POOLS_GROUP}}


def borrowing(**existing: Any) -> Stack:
    section = {"zones": list(SUBNETS), "existing": EXISTING}
    return stack(network=section, storage={"existing": existing})


def with_efs(*rules: dict[str, Any], **changes: Any) -> Account:
    """An account with an encrypted EFS, a mount target in each zone, and these rules of their group."""

    def subnets(params):
        zones = {subnet: zone for zone, subnet in SUBNETS.items()}
        return {
            "Subnets": [
                {
                    "SubnetId": asked,
                    "CidrBlock": CIDRS[asked],
                    "VpcId": VPC,
                    "AvailabilityZone": zones[asked],
                    "AvailableIpAddressCount": 250,
                }
                for asked in params["SubnetIds"]
            ]
        }

    answers: dict[str, Any] = {
        "efs_DescribeFileSystems": {"FileSystems": [file_system()]},
        "efs_DescribeFileSystemPolicy": Refusal("PolicyNotFound", "no policy"),
        "efs_DescribeMountTargets": {"MountTargets": [mount_target(zone) for zone in SUBNETS]},
        "efs_DescribeMountTargetSecurityGroups": {"SecurityGroups": [GROUP]},
        "ec2_DescribeSecurityGroupRules": {"SecurityGroupRules": list(rules)},
        "ec2_DescribeSecurityGroups": {"SecurityGroups": [{"GroupId": POOLS_GROUP}]},
        "ec2_DescribeSubnets": subnets,
    }
    return foreign_vpc(**answers | changes)


def file_system(**changes: Any) -> dict[str, Any]:
    required = {"OwnerId": ID, "CreationToken": "lab", "CreationTime": datetime.now(UTC), "Tags": []}
    required |= {"LifeCycleState": "available", "NumberOfMountTargets": 2, "SizeInBytes": {"Value": 0}}
    required |= {"PerformanceMode": "generalPurpose"}
    return required | {"FileSystemId": EFS, "Encrypted": True} | changes


def mount_target(zone: str, **changes: Any) -> dict[str, Any]:
    standing = {"MountTargetId": f"fsmt-{zone}", "FileSystemId": EFS, "SubnetId": SUBNETS[zone]}
    return standing | {"LifeCycleState": "available", "AvailabilityZoneName": zone, "VpcId": VPC} | changes


@pytest.mark.parametrize("rule", [ANY_PORT, BY_GROUP], ids=["by-network", "by-group"])
def test_existing_homes_that_let_the_subnets_in_are_fine(rule):
    finding = look(borrowing(home={"id": EFS}), with_efs(rule))["homes"]

    assert (finding.rating, finding.says) == (
        Rating.FINE,
        f"{EFS} is encrypted, and lets the stack's subnets in",
    )


def test_the_remedy_says_what_the_owner_must_open_for_the_homes():
    half = NFS | {"CidrIpv4": "172.20.0.0/24"}

    finding = look(borrowing(home={"id": EFS}), with_efs(half))["homes"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == f"the groups of {EFS} do not let in 172.20.1.0/24 at TCP 2049"
    assert finding.remedy == (
        "its owner runs: aws ec2 authorize-security-group-ingress --region us-east-1 "
        f"--group-id {GROUP} --protocol tcp --port 2049 --cidr 172.20.1.0/24"
    )


@pytest.mark.parametrize(
    "rule",
    [
        NFS | {"CidrIpv4": "172.20.0.0/16", "IsEgress": True},
        NFS | {"CidrIpv4": "172.20.0.0/16", "IpProtocol": "udp"},
        NFS | {"CidrIpv4": "172.20.0.0/16", "FromPort": 22, "ToPort": 22},
        NFS | {"ReferencedGroupInfo": {"GroupId": "sg-0aaaaaaaaaaaaaaaa"}},
    ],
    ids=["egress", "udp", "other-port", "other-group"],
)
def test_a_rule_for_something_else_opens_no_home(rule):
    assert look(borrowing(home={"id": EFS}), with_efs(rule))["homes"].rating is Rating.PROBLEM


NAMED_ALONE = {
    "Effect": "Allow",
    "Principal": {"AWS": f"arn:aws:iam::{ID}:role/lab"},
    "Action": "elasticfilesystem:ClientMount",
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"efs_DescribeFileSystems": Refusal("FileSystemNotFound", "no")},
            f"{EFS} is not in us-east-1",
        ),
        (
            {"efs_DescribeFileSystems": {"FileSystems": [file_system(Encrypted=False)]}},
            f"{EFS} is not encrypted",
        ),
        (
            {"efs_DescribeMountTargets": {"MountTargets": [mount_target("us-east-1a")]}},
            f"{EFS} has no mount target of {VPC} in us-east-1b",
        ),
        (
            {
                "efs_DescribeMountTargets": {
                    "MountTargets": [mount_target(zone, VpcId="vpc-0aaaaaaaaaaaaaaaa") for zone in SUBNETS]
                }
            },
            f"{EFS} has no mount target of {VPC} in us-east-1a, us-east-1b",
        ),
        (
            {"efs_DescribeFileSystemPolicy": {"Policy": json.dumps({"Statement": [NAMED_ALONE]})}},
            f"the policy of {EFS} lets nobody mount without IAM, and instances mount without",
        ),
    ],
    ids=["missing", "in-the-clear", "a-zone-without", "another-vpc", "iam-alone"],
)
def test_what_keeps_instances_from_existing_homes_is_reported(changes, says):
    finding = look(borrowing(home={"id": EFS}), with_efs(ANY_PORT, **changes))["homes"]

    assert (finding.rating, finding.says) == (Rating.PROBLEM, says)
    assert finding.remedy


def lustre(**changes: Any) -> dict[str, Any]:
    files = {
        "FileSystemId": FSX,
        "FileSystemType": "LUSTRE",
        "VpcId": VPC,
        "NetworkInterfaceIds": ["eni-0123456789abcdef0"],
    }
    return {"FileSystems": [files | {"LustreConfiguration": {"MountName": "abcdefgh"}} | changes]}


def with_fsx(*rules: dict[str, Any], answer: Any = None) -> Account:
    interfaces = {
        "NetworkInterfaces": [{"NetworkInterfaceId": "eni-0123456789abcdef0", "Groups": [{"GroupId": GROUP}]}]
    }
    changes = {"fsx_DescribeFileSystems": answer or lustre(), "ec2_DescribeNetworkInterfaces": interfaces}
    return with_efs(*rules, **changes)


@pytest.mark.parametrize(
    ("cloud", "rating", "says"),
    [
        (with_fsx(ANY_PORT), Rating.FINE, f"{FSX} is encrypted, and lets the stack's subnets in"),
        (
            with_fsx(NFS | {"CidrIpv4": "172.20.0.0/16", "FromPort": 988, "ToPort": 988}),
            Rating.PROBLEM,
            f"the groups of {FSX} do not let in 172.20.0.0/24 at TCP 1018-1023, "
            "172.20.1.0/24 at TCP 1018-1023",
        ),
        (
            with_fsx(answer=Refusal("FileSystemNotFound", "no")),
            Rating.PROBLEM,
            f"{FSX} is not in us-east-1",
        ),
        (with_fsx(answer=lustre(FileSystemType="OPENZFS")), Rating.PROBLEM, f"{FSX} is of kind OPENZFS"),
        (with_fsx(answer=lustre(VpcId="vpc-0aaaaaaaa")), Rating.PROBLEM, f"{FSX} lies in vpc-0aaaaaaaa"),
        (
            with_fsx(answer=lustre(LustreConfiguration={"MountName": "fsx"})),
            Rating.PROBLEM,
            f"the mount name of {FSX} is fsx",
        ),
    ],
    ids=["open", "half-open", "missing", "another-kind", "another-vpc", "another-name"],
)
def test_an_existing_lustre_is_there_by_its_name_and_lets_the_subnets_in(cloud, rating, says):
    settings = borrowing(scratch={"id": FSX, "mount_name": "abcdefgh"})

    finding = look(settings, cloud)["scratch"]

    assert (finding.rating, finding.says) == (rating, says)


MADE = datetime(2026, 11, 26, tzinfo=UTC)
DAY = timedelta(days=1)


def started(name: str, pool_name: str, at: datetime, **more: Any) -> dict[str, Any]:
    tags = {"gpu-fleet:stack": "test", "gpu-fleet:pool": pool_name}
    tagged = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"InstanceId": name, "LaunchTime": at, "Tags": tagged, **more}


def test_instances_that_are_older_than_the_user_role_of_their_pool_are_named():
    disk = [{"Ebs": {"AttachTime": MADE - DAY}}]
    running = [
        started("i-old", "dev", MADE - DAY),
        started("i-started-anew", "dev", MADE + DAY, BlockDeviceMappings=disk),
        started("i-new", "dev", MADE + DAY),
        started("i-of-a-pool-without", "dev-large", MADE + DAY),
    ]
    role = {"Path": "/", "RoleName": "gpu-fleet-test-dev-user-0a1b2c3", "RoleId": "AROA0123456789ABCDEF"}
    roles = [role | {"Arn": f"arn:aws:iam::{ID}:role/{role['RoleName']}", "CreateDate": MADE}]
    settings = stack(pools=[pool(), pool(name="dev-large")])
    cloud = account(
        ec2_DescribeInstances={"Reservations": [{"Instances": running}]}, iam_ListRoles={"Roles": roles}
    )

    finding = look(settings, cloud)["instances"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says.startswith("i-of-a-pool-without, i-old, i-started-anew: older than the user role")
