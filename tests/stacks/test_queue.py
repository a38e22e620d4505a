"""A stack with a queue: what it declares beside the rest, and what a stack without one does not."""

import json
from decimal import Decimal

import pytest

from image.queue import accounting, configuration
from stacks.aws import firewall
from stacks.cost.estimate import estimate
from stacks.errors import SettingsError
from stacks.payload import sweep_archive
from stacks.settings import people, queue_rules
from stacks.settings.quantities import Level
from tests.stacks import examples
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.registered import files_of, named
from tests.stacks.registrations import stood

PEOPLE = {"people": {"ada": {"uid": 5001}}}
POOLS = [
    examples.pool(name="train", types=["g5.xlarge"], size={"min": 0, "desired": 0, "max": 4}),
    examples.pool(name="big", types=["g5.48xlarge"], size={"min": 0, "desired": 0, "max": 1}),
]
WITHOUT = {"storage": {"home": True}, "access": PEOPLE, "pools": POOLS}
QUEUED = {**WITHOUT, "queue": "slurm"}
TEMPLATE, GROUP = "aws:ec2/launchTemplate:LaunchTemplate", "aws:autoscaling/group:Group"
INTERFACE, SECRET = "aws:ec2/networkInterface:NetworkInterface", "aws:secretsmanager/secret:Secret"


@pytest.fixture
def queued():
    return stood(examples.stack(**QUEUED))


@pytest.fixture
def without():
    return stood(examples.stack(**WITHOUT))


def test_a_stack_without_a_queue_declares_nothing_of_it(without):
    names = [made.name for made in without.registrations]

    assert not [name for name in names if name.startswith("gpu-fleet-test-queue")]
    assert without.of_type(SECRET) == ()
    for template in without.of_type(TEMPLATE):
        assert "/etc/gpu-fleet/queue.json" not in files_of(template)
    assert "queue_gpus" not in sweep_archive.policy_text(examples.stack(**WITHOUT))


def test_none_is_the_same_as_leaving_it_out():
    assert examples.stack(**WITHOUT, queue="none") == examples.stack(**WITHOUT)


def test_the_controller_is_one_instance_behind_an_address_that_stays(queued):
    group, template = (
        named(queued, GROUP, "gpu-fleet-test-queue"),
        named(queued, TEMPLATE, "gpu-fleet-test-queue"),
    )
    (interface,) = queued.of_type(INTERFACE)

    sizes = [group.inputs[key] for key in ("minSize", "maxSize", "desiredCapacity")]
    assert sizes == [1, 1, 1]
    assert group.inputs["availabilityZones"] == ["us-east-1a"]
    assert "vpcZoneIdentifiers" not in group.inputs
    (card,) = template.inputs["networkInterfaces"]
    assert card["networkInterfaceId"] == interface.id
    assert card["deleteOnTermination"] == "false"
    assert template.inputs["metadataOptions"]["httpTokens"] == "required"
    assert template.inputs["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"


def test_every_instance_learns_the_controllers_address_and_no_key(queued):
    (interface,), (secret,) = queued.of_type(INTERFACE), queued.of_type(SECRET)
    roles = {}

    for template in queued.of_type(TEMPLATE):
        said = json.loads(files_of(template)["/etc/gpu-fleet/queue.json"])
        roles[template.name] = said.pop("role")
        assert said == {"address": interface.outputs["privateIp"], "secret": secret.outputs["name"]}
    assert roles == {
        "gpu-fleet-test-queue": "controller",
        "gpu-fleet-test-train-template": "node",
        "gpu-fleet-test-big-template": "node",
    }
    assert queued.of_type("aws:secretsmanager/secretVersion:SecretVersion") == ()


def test_the_controller_is_no_instance_of_the_reapers(queued):
    group = named(queued, GROUP, "gpu-fleet-test-queue")
    tags = {tag["key"]: tag["value"] for tag in group.inputs["tags"]}

    assert tags["gpu-fleet:stack"] == "test"
    assert not {"gpu-fleet:managed", "gpu-fleet:pool"} & tags.keys()


def policy_of(rehearsed, name):
    made = named(rehearsed, "aws:iam/rolePolicy:RolePolicy", name)
    return json.loads(made.inputs["policy"])


def allowed(rehearsed, role, action, resource="*", **context):
    request = Request(action, resource, context=context)
    return decide(request, identity=[json.dumps(policy_of(rehearsed, role))]) is Verdict.ALLOWED


def test_only_the_controller_writes_the_key_and_asks_the_mover(queued):
    (secret,) = queued.of_type(SECRET)
    need = "arn:aws:s3:::gpu-fleet-test-records-123456789012/reaper/capacity/queue.json"
    controller, node = "gpu-fleet-test-queue", "gpu-fleet-test-train-instance"

    for role, writes in ((controller, True), (node, False)):
        assert allowed(queued, role, "secretsmanager:GetSecretValue", secret.id)
        assert allowed(queued, role, "secretsmanager:PutSecretValue", secret.id) is writes
        assert allowed(queued, role, "s3:PutObject", need) is writes
    other = secret.id.replace("munge", "other")
    assert not allowed(queued, controller, "secretsmanager:GetSecretValue", other)


def test_users_read_of_jobs_here_and_elsewhere_what_the_controller_alone_writes(queued, without):
    jobs = "arn:aws:s3:::gpu-fleet-test-records-123456789012/reaper/queue/jobs.json"
    controller, user = "gpu-fleet-test-queue", "gpu-fleet-test-train-user"
    users = [made.outputs["people_policy"] for made in (queued, without)]

    assert allowed(queued, controller, "s3:PutObject", jobs)
    assert not allowed(queued, user, "s3:PutObject", jobs)
    assert allowed(queued, user, "s3:GetObject", jobs)
    assert not allowed(without, user, "s3:GetObject", jobs)
    # whether one may come at all
    growth = jobs.replace("queue/jobs", "capacity/growth")
    for role in (controller, user):
        assert allowed(queued, role, "s3:GetObject", growth)
        assert not allowed(queued, role, "s3:PutObject", growth)
    assert allowed(queued, "gpu-fleet-test-capacity", "s3:PutObject", growth)
    # why no instance comes
    state = jobs.replace("queue/jobs", "capacity/state")
    assert allowed(queued, user, "s3:GetObject", state)
    assert not allowed(queued, user, "s3:PutObject", state)
    assert not allowed(without, user, "s3:GetObject", state)
    asked = Request("s3:GetObject", jobs)
    read = [decide(asked, identity=[policy]) is Verdict.ALLOWED for policy in users]
    assert read == [True, False]


@pytest.mark.parametrize(
    "action",
    [
        *("ec2:TerminateInstances", "ec2:StopInstances", "ec2:CreateTags"),
        *("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"),
    ],
)
def test_the_controller_raises_and_ends_nothing(queued, action):
    assert not allowed(queued, "gpu-fleet-test-queue", action)


def test_a_stack_without_a_queue_gives_no_key_to_anybody(without):
    assert "secretsmanager" not in json.dumps(policy_of(without, "gpu-fleet-test-train-instance"))


def test_ports_are_open_by_group_and_as_slurm_has_them():
    rules = [rule for rule in firewall.rules(examples.stack(**QUEUED)) if "queue" in (rule.group, rule.peer)]
    ways = {
        (rule.group, rule.peer, rule.ports) for rule in rules if rule.egress and rule.peer != "10.0.0.0/16"
    }

    assert ("train", "queue", (configuration.CONTROLLER_PORT,) * 2) in ways
    assert ("train", "queue", (configuration.DATABASE_PORT,) * 2) in ways
    assert ("queue", "train", (configuration.NODE_PORT,) * 2) in ways
    assert ("queue", "big", configuration.SRUN_PORTS) in ways
    for rule in rules:
        if not rule.egress:
            assert "/" not in rule.peer
    incoming = {(rule.peer, rule.group, rule.ports) for rule in rules if not rule.egress}
    assert {way for way in ways if "/" not in way[1]} == incoming


def test_the_mover_learns_which_pools_the_queue_fills():
    pools = sweep_archive.policy_document(examples.stack(**QUEUED))["pools"]

    counted = {
        name: [pool["capacity"][f"queue_{what}"] for what in ("gpus", "cpus", "memory_mib")]
        for name, pool in pools.items()
    }
    # of g5.xlarge's 16 GiB and of g5.48xlarge's 768 GiB what Slurm finds at least
    assert counted == {"train": [1, 4, 15_564], "big": [8, 192, 747_110]}


def test_the_controller_has_its_price():
    before, after = (estimate(examples.stack(**changes)) for changes in (WITHOUT, QUEUED))

    more = after.month(Level.MIN).high.amount - before.month(Level.MIN).high.amount
    assert more == Decimal("0.0416") * 730 + Decimal("0.08") * 100


def problems(make=examples.stack, **changes) -> str:
    with pytest.raises(SettingsError) as caught:
        make(**{**QUEUED, **changes})
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"storage": {"home": False}}, "storage.home = False: must be true where queue is slurm"),
        ({"access": {}}, "access.people = {}: must name users where queue is slurm"),
        (
            {"image": {"id": "ami-0123456789abcdef0", "mode": "none"}},
            "image.mode = 'none': must be bootstrap",
        ),
        ({"queue": "pbs"}, "queue = 'pbs'"),
        (
            {"queue": "none", "teams": {"no-team": {"share": 2}}},
            "teams = ['no-team']: are of a queue",
        ),
        (
            {"teams": {"noteam": {}}},
            "teams.noteam = 'noteam': is a team of nobody: neither in access.people nor in access.directory",
        ),
        ({"teams": {"no-team": {"share": 0}}}, "teams.no-team.share = 0"),
        (
            {"pools": POOLS[1:], "teams": {"no-team": {"max_gpus": 7}}},
            "teams.no-team.max_gpus = 7: must be 8 or more",
        ),
        ({"pools": [examples.pool(name="queue")]}, "pools[0].name = 'queue': is a word of the queue's own"),
        ({"pools": [examples.pool(name="default")]}, "pools[0].name = 'default'"),
        (
            {"pools": [examples.pool(types=["p4d.24xlarge"], efa=True)]},
            "must be one zone where queue is slurm",
        ),
        (
            {"pools": [examples.pool(types=["p4d.24xlarge"], mig_profile="1g.5gb")]},
            "mig_profile = '1g.5gb': must be left out where queue is slurm",
        ),
        (
            {
                "network": {
                    "cidr": "10.0.0.0/16",
                    "zones": ["us-east-1a"],
                    "nat": "none",
                    "interface_endpoints": True,
                }
            },
            "network.nat = 'none': must lead to the internet where queue is slurm",
        ),
    ],
)
def test_what_a_queue_cannot_do_without_is_named(changes, says):
    assert says in problems(**changes)


def test_shares_and_limits_of_teams_reach_the_controller_with_the_accounts():
    said = json.loads(people.roster_text(examples.stack(**QUEUED, teams={"no-team": {"max_gpus": 8}})))

    assert accounting.limits_of(said) == {"no-team": accounting.TeamLimits(1, 8)}
    assert "teams" not in json.loads(people.roster_text(examples.stack(**QUEUED)))
    assert queue_rules.WITHOUT_TEAM == accounting.WITHOUT_TEAM


def test_a_pool_may_have_any_of_these_names_without_a_queue():
    assert examples.stack(pools=[examples.pool(name="queue"), examples.pool(name="default")]).pools
