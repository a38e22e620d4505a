"""The queue's controller on Alibaba Cloud: its address, its instance, its secret, its ports, its price."""

import ipaddress
from itertools import product

import pytest

from gpu_fleet_image.slurm import configuration
from gpu_fleet_image.slurm.alicloud import VERSION
from gpu_fleet_stacks.alicloud import firewall, queue
from gpu_fleet_stacks.alicloud.network import private_networks
from gpu_fleet_stacks.catalog import Cloud, prices
from gpu_fleet_stacks.catalog_refresh import alicloud as refresh
from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks.alicloud_examples import pool, stack_file
from tests.stacks.registered import named
from tests.stacks.registrations import declared
from tests.stacks.test_queue import ALICLOUD, CONTROLLER, INSTANCE

TEMPLATE, SECRET = ALICLOUD.template, ALICLOUD.secret
QUEUED = {**ALICLOUD.without, "queue": "slurm"}


@pytest.fixture
def queued():
    return declared(ALICLOUD.stack())


def key_id(queued) -> str:
    (key,) = queued.of_type("alicloud:kms/key:Key")
    return key.id


def test_the_controller_stands_at_an_address_that_no_other_instance_is_given(queued):
    instance = named(queued, INSTANCE, CONTROLLER)
    home = ipaddress.ip_network(private_networks(ALICLOUD.stack())["cn-shenzhen-d"])
    private = [made for made in queued.of_type("alicloud:vpc/switch:Switch") if "private" in made.name]
    (vswitch,) = [made for made in private if made.inputs["cidrBlock"] == str(home)]

    # the last three and the first are the cloud's own
    assert ipaddress.ip_address(instance.inputs["privateIp"]) == home.broadcast_address - 3
    assert instance.inputs["vswitchId"] == vswitch.id


def test_the_controller_is_private_hardened_encrypted_and_left_alone_by_a_new_image(queued):
    instance, template = named(queued, INSTANCE, CONTROLLER), named(queued, TEMPLATE, CONTROLLER)

    assert instance.inputs["launchTemplateId"] == template.id
    assert instance.inputs["maintenanceAction"] == "AutoRecover"
    for made in (instance, template):
        assert (made.inputs["internetMaxBandwidthOut"], made.inputs["httpTokens"]) == (0, "required")
    disk = template.inputs["systemDisk"]
    assert (disk["encrypted"], disk["kmsKeyId"]) == (True, key_id(queued))
    assert template.inputs["ramRoleName"] == CONTROLLER
    # the price that is asked for is of this type
    assert template.inputs["instanceType"] == refresh.CONTROLLER
    assert refresh.CONTROLLER in prices.load(Cloud.ALICLOUD).quotes["queue_controller"].unit
    assert not {"userData", "imageId", "launchTemplateVersion"} & instance.inputs.keys()
    assert template.inputs["updateDefaultVersionNumber"] is True
    # pools start no instance before the controller has its address
    waiting = [made.name for made in queued.of_type(TEMPLATE) if instance.urn in made.dependencies]
    assert waiting == [made.name for made in queued.of_type(TEMPLATE) if made is not template]


@pytest.mark.parametrize("protected", [True, False])
def test_a_protected_stack_protects_its_controller_from_deletion(protected):
    storage = ALICLOUD.without["storage"] | {"redundancy": "ZRS"}
    found = declared(ALICLOUD.stack(storage=storage, protected=protected))

    assert named(found, INSTANCE, CONTROLLER).inputs["deletionProtection"] is protected


def test_the_secret_is_declared_with_a_sentence_that_is_no_key_and_stays_current(queued):
    (secret,) = queued.of_type(SECRET)

    assert secret.inputs["encryptionKeyId"] == key_id(queued)
    assert secret.inputs["secretName"] == f"{CONTROLLER}-munge"
    # what Pulumi reads back is the current version: this one, and not that of the key
    assert secret.inputs["versionId"] == queue.NO_KEY_VERSION != VERSION
    assert secret.inputs["secretData"] == queue.NO_KEY
    assert "versionStages" not in secret.inputs


def rules_of(settings):
    return firewall.rules(settings, private_networks(settings))


def reaches(rules, client, server, ports, networks):
    """Return whether a connection is allowed at both ends, by rules that name only vSwitches."""
    (client_group, client_net), (server_group, server_net) = client, server

    def opened(group, peer, *, egress):
        return any(
            (rule.group, rule.egress, rule.peer) == (group, egress, peer)
            and (rule.ports is None or (rule.protocol == "tcp" and rule.ports == ports))
            for rule in rules
        )

    leaves = opened(client_group, networks[server_net], egress=True)
    return leaves and opened(server_group, networks[client_net], egress=False)


@pytest.mark.parametrize("zone", ["cn-shenzhen-d", "cn-shenzhen-e"])
@pytest.mark.parametrize("most", [1, 4])
def test_controller_and_nodes_reach_each_other_by_slurms_ports_in_whatever_zone_they_are(zone, most):
    pools = [pool(name="train", zones=[zone], size={"min": 0, "desired": 0, "max": most})]
    settings = ALICLOUD.stack(pools=pools)
    rules, networks = rules_of(settings), private_networks(settings)
    controller, node = ("queue", "cn-shenzhen-d"), ("train", zone)

    assert reaches(rules, node, controller, (configuration.CONTROLLER_PORT,) * 2, networks)
    assert reaches(rules, node, controller, (configuration.DATABASE_PORT,) * 2, networks)
    assert reaches(rules, controller, node, (configuration.NODE_PORT,) * 2, networks)
    assert reaches(rules, controller, node, configuration.SRUN_PORTS, networks)
    assert not reaches(rules, node, controller, (firewall.SSH,) * 2, networks)


def test_the_controller_takes_nothing_from_outside_and_reaches_the_homes_by_rules_of_one_name_each():
    settings = ALICLOUD.stack()
    rules, inside = rules_of(settings), set(private_networks(settings).values())
    own = [rule for rule in rules if rule.group == firewall.QUEUE]

    ports = [(port, port) for port in (configuration.CONTROLLER_PORT, configuration.DATABASE_PORT)]
    assert {(rule.ports, rule.peer) for rule in own if not rule.egress} == {*product(ports, inside)}
    assert inside <= {rule.peer for rule in own if rule.egress and rule.ports == (firewall.NFS,) * 2}
    assert len({rule.label for rule in rules}) == len(rules)


def test_a_price_in_no_list_must_be_named_in_the_stack_file():
    said = r"queue = 'slurm': .*budget\.assume: \{queue_controller: \.\.\.\}"
    with pytest.raises(SettingsError, match=said):
        from_mapping("test", stack_file(**QUEUED))
