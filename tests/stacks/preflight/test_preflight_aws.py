"""Preflight on AWS: the finding for each answer of the cloud; all problems are reported at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

from click.testing import CliRunner

from gpu_fleet_stacks.clients.aws import clients_in
from gpu_fleet_stacks.preflight import aws
from gpu_fleet_stacks.preflight.command import preflight
from gpu_fleet_stacks.preflight.findings import Rating
from gpu_fleet_stacks.rehearsal.moto_server import environment, moto_server
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks.aws_account import Account, Refusal
from tests.stacks.examples import pool, stack
from tests.stacks.preflight.preflight_aws import (
    AMI,
    ID,
    IMAGE,
    account,
    adapters,
    found,
    functions,
    offers,
    wrong_of,
)
from tests.stacks.preflight.preflight_rows import Row, about

FINE, NOTE, PROBLEM, UNCHECKED = Rating


def test_where_there_is_room_every_answer_is_fine():
    answers = found(stack(), account())

    assert {finding.rating for finding in answers.values()} == {FINE}
    assert list(answers) == [
        *("account", "vCPUs for dev", "elastic addresses", "VPCs", "functions at once"),
        *("types of dev", "name", "image", "key", "budget", "instances"),
    ]


# quotas


def tagged(owner: str) -> dict[str, Any]:
    return {"Tags": [{"Key": "gpu-fleet:stack", "Value": owner}]}


def instance(kind: str, cores: int, owner: str, **more: Any) -> dict[str, Any]:
    options = {"CoreCount": cores, "ThreadsPerCore": 2}
    return {"InstanceType": kind, "CpuOptions": options} | tagged(owner) | more


# Beside this stack 200 virtual CPUs of its quota are in use: of a known type and of one of the same family.
RUNNING = [
    instance("g5.48xlarge", 96, "other"),
    instance("g5.48xlarge", 96, "test"),
    instance("g5.48xlarge", 96, "other", InstanceLifecycle="spot"),
    instance("g7.unheard-of", 4, "other"),
    instance("m5.large", 1, "other"),
]


def busy(allowed: int) -> Account:
    """Return an account with other instances, five networks and addresses, and one of each of this stack."""
    networks = [tagged("other")] * 5 + [tagged("test")]
    return account(
        allowed,
        ec2_DescribeInstances={"Reservations": [{"Instances": RUNNING}]},
        ec2_DescribeVpcs={"Vpcs": networks},
        ec2_DescribeAddresses={"Addresses": networks},
    )


def young(**changes: Any) -> Account:
    return account(1000, lambda_GetAccountSettings=functions(unreserved=100), **changes)


CPUS, AT_ONCE = "vCPUs for dev", "functions at once"
DENIED = account(service_quotas_GetServiceQuota=Refusal())
ON_SPOT = stack(pools=[pool(market="spot", types=["g5.xlarge"], on_demand_base=1, size={"max": 3})])
# a p4d.24xlarge has 96 virtual CPUs; the pool has a group in each of two zones
P4D = {"types": ["p4d.24xlarge"], "efa": True, "size": {"max": 2}}
TWO_GROUPS = stack(pools=[pool(market="spot", on_demand_base=1, **P4D)])
LARGE = stack(pools=[pool(types=["p5.48xlarge"], size={"max": 4})])
INCREASE = (
    "aws service-quotas request-service-quota-increase --region us-east-1 "
    "--service-code ec2 --quota-code L-417A185B --desired-value 768"
)


def test_each_quota_holds_what_the_stack_needs_beside_what_others_of_the_account_use():
    too_small = "needs 768, 0 in use beside it, 96 allowed (L-417A185B)"
    full = "needs 8, 200 in use beside it, 200 allowed (L-DB2E81BA)"
    denied = "could not be checked: denied servicequotas:GetServiceQuota"
    others_vpcs = "needs 1, 5 in use beside it, 5 allowed (L-F678F1CE)"
    vpc = "--service-code vpc --quota-code L-F678F1CE --desired-value 6"
    address = "--quota-code L-0263D0A3 --desired-value 6"
    # Lambda: "decreases account's UnreservedConcurrentExecution below its minimum value of [10]"
    young_says = "needs 102, 0 in use beside it, 10 allowed (L-B99A9384)"
    own_runs = {"ReservedConcurrentExecutions": 1}
    rows = (
        Row(CPUS, PROBLEM, too_small, account(96), LARGE, remedy=INCREASE),
        Row(CPUS, PROBLEM, full, busy(200), remedy="--desired-value 208"),
        Row(CPUS, FINE, "needs 8, 200 in use beside it, 208 allowed", busy(208)),
        Row(CPUS, FINE, "needs 4, 0 in use beside it, 10000 allowed (L-DB2E81BA)", stack=ON_SPOT),
        Row(CPUS, FINE, "needs 8, 0 in use beside it, 10000 allowed (L-3819A6DF)", stack=ON_SPOT),
        Row(CPUS, FINE, "needs 192, 0 in use beside it, 10000 allowed (L-417A185B)", stack=TWO_GROUPS),
        Row(CPUS, FINE, "needs 192, 0 in use beside it, 10000 allowed (L-7212CCBC)", stack=TWO_GROUPS),
        Row(CPUS, UNCHECKED, denied, DENIED),
        Row("image", FINE, "", DENIED),
        Row("VPCs", PROBLEM, others_vpcs, busy(5), remedy=vpc),
        Row("elastic addresses", PROBLEM, "5 in use beside it", busy(5), remedy=address),
        Row(AT_ONCE, PROBLEM, young_says, account(10), None, "--service-code lambda --quota-code L-B99A9384"),
        Row(AT_ONCE, PROBLEM, "needs 102, 900 in use beside it", young()),
        Row(AT_ONCE, FINE, "898 in use beside it", young(lambda_GetFunctionConcurrency=own_runs)),
    )

    assert wrong_of(*rows) == []


# zones


def sold_in(*zones: str) -> Account:
    return account(ec2_DescribeInstanceTypeOfferings=offers(*zones))


def with_adapters(most: int, *, supported: bool = True) -> Account:
    return account(ec2_DescribeInstanceTypes=adapters(most, supported=supported))


def scored(score: int) -> Account:
    return account(ec2_GetSpotPlacementScores={"SpotPlacementScores": [{"Score": 1}, {"Score": score}]})


def test_a_zone_sells_what_a_pool_asks_for():
    spot, efa = stack(pools=[pool(market="spot")]), stack(pools=[pool(**P4D)])
    template = "the template asks for 4"
    both, neither = "us-east-1a, us-east-1b sell g5.xlarge", "us-east-1a, us-east-1b sell no g5.xlarge"
    types = about(
        "types of dev",
        None,
        (FINE, both, sold_in("us-east-1a", "us-east-1b")),
        (NOTE, "us-east-1a sell no g5.xlarge", sold_in("us-east-1b"), "sold in us-east-1b"),
        (PROBLEM, neither, sold_in("us-east-1f"), "sold in us-east-1f"),
        (PROBLEM, neither, sold_in(), "name other types"),
    )
    rows = (
        Row("types of dev", PROBLEM, "us-east-1b sell no p4d.24xlarge", sold_in("us-east-1a"), efa),
        Row("EFA of dev", FINE, f"p4d.24xlarge has 4 adapters, {template}", with_adapters(4), efa),
        Row("EFA of dev", PROBLEM, f"p4d.24xlarge has 2 adapters, {template}", with_adapters(2), efa),
        Row("EFA of dev", PROBLEM, f"has 0 adapters, {template}", with_adapters(4, supported=False), efa),
        Row("spot for dev", FINE, "2 instances at once: placement score 4 of 10", scored(4), spot),
        Row("spot for dev", NOTE, "placement score 3 of 10", scored(3), spot, "on_demand_fallback"),
    )

    assert wrong_of(*types, *rows) == []


# reservations


def reserved(market: str = "reservation", by: str = "cr-0123456789abcdef0") -> Stack:
    own = {"market": market, "types": ["p5.48xlarge"], "zones": ["us-east-1a"], "reservation_id": by}
    return stack(pools=[pool(**own, size={"max": 4})])


def holding(*held: dict[str, Any]) -> Account:
    """Return an account with reservations in one group, each given by its changes to a valid one.

    The group is listed one by one, and EC2 describes those that it is asked for.
    """
    sound = {
        "CapacityReservationId": "cr-0123456789abcdef0",
        "State": "active",
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-east-1a",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 4,
        "ReservationType": "default",
    }
    known = {f"cr-0123456789abcdef{number}": sound | each for number, each in enumerate(held)}
    arns = [f"arn:aws:ec2:us-east-1:{ID}:capacity-reservation/{name}" for name in known]

    def page(asked: dict[str, Any]) -> dict[str, Any]:
        place = int(asked.get("NextToken", 0))
        rows = [{"Identifier": {"ResourceArn": arn}} for arn in arns[place : place + 1]]
        return {"Resources": rows, **({"NextToken": str(place + 1)} if place + 1 < len(arns) else {})}

    def described(asked: dict[str, Any]) -> dict[str, Any]:
        return {
            "CapacityReservations": [known[name] for name in asked["CapacityReservationIds"] if name in known]
        }

    return account(resource_groups_ListGroupResources=page, ec2_DescribeCapacityReservations=described)


def test_each_of_several_reservations_is_asked_for_by_itself():
    names = [f"cr-0123456789abcdef{number}" for number in range(3)]
    until = dict(zip(names, ("2027-03-31T11:30Z", None, None), strict=True))
    held = [{"id": name, "zone": "us-east-1a", "count": 2, "until": end} for name, end in until.items()]
    reserving = pool(market="reservation", types=["p5.48xlarge"], reservations=held, size={"max": 6})
    ends = datetime(2027, 3, 31, 11, 30, tzinfo=UTC)
    account = holding({"EndDate": ends}, {"EndDate": ends}, {"AvailabilityZone": "us-east-1b"})
    too_early = "ends 2027-03-31T11:30Z, and pools.reservations says until null; the pool wants 2"
    says = (
        (FINE, "4 of 4 free; 2 of them beyond count"),
        (PROBLEM, too_early),
        (PROBLEM, "is in us-east-1b; the pool wants 2"),
    )
    rows = [
        Row(f"reservation {name} of dev", *said, account, stack(pools=[reserving]))
        for name, said in zip(names, says, strict=True)
    ]

    assert wrong_of(*rows) == []


def test_a_reservation_is_there_and_fits_the_pool_and_those_of_a_group_count_together():
    group = reserved(by=f"arn:aws:resource-groups:us-east-1:{ID}:group/odcr")
    half = {"TotalInstanceCount": 2, "AvailableInstanceCount": 1}
    block = {"ReservationType": "capacity-block"}
    table = (
        (reserved(), [{}], "active, 4 of 4 free"),
        (reserved(), [{"State": "expired"}], "is expired;"),
        (reserved(), [{"InstanceType": "p4d.24xlarge"}], "is of p4d.24xlarge;"),
        (reserved(), [{"AvailabilityZone": "us-east-1b"}], "is in us-east-1b;"),
        (reserved(), [{"TotalInstanceCount": 3}], "holds 3;"),
        (reserved(), [block], "is a capacity block;"),
        (reserved(), [{"EndDate": datetime(2020, 1, 1, tzinfo=UTC)}], "ended 2020-01-01;"),
        (reserved("capacity-block"), [{}], "is no capacity block;"),
        (reserved("capacity-block"), [block | {"State": "scheduled"}], "scheduled, 4 of 4"),
        (group, [half, half], "active, 2 of 4 free"),
        (group, [half, half | {"State": "expired"}], "holds 2;"),
        (group, [{"InstanceType": "p4d.24xlarge"}], "group/odcr is of p4d.24xlarge;"),
        (group, [], "holds 0;"),
    )
    rows = [
        Row("reservation of dev", PROBLEM if ";" in says else FINE, says, holding(*held), settings)
        for settings, held, says in table
    ]

    assert wrong_of(*rows) == []
    assert not [subject for subject in found(reserved("capacity-block"), account()) if "vCPUs" in subject]


# what the account must have


def imaged(value: str | None = None, **changes: Any) -> Account:
    """Return an account with the image so changed, and a parameter that names one or is missing."""
    parameter = {"Parameter": {"Value": value}} if value else Refusal("ParameterNotFound", "")
    return account(ssm_GetParameter=parameter, ec2_DescribeImages={"Images": [IMAGE | changes]})


def test_an_image_is_ours_valid_and_small_enough():
    huge = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 900}}]
    gone = Refusal("InvalidAMIID.NotFound", "does not exist")
    accounts = {
        "belongs to account 999999999999, not to this one": imaged(OwnerId="999999999999"),
        "is failed": imaged(State="failed"),
        "is arm64": imaged(Architecture="arm64"),
        "has 900 GiB, more than a pool's volume_gib of 200": imaged(BlockDeviceMappings=huge),
        f"{AMI} is not in us-east-1": account(ec2_DescribeImages={"Images": []}),
        f"{AMI} is not": account(ec2_DescribeImages=gone),
    }
    remedy = "Bake and build an image"

    assert wrong_of(*(Row("image", PROBLEM, *row, None, remedy) for row in accounts.items())) == []


def test_the_image_that_would_boot_now_is_said_and_one_of_amazon_is_trusted():
    other = "ami-0bbbbbbbbbbbbbbbb"
    following = stack(image={"id": AMI, "base_id": "ami-0aaaaaaaaaaaaaaaa", "mode": "baked"})
    behind = stack(image={"parameter": "/aws/service/some/ami-id"})
    until = f"{AMI} (deep learning), bootstrapped until the first build"
    after = imaged(other, Name="gpu-fleet-test-2026-11-22")
    amazons = imaged(other, OwnerId="1", ImageOwnerAlias="amazon")
    rows = (
        Row("image", FINE, until, imaged(None, Name="deep learning"), following),
        Row("image", FINE, until, imaged(AMI, Name="deep learning"), following),
        Row("image", FINE, f"{other} (gpu-fleet-test-2026-11-22), baked", after, following),
        Row("image", FINE, f"{other} (", amazons, behind),
    )

    assert wrong_of(*rows) == []
    assert ("ssm:GetParameter", {"Name": "/imagebuilder/gpu-fleet-test/ami"}) in after.asked
    assert ("ec2:DescribeImages", {"ImageIds": [other]}) in amazons.asked


def key_is(state: str) -> dict[str, Any]:
    return {"KeyMetadata": {"KeyId": "k-1", "KeyState": state}}


def test_name_key_budget_and_credentials_are_the_stacks():
    other = account(
        sts_GetCallerIdentity={"Account": "210987654321", "Arn": "arn:aws:iam::210987654321:user/test"}
    )
    stranger = "the credentials are of 210987654321, the stack belongs to 123456789012"
    elsewhere = "a stack 'test' is in eu-west-1: gpu-fleet-test-records-123456789012 exists"
    away, here = (account(s3_HeadBucket={"BucketRegion": region}) for region in ("eu-west-1", "us-east-1"))
    off, dying = (account(kms_DescribeKey=key_is(state)) for state in ("Disabled", "PendingDeletion"))
    of_key = "--region us-east-1 --key-id k-1"
    unseen = account(budgets_DescribeBudgets=Refusal())
    rows = (
        Row("account", PROBLEM, stranger, other),
        Row("name", PROBLEM, elsewhere, away),
        Row("name", FINE, "", here),
        Row("name", UNCHECKED, "", account(s3_HeadBucket=Refusal("403", "Forbidden"))),
        Row("key", PROBLEM, "is Disabled", off, remedy=f"aws kms enable-key {of_key}"),
        Row("key", PROBLEM, "is PendingDeletion", dying, remedy=f"aws kms cancel-key-deletion {of_key}"),
        Row("budget", UNCHECKED, "could not be checked: denied budgets:ViewBudget", unseen),
    )

    assert wrong_of(*rows) == []


def verified(*identities: str, **of_account: bool) -> Account:
    def answer(params):
        known = params["EmailIdentity"] in identities
        return {"VerifiedForSendingStatus": True} if known else Refusal("NotFoundException", "no identity")

    sends = {"SendingEnabled": True, "ProductionAccessEnabled": True} | of_account
    return account(sesv2_GetEmailIdentity=answer, sesv2_GetAccount=sends)


def test_a_sender_is_verified_and_may_mail_anybody():
    mailing = stack(notify={"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"})
    rows = about(
        "sender",
        mailing,
        (FINE, "fleet@mail.example.com is verified", verified("fleet@mail.example.com")),
        (FINE, "mail.example.com is verified", verified("mail.example.com")),
        (PROBLEM, "neither fleet@mail.example.com nor its domain", verified("example.com")),
        (PROBLEM, "sandbox", verified("mail.example.com", ProductionAccessEnabled=False)),
        (PROBLEM, "paused", verified("mail.example.com", SendingEnabled=False)),
    )

    assert wrong_of(*rows) == []


def secret(answer: Any) -> Account:
    def key(params):
        return {"KeyMetadata": {"KeyId": params["KeyId"], "KeyState": "Enabled"}}

    return account(secretsmanager_DescribeSecret=answer, kms_DescribeKey=key)


def test_a_webhooks_secret_is_there_under_a_key_that_the_sweep_may_use_and_not_read():
    posting = stack(notify={"webhooks": [{"kind": "slack", "secret": "rooms/vision"}]})
    deleted = {"DeletedDate": datetime(2026, 11, 1, tzinfo=UTC)}
    missing = Refusal("ResourceNotFoundException", "no")
    rows = about(
        "webhook rooms/vision",
        posting,
        (FINE, "its secret exists", secret({"Name": "rooms/vision"})),
        (FINE, "its secret exists", secret({"KmsKeyId": "alias/gpu-fleet-test"})),
        (PROBLEM, "the sweep may not use", secret({"KmsKeyId": "alias/other"})),
        (PROBLEM, "is being deleted", secret(deleted)),
        (PROBLEM, "there is no secret rooms/vision", secret(missing)),
        (UNCHECKED, "secretsmanager:DescribeSecret", secret(Refusal())),
    )

    assert wrong_of(*rows) == []
    assert "secretsmanager:GetSecretValue" not in {name for row in rows for name, _ in row.account.asked}


# the command


def run(name: str, cloud: Account, monkeypatch):
    monkeypatch.setattr(aws, "clients_in", lambda region, emulator: cloud.client)
    return CliRunner().invoke(preflight, [name])


def test_the_exit_code_says_whether_there_is_room(monkeypatch):
    for cloud, code in (
        (account(ssm_GetParameter={"Parameter": {"Value": AMI}}), 0),
        (account(ssm_GetParameter=Refusal()), 3),
        (account(1, ssm_GetParameter=Refusal()), 1),
        (Account({}), 3),
    ):
        done = run("aws-dev", cloud, monkeypatch)
        assert done.exit_code == code
        nobody = "could not be checked, so nothing else was: Could not connect to the endpoint"
        assert (nobody in done.output) == (not cloud.answers)


def test_every_problem_is_reported_at_once_with_what_to_do(monkeypatch):
    disabled = {"ec2_DescribeInstanceTypeOfferings": offers(), "kms_DescribeKey": key_is("Disabled")}
    cloud = account(allowed=1, ssm_GetParameter=Refusal(), **disabled)

    done = run("aws-prod", cloud, monkeypatch)

    text = " ".join(done.output.split())
    parts = (
        "--quota-code L-DB2E81BA --desired-value 64",
        "--quota-code L-7212CCBC --desired-value 384",
        "types of train: name other types",
        "aws kms enable-key",
        "could not be checked: denied ssm:GetParameter",
        "aws-prod: ",
    )
    assert [part for part in parts if part not in text] == []
    assert "Traceback" not in done.output


def test_against_moto_whatever_it_knows_is_answered():
    """moto has no EC2 quotas; it answers everything else for the local stack."""
    local = stack_files.settings_of("local")
    with environment({"MOTO_EC2_LOAD_DEFAULT_AMIS": "true"}), moto_server(local.region):
        answers = {each.subject: each.rating for each in aws.look(local, clients_in(local.region))}

    assert {rating for subject, rating in answers.items() if subject.startswith("vCPUs")} == {UNCHECKED}
    known = ("account", "VPCs", "types of shared", "image", "key")
    assert {subject: answers[subject] for subject in known} == dict.fromkeys(known, FINE)


MADE = datetime(2026, 11, 26, tzinfo=UTC)
DAY = timedelta(days=1)


def test_instances_that_are_older_than_the_user_role_of_their_pool_are_named():
    def started(name: str, pool_name: str, at: datetime, **more: Any) -> dict[str, Any]:
        pool_tag = {"Key": "gpu-fleet:pool", "Value": pool_name}
        return {"InstanceId": name, "LaunchTime": at, "Tags": [*tagged("test")["Tags"], pool_tag], **more}

    disk = [{"Ebs": {"AttachTime": MADE - DAY}}]
    running = [
        started("i-old", "dev", MADE - DAY),
        started("i-started-anew", "dev", MADE + DAY, BlockDeviceMappings=disk),
        started("i-new", "dev", MADE + DAY),
        started("i-of-a-pool-without", "dev-large", MADE + DAY),
    ]
    role = {"Path": "/", "RoleName": "gpu-fleet-test-dev-user-0a1b2c3", "RoleId": "AROA0123456789ABCDEF"}
    roles = [role | {"Arn": f"arn:aws:iam::{ID}:role/{role['RoleName']}", "CreateDate": MADE}]
    there = {"ec2_DescribeInstances": {"Reservations": [{"Instances": running}]}}
    cloud = account(**there, iam_ListRoles={"Roles": roles})
    old = found(stack(pools=[pool(), pool(name="dev-large")]), cloud)["instances"]

    assert old.rating is PROBLEM
    assert old.says.startswith("i-of-a-pool-without, i-old, i-started-anew: older than the user role")
