"""A stack with a queue: its additional resources, which a stack without a queue does not have."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import written
from gpu_fleet_image.slurm import accounting, configuration
from gpu_fleet_stacks.aws import firewall
from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack, people, queue_rules
from gpu_fleet_stacks.settings.quantities import HOURS_PER_MONTH, Level
from tests.stacks import alicloud_examples, examples, iam, ram
from tests.stacks.alicloud_programs import ACCESS, STORAGE
from tests.stacks.clouds import WORDS, Cloud, Words
from tests.stacks.iam import Request, Verdict
from tests.stacks.registered import files_of, named
from tests.stacks.registrations import declared, stood

CONTROLLER, NODE, USER = "gpu-fleet-test-queue", "gpu-fleet-test-train-instance", "gpu-fleet-test-train-user"
INTERFACE = "aws:ec2/networkInterface:NetworkInterface"
INSTANCE = "alicloud:ecs/instance:Instance"


@dataclass(frozen=True)
class Side:
    """A stack on one cloud.

    Attributes:
        without: the changes that make a stack with users and homes; a queue is one more.
        service: of objects, as in ``s3:GetObject``, and of secrets.
        records: what the ARN of an object of the records begins with.
    """

    cloud: Cloud
    make: Callable[..., Stack]
    register: Callable[[Stack], Rehearsed]
    decide: Callable[..., Verdict]
    without: dict[str, Any]
    image: str
    template: str
    secret: str
    services: tuple[str, str]
    records: str
    forbidden: tuple[str, ...]

    @property
    def words(self) -> Words:
        return WORDS[self.cloud]

    def stack(self, queue: str = "slurm", **changes: Any) -> Stack:
        return self.make(**{**self.without, "queue": queue, **changes})

    def may(self, found: Rehearsed, role: str, action: str, on: str = "*") -> bool:
        """Judge a role's action; a name without a service is of the cloud's objects or its secrets."""
        if ":" not in action:
            action = f"{self.services['Secret' in action]}:{action}"
        document = named(found, self.words.role_policy, role).inputs[self.words.document]
        return self.allows(document, action, on)

    def allows(self, document: str, action: str, on: str) -> bool:
        return self.decide(Request(action, on, context={}), identity=[document]) is Verdict.ALLOWED


AWS = Side(
    Cloud.AWS,
    examples.stack,
    stood,
    iam.decide,
    without={
        "storage": {"home": True},
        "access": {"people": {"ada": {"uid": 5001}}},
        "pools": [
            examples.pool(name="train", types=["g5.xlarge"], size={"min": 0, "desired": 0, "max": 4}),
            examples.pool(name="big", types=["g5.48xlarge"], size={"min": 0, "desired": 0, "max": 1}),
        ],
    },
    image="ami-0123456789abcdef0",
    template="aws:ec2/launchTemplate:LaunchTemplate",
    secret="aws:secretsmanager/secret:Secret",
    services=("s3", "secretsmanager"),
    records="arn:aws:s3:::gpu-fleet-test-records-123456789012",
    forbidden=(
        *("ec2:TerminateInstances", "ec2:StopInstances", "ec2:CreateTags"),
        *("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"),
    ),
)
ALICLOUD = Side(
    Cloud.ALICLOUD,
    alicloud_examples.stack,
    declared,
    ram.decide,
    without={
        "storage": STORAGE | {"home": True},
        "access": ACCESS,
        "pools": [
            alicloud_examples.pool(name="train", size={"min": 0, "desired": 0, "max": 4}),
            alicloud_examples.pool(
                name="big", types=["ecs.gn7i-c16g1.4xlarge"], size={"min": 0, "desired": 0, "max": 1}
            ),
        ],
    },
    image="m-wz90000000000000000",
    template="alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
    secret="alicloud:kms/secret:Secret",
    services=("oss", "kms"),
    records="acs:oss:*:1234567890123456:gpu-fleet-test-records-1234567890123456",
    forbidden=(
        *("ecs:DeleteInstances", "ecs:StopInstances", "ecs:TagResources", "ecs:RunInstances"),
        *("ess:ScaleWithAdjustment", "ess:ModifyScalingGroup", "ess:DetachInstances"),
    ),
)
SIDES = {"aws": AWS, "alicloud": ALICLOUD}
QUEUED = {**AWS.without, "queue": "slurm"}


@pytest.fixture(params=SIDES)
def side(request) -> Side:
    return SIDES[request.param]


@pytest.fixture
def queued(side) -> Rehearsed:
    return side.register(side.stack())


@pytest.fixture
def without(side) -> Rehearsed:
    return side.register(side.stack(queue="none"))


def test_a_stack_without_a_queue_declares_nothing_of_it_and_gives_no_key_to_anybody(side, without):
    plain = side.make(**side.without)

    assert side.stack(queue="none") == plain
    assert [made.name for made in without.registrations if made.name.startswith(CONTROLLER)] == []
    assert without.of_type(side.secret) == ()
    for template in without.of_type(side.template):
        assert "/etc/gpu-fleet/queue.json" not in files_of(template)
    assert "queue_gpus" not in sweep_policy.policy_text(plain)
    policies = [made.inputs[side.words.document] for made in without.of_type(side.words.role_policy)]
    services = f"{side.services[1]}:GetSecretValue"
    assert [policy for policy in policies if services in policy] == []


def test_a_queue_only_adds_to_what_a_stack_has(queued, without):
    assert {made.urn for made in without.registrations} < {made.urn for made in queued.registrations}


def test_every_instance_learns_the_controllers_address_and_no_key(side, queued):
    (secret,) = queued.of_type(side.secret)
    if side is AWS:
        name, address = secret.outputs["name"], queued.of_type(INTERFACE)[0].outputs["privateIp"]
        assert queued.of_type("aws:secretsmanager/secretVersion:SecretVersion") == ()
    else:
        name = secret.inputs["secretName"]
        address = named(queued, INSTANCE, CONTROLLER).inputs["privateIp"]
    roles = {}

    for template in queued.of_type(side.template):
        said = json.loads(files_of(template)["/etc/gpu-fleet/queue.json"])
        roles[template.name] = said.pop("role")
        assert said == {"address": address, "secret": name}
    nodes = ("gpu-fleet-test-train-template", "gpu-fleet-test-big-template")
    assert roles == {CONTROLLER: "controller"} | dict.fromkeys(nodes, "node")


def test_the_controller_is_no_instance_of_the_reapers(side, queued):
    kinds = ("aws:autoscaling/group:Group",) if side is AWS else (INSTANCE, side.template)
    for kind in kinds:
        tags = named(queued, kind, CONTROLLER).inputs["tags"]
        tags = {tag["key"]: tag["value"] for tag in tags} if side is AWS else tags
        assert tags["gpu-fleet:stack"] == "test"
        assert not {"gpu-fleet:managed", "gpu-fleet:pool"} & tags.keys()


def test_each_role_does_with_key_and_records_of_a_queue_what_it_must_and_no_more(side, queued, without):
    (secret,) = queued.of_type(side.secret)
    key, records, mover = secret.outputs["arn"], side.records, "gpu-fleet-test-capacity"
    need, use = f"{records}/{keys.stored(keys.QUEUE_NEED)}", f"{records}/{keys.stored(keys.QUEUE_USE)}/1.json"
    # of jobs, whether an instance may come at all, and why none comes
    jobs, growth, state = (
        f"{records}/reaper/{name}.json" for name in ("queue/jobs", "capacity/growth", "capacity/state")
    )
    why = [state] if side is AWS else []
    # else S3 answers "denied" for a record that is missing, and nobody could tell them apart
    listing = "ListBucket" if side is AWS else "ListObjects"
    may = [
        *((role, "GetSecretValue", key) for role in (CONTROLLER, NODE)),
        (CONTROLLER, "PutSecretValue", key),
        *((CONTROLLER, "PutObject", place) for place in (need, use, jobs)),
        *((CONTROLLER, "GetObject", place) for place in (use, growth)),
        *((CONTROLLER, listing, records), (mover, "GetObject", need), (mover, "PutObject", growth)),
        *((USER, "GetObject", place) for place in (jobs, growth, *why)),
    ]
    may_not = [
        *((role, "GetSecretValue", key.replace("munge", "other")) for role in (CONTROLLER, NODE)),
        *((NODE, "PutSecretValue", key), (NODE, "PutObject", need)),
        *((role, "PutObject", use) for role in (NODE, USER)),
        *((CONTROLLER, "PutObject", place) for place in (growth, f"{records}/reaper/policy.json")),
        *((USER, "PutObject", place) for place in (jobs, growth, *why)),
        *((CONTROLLER, action, "*") for action in side.forbidden),
    ]

    assert [right for right in may if not side.may(queued, *right)] == []
    assert [right for right in may_not if side.may(queued, *right)] == []
    assert [place for place in (jobs, *why) if side.may(without, USER, "GetObject", place)] == []
    get = f"{side.services[0]}:GetObject"
    users = [made.outputs["people_policy"] for made in (queued, without)]
    assert [side.allows(policy, get, jobs) for policy in users] == [True, False]


def test_the_mover_learns_which_pools_the_queue_fills(side):
    pools = written(sweep_policy.policy(side.stack()))["pools"]

    counted = {
        name: [pool["capacity"][f"queue_{what}"] for what in ("gpus", "cpus", "memory_mib")]
        for name, pool in pools.items()
    }
    if side is AWS:  # of g5.xlarge's 16 GiB and of g5.48xlarge's 768 GiB what Slurm finds at least
        assert counted == {"train": [1, 4, 15_564], "big": [8, 192, 747_110]}
    else:
        assert {name: gpus for name, (gpus, *_) in counted.items()} == {"train": 1, "big": 1}


def test_the_controller_has_its_price(side):
    """On Alibaba Cloud a stack file assumes it, as no public list in CNY has it."""
    before, after = (estimate(side.stack(queue=queue)) for queue in ("none", "slurm"))

    hour, gib = (Decimal("0.0416"), Decimal("0.08")) if side is AWS else (Decimal("2.5"), Decimal("2.5"))
    more = after.month(Level.MIN).worst.amount - before.month(Level.MIN).worst.amount
    assert more == hour * HOURS_PER_MONTH + gib * 100


def refusal(side: Side, **changes: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        side.stack(**changes)
    return str(caught.value)


def test_what_a_queue_cannot_do_without_is_named(side):
    pool, zone = (examples.pool, "us-east-1a") if side is AWS else (alicloud_examples.pool, "cn-shenzhen-d")
    of_aws = {"types": ["p4d.24xlarge"], "efa": True}
    spread = of_aws if side is AWS else {"types": ["ecs.gn8v-8x.48xlarge"], "erdma": True}
    shut = {"cidr": "10.0.0.0/16", "zones": [zone], "nat": "none", "interface_endpoints": True}
    homeless = {key: value for key, value in side.without["storage"].items() if key != "home"}
    table = (
        ({"storage": homeless}, "storage.home = false: must be true where queue is slurm"),
        ({"access": {}}, "access.people = {}: must name users where queue is slurm"),
        ({"image": {"id": side.image, "mode": "none"}}, "image.mode = 'none': must be bootstrap"),
        ({"pools": [pool(name="queue")]}, "pools[0].name = 'queue': is reserved by the queue"),
        ({"pools": [pool(**spread)]}, "must be one zone where queue is slurm"),
        ({"network": shut}, "network.nat = 'none': must lead to the internet where queue is slurm"),
    )

    assert [says for changes, says in table if says not in refusal(side, **changes)] == []


# AWS


def test_the_controller_is_one_instance_behind_an_address_that_stays():
    queued = stood(AWS.stack())
    group = named(queued, "aws:autoscaling/group:Group", CONTROLLER)
    template = named(queued, AWS.template, CONTROLLER)
    (interface,) = queued.of_type(INTERFACE)

    assert [group.inputs[key] for key in ("minSize", "maxSize", "desiredCapacity")] == [1, 1, 1]
    assert group.inputs["availabilityZones"] == ["us-east-1a"]
    assert "vpcZoneIdentifiers" not in group.inputs
    (card,) = template.inputs["networkInterfaces"]
    assert (card["networkInterfaceId"], card["deleteOnTermination"]) == (interface.id, "false")
    assert template.inputs["metadataOptions"]["httpTokens"] == "required"
    assert template.inputs["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"


def test_ports_are_open_by_group_and_as_slurm_has_them():
    rules = [rule for rule in firewall.rules(AWS.stack()) if "queue" in (rule.group, rule.peer)]
    ways = {
        (rule.group, rule.peer, rule.ports) for rule in rules if rule.egress and rule.peer != "10.0.0.0/16"
    }

    assert ("train", "queue", (configuration.CONTROLLER_PORT,) * 2) in ways
    assert ("train", "queue", (configuration.DATABASE_PORT,) * 2) in ways
    assert ("queue", "train", (configuration.NODE_PORT,) * 2) in ways
    assert ("queue", "big", configuration.SRUN_PORTS) in ways
    incoming = {(rule.peer, rule.group, rule.ports) for rule in rules if not rule.egress}
    assert [peer for peer, _, _ in incoming if "/" in peer] == []
    assert {way for way in ways if "/" not in way[1]} == incoming


def test_what_a_queue_and_its_teams_cannot_be_is_named():
    big = AWS.without["pools"][1:]
    nobody = "teams = 'noteam': has no members: it is neither in access.people nor in access.directory"
    sliced = examples.pool(types=["p4d.24xlarge"], mig_profile="1g.5gb")
    table = (
        ({"queue": "pbs"}, "queue = 'pbs'"),
        ({"queue": "none", "teams": {"no-team": {"share": 2}}}, "share = 2: is for queue: slurm only"),
        (
            {"queue": "none", "teams": {"no-team": {"on_exceeded": "freeze"}}},
            "teams.no-team.monthly = null: required without queue: slurm",
        ),
        ({"queue": "none", "teams": {"noteam": {"monthly": 9}}}, nobody),
        ({"teams": {"no-team": {"on_exceeded": "freeze"}}}, "'freeze': needs teams.no-team.monthly"),
        ({"teams": {"noteam": {}}}, nobody),
        ({"teams": {"no-team": {"share": 0}}}, "teams.no-team.share = 0"),
        ({"pools": big, "teams": {"no-team": {"max_gpus": 7}}}, "no-team.max_gpus = 7: must be 8 or more"),
        ({"pools": [examples.pool(name="default")]}, "pools[0].name = 'default'"),
        ({"pools": [sliced]}, "mig_profile = '1g.5gb': must be left out where queue is slurm"),
    )

    assert [says for changes, says in table if says not in refusal(AWS, **changes)] == []


def test_a_pool_may_have_any_of_these_names_without_a_queue():
    assert examples.stack(pools=[examples.pool(name="queue"), examples.pool(name="default")]).pools


def test_shares_and_limits_of_teams_reach_the_controller_with_the_accounts():
    said = json.loads(people.roster_text(AWS.stack(teams={"no-team": {"max_gpus": 8}})))

    assert accounting.limits_of(said) == {"no-team": accounting.TeamLimits(1, 8)}
    assert "teams" not in json.loads(people.roster_text(AWS.stack()))
    assert queue_rules.WITHOUT_TEAM == accounting.WITHOUT_TEAM
