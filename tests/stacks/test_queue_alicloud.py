"""A stack of Alibaba Cloud with a queue: what it declares beside the rest, and what one without does not."""

import ipaddress
import json
from decimal import Decimal

import pytest

from image.queue import configuration
from image.queue.alicloud import VERSION
from stacks.alicloud import firewall, queue
from stacks.alicloud.network import private_networks
from stacks.catalog import Cloud, prices
from stacks.catalog.refresh import alicloud as refresh
from stacks.cost.estimate import estimate
from stacks.errors import SettingsError
from stacks.payload import sweep_archive
from stacks.settings.quantities import HOURS_PER_MONTH, Level
from stacks.settings.reader import from_mapping
from tests.stacks.alicloud_examples import pool, stack, stack_file
from tests.stacks.alicloud_programs import ACCESS, STORAGE
from tests.stacks.iam import Request, Verdict
from tests.stacks.ram import decide
from tests.stacks.registered import files_of, named
from tests.stacks.registrations import declared

POOLS = [
    pool(name="train", size={"min": 0, "desired": 0, "max": 4}),
    pool(name="one", types=["ecs.gn7i-c16g1.4xlarge"], size={"min": 0, "desired": 0, "max": 1}),
]
WITHOUT = {"storage": STORAGE | {"home": True}, "access": ACCESS, "pools": POOLS}
QUEUED = {**WITHOUT, "queue": "slurm"}
INSTANCE, SECRET = "alicloud:ecs/instance:Instance", "alicloud:kms/secret:Secret"
TEMPLATE, POLICY = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "alicloud:ram/policy:Policy"
CONTROLLER, NODE = "gpu-fleet-test-queue", "gpu-fleet-test-train-instance"
USER = "gpu-fleet-test-train-user"


@pytest.fixture
def queued():
    return declared(stack(**QUEUED))


@pytest.fixture
def without():
    return declared(stack(**WITHOUT))


def test_a_stack_without_a_queue_declares_nothing_of_it(without):
    names = [made.name for made in without.registrations]

    assert not [name for name in names if name.startswith(CONTROLLER)]
    assert (without.of_type(SECRET), without.of_type(INSTANCE)) == ((), ())
    for template in without.of_type(TEMPLATE):
        assert "/etc/gpu-fleet/queue.json" not in files_of(template)
    assert "queue_gpus" not in sweep_archive.policy_text(stack(**WITHOUT))


def test_a_queue_only_adds_to_what_a_stack_has(queued, without):
    def declared(rehearsed):
        return {made.urn for made in rehearsed.registrations}

    assert declared(without) < declared(queued)


def test_the_controller_stands_at_an_address_that_no_other_instance_is_given(queued):
    instance = named(queued, INSTANCE, CONTROLLER)
    home = ipaddress.ip_network(private_networks(stack(**QUEUED))["cn-shenzhen-d"])
    address = ipaddress.ip_address(instance.inputs["privateIp"])

    assert address in home
    # the last three and the first are the cloud's own
    assert home.broadcast_address - 3 == address
    vswitches = [made for made in queued.of_type("alicloud:vpc/switch:Switch") if "private" in made.name]
    assert instance.inputs["vswitchId"] in {
        made.id for made in vswitches if made.inputs["cidrBlock"] == str(home)
    }


def test_pools_start_no_instance_before_the_controller_has_its_address(queued):
    instance = named(queued, INSTANCE, CONTROLLER)

    for template in queued.of_type(TEMPLATE):
        waits = instance.urn in template.dependencies
        assert waits is (template.name != CONTROLLER)


def test_the_controller_is_private_hardened_encrypted_and_restarted_elsewhere(queued):
    instance, template = named(queued, INSTANCE, CONTROLLER), named(queued, TEMPLATE, CONTROLLER)
    (key,) = queued.of_type("alicloud:kms/key:Key")

    assert instance.inputs["launchTemplateId"] == template.id
    assert instance.inputs["maintenanceAction"] == "AutoRecover"
    for made in (instance, template):
        assert made.inputs["internetMaxBandwidthOut"] == 0
        assert made.inputs["httpTokens"] == "required"
    assert template.inputs["systemDisk"]["encrypted"] is True
    assert template.inputs["systemDisk"]["kmsKeyId"] == key.id
    assert template.inputs["ramRoleName"] == CONTROLLER


def test_a_new_payload_or_image_leaves_the_running_controller_alone(queued):
    instance = named(queued, INSTANCE, CONTROLLER)

    assert not {"userData", "imageId", "launchTemplateVersion"} & instance.inputs.keys()
    assert named(queued, TEMPLATE, CONTROLLER).inputs["updateDefaultVersionNumber"] is True


@pytest.mark.parametrize("protected", [True, False])
def test_a_protected_stack_protects_its_controller_from_deletion(protected):
    storage = QUEUED["storage"] | {"redundancy": "ZRS"}
    found = declared(stack(**QUEUED | {"storage": storage}, protected=protected))

    assert named(found, INSTANCE, CONTROLLER).inputs["deletionProtection"] is protected


def test_the_secret_is_declared_with_a_sentence_that_is_no_key_and_stays_current(queued):
    (secret,) = queued.of_type(SECRET)
    (key,) = queued.of_type("alicloud:kms/key:Key")

    assert secret.inputs["encryptionKeyId"] == key.id
    assert secret.inputs["secretName"] == f"{CONTROLLER}-munge"
    # what Pulumi reads back is the current version: this one, and not that of the key
    assert secret.inputs["versionId"] == queue.NO_KEY_VERSION != VERSION
    assert secret.inputs["secretData"] == queue.NO_KEY
    assert "versionStages" not in secret.inputs


def test_every_instance_learns_the_controllers_address_and_no_key(queued):
    instance, (secret,) = named(queued, INSTANCE, CONTROLLER), queued.of_type(SECRET)
    roles = {}

    for template in queued.of_type(TEMPLATE):
        said = json.loads(files_of(template)["/etc/gpu-fleet/queue.json"])
        roles[template.name] = said.pop("role")
        assert said == {"address": instance.inputs["privateIp"], "secret": secret.inputs["secretName"]}
    assert roles == {
        CONTROLLER: "controller",
        "gpu-fleet-test-train-template": "node",
        "gpu-fleet-test-one-template": "node",
    }


def test_the_controller_is_no_instance_of_the_reapers(queued):
    for kind in (INSTANCE, TEMPLATE):
        tags = named(queued, kind, CONTROLLER).inputs["tags"]
        assert tags["gpu-fleet:stack"] == "test"
        assert not {"gpu-fleet:managed", "gpu-fleet:pool"} & tags.keys()


def allowed(rehearsed, role, action, resource="*"):
    document = named(rehearsed, POLICY, role).inputs["policyDocument"]
    return decide(Request(action, resource, context={}), identity=[document]) is Verdict.ALLOWED


def test_only_the_controller_writes_the_key_and_asks_the_mover(queued):
    (secret,) = queued.of_type(SECRET)
    arn = secret.outputs["arn"]
    bucket = "acs:oss:*:1234567890123456:gpu-fleet-test-records-1234567890123456"

    for role, writes in ((CONTROLLER, True), (NODE, False)):
        assert allowed(queued, role, "kms:GetSecretValue", arn)
        assert allowed(queued, role, "kms:PutSecretValue", arn) is writes
        assert allowed(queued, role, "oss:PutObject", f"{bucket}/{sweep_archive.QUEUE_NEED_KEY}") is writes
        assert not allowed(queued, role, "kms:GetSecretValue", f"{arn}-other")
    assert not allowed(queued, CONTROLLER, "oss:PutObject", f"{bucket}/reaper/policy.json")
    mover = "gpu-fleet-test-capacity"
    assert allowed(queued, mover, "oss:GetObject", f"{bucket}/{sweep_archive.QUEUE_NEED_KEY}")


def test_users_read_of_jobs_here_and_elsewhere_what_the_controller_alone_writes(queued, without):
    jobs = "acs:oss:*:1234567890123456:gpu-fleet-test-records-1234567890123456/reaper/queue/jobs.json"
    users = [made.outputs["people_policy"] for made in (queued, without)]

    assert allowed(queued, CONTROLLER, "oss:PutObject", jobs)
    assert not allowed(queued, USER, "oss:PutObject", jobs)
    assert allowed(queued, USER, "oss:GetObject", jobs)
    assert not allowed(without, USER, "oss:GetObject", jobs)
    # whether an instance may come at all
    growth = jobs.replace("queue/jobs", "capacity/growth")
    for role in (CONTROLLER, USER):
        assert allowed(queued, role, "oss:GetObject", growth)
        assert not allowed(queued, role, "oss:PutObject", growth)
    assert allowed(queued, "gpu-fleet-test-capacity", "oss:PutObject", growth)
    asked = Request("oss:GetObject", jobs, context={})
    read = [decide(asked, identity=[policy]) is Verdict.ALLOWED for policy in users]
    assert read == [True, False]


@pytest.mark.parametrize(
    "action",
    [
        *("ecs:DeleteInstances", "ecs:StopInstances", "ecs:TagResources", "ecs:RunInstances"),
        *("ess:ScaleWithAdjustment", "ess:ModifyScalingGroup", "ess:DetachInstances"),
    ],
)
def test_the_controller_raises_and_ends_nothing(queued, action):
    assert not allowed(queued, CONTROLLER, action)


def test_a_stack_without_a_queue_gives_no_key_to_anybody(without):
    assert not [
        policy.name for policy in without.of_type(POLICY) if "Secret" in policy.inputs["policyDocument"]
    ]


def rules_of(settings):
    return firewall.rules(settings, private_networks(settings))


def reaches(rules, client, server, ports, networks):
    """Whether a way is open at both ends, by rules that name vSwitches alone."""
    (client_group, client_net), (server_group, server_net) = client, server

    def opened(group, peer, *, egress):
        return any(
            rule.group == group
            and rule.egress is egress
            and rule.peer == peer
            and (rule.ports is None or (rule.protocol == "tcp" and rule.ports == ports))
            for rule in rules
        )

    return opened(client_group, networks[server_net], egress=True) and opened(
        server_group, networks[client_net], egress=False
    )


@pytest.mark.parametrize("zone", ["cn-shenzhen-d", "cn-shenzhen-e"])
@pytest.mark.parametrize("most", [1, 4])
def test_controller_and_nodes_reach_each_other_by_slurms_ports_in_whatever_zone_they_are(zone, most):
    pools = [pool(name="train", zones=[zone], size={"min": 0, "desired": 0, "max": most})]
    settings = stack(**QUEUED | {"pools": pools})
    rules, networks = rules_of(settings), private_networks(settings)
    controller, node = ("queue", "cn-shenzhen-d"), ("train", zone)

    assert reaches(rules, node, controller, (configuration.CONTROLLER_PORT,) * 2, networks)
    assert reaches(rules, node, controller, (configuration.DATABASE_PORT,) * 2, networks)
    assert reaches(rules, controller, node, (configuration.NODE_PORT,) * 2, networks)
    assert reaches(rules, controller, node, configuration.SRUN_PORTS, networks)
    assert not reaches(rules, node, controller, (firewall.SSH,) * 2, networks)


def test_the_controller_takes_nothing_from_outside_and_reaches_the_homes():
    settings = stack(**QUEUED)
    own = [rule for rule in rules_of(settings) if rule.group == firewall.QUEUE]
    inside = set(private_networks(settings).values())

    assert {(rule.ports, rule.peer) for rule in own if not rule.egress} == {
        ((port, port), network)
        for port in (configuration.CONTROLLER_PORT, configuration.DATABASE_PORT)
        for network in inside
    }
    assert inside <= {rule.peer for rule in own if rule.egress and rule.ports == (firewall.NFS,) * 2}


def test_no_two_rules_have_one_name():
    labels = [rule.label for rule in rules_of(stack(**QUEUED))]

    assert sorted(set(labels)) == sorted(labels)


def test_the_mover_learns_which_pools_the_queue_fills():
    pools = sweep_archive.policy_document(stack(**QUEUED))["pools"]

    assert {name: part["capacity"]["queue_gpus"] for name, part in pools.items()} == {"train": 1, "one": 1}


def test_the_controller_counts_at_the_price_that_the_stack_assumes():
    """No public list in CNY has it; ``gpu-fleet catalog refresh`` asks the API for it."""
    before, after = (estimate(stack(**changes)) for changes in (WITHOUT, QUEUED))

    more = after.month(Level.MIN).high.amount - before.month(Level.MIN).high.amount
    gib = 100  # of its disk, at an assumed price too
    assert more == Decimal("2.5") * (HOURS_PER_MONTH + gib)


def test_the_price_that_is_asked_for_is_of_the_type_that_is_declared(queued):
    assert named(queued, TEMPLATE, CONTROLLER).inputs["instanceType"] == refresh.CONTROLLER
    assert refresh.CONTROLLER in prices.load(Cloud.ALICLOUD).quotes["queue_controller"].unit


def test_a_price_in_no_list_must_be_named_in_the_stack_file():
    with pytest.raises(
        SettingsError, match=r"queue = 'slurm': .*budget\.assume: \{queue_controller: \.\.\.\}"
    ):
        from_mapping("test", stack_file(**QUEUED))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"storage": STORAGE}, "storage.home = False: must be true where queue is slurm"),
        ({"access": {}}, "access.people = {}: must name users where queue is slurm"),
        (
            {"image": {"id": "m-wz90000000000000000", "mode": "none"}},
            "image.mode = 'none': must be bootstrap",
        ),
        ({"pools": [pool(name="queue")]}, "pools[0].name = 'queue': is a word of the queue's own"),
        (
            {"pools": [pool(name="cluster", types=["ecs.gn8v-8x.48xlarge"], erdma=True)]},
            "must be one zone where queue is slurm and erdma is on",
        ),
        (
            {
                "network": {
                    "cidr": "10.0.0.0/16",
                    "zones": ["cn-shenzhen-d"],
                    "nat": "none",
                    "interface_endpoints": True,
                }
            },
            "network.nat = 'none': must lead to the internet where queue is slurm",
        ),
    ],
)
def test_what_a_queue_cannot_do_without_is_named(changes, says):
    with pytest.raises(SettingsError) as caught:
        stack(**{**QUEUED, **changes})

    assert says in str(caught.value)
