"""What a stack file may not say, and how it is told."""

import copy
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.aws.firewall import ENDPOINTS, HOME, IMAGE_BUILDER, SCRATCH
from stacks.errors import SettingsError
from stacks.settings import Stack
from stacks.settings.reader import from_mapping
from tests.stacks.examples import networks, pool, stack, stack_file, stack_files


def refusal(**changes) -> str:
    with pytest.raises(SettingsError) as caught:
        from_mapping("test", stack_file(**changes))
    return str(caught.value)


def network(**changes):
    return stack_file()["network"] | changes


def test_a_valid_file_is_read_as_it_is_written():
    read = stack(owner="vision", pools=[pool(types=["p4d.24xlarge"], efa=True)])

    assert read.owner == "vision"
    assert read.pools[0].types == ("p4d.24xlarge",)
    assert [str(zone) for zone in read.zones_of(read.pools[0])] == ["us-east-1a", "us-east-1b"]


RESERVATION = "cr-0123456789abcdef0"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/odcr"
BAD_INPUTS = {
    "a tag of the stack's own": (
        {"tags": {"gpu-fleet:owner": "bob"}},
        "tags.gpu-fleet:owner.[key] = 'gpu-fleet:owner': must not be Name or begin with aws:, acs:, aliyun",
    ),
    "a tag of the cloud's": (
        {"tags": {"AWS:cost": "x"}},
        "tags.AWS:cost.[key] = 'AWS:cost': must not be Name or begin",
    ),
    "a tag's value that IAM refuses": (
        {"tags": {"Team": "a;b"}},
        "tags.Team = 'a;b': must be 1 to 128 letters",
    ),
    "a tag's value that YAML reads as a number": ({"tags": {"Team": 4711}}, "tags.Team = 4711: must be text"),
    "tags that IAM holds for one": (
        {"tags": {"Team": "a", "team": "b"}},
        "tags = ['Team', 'team']: IAM holds",
    ),
    "a boundary by its name": (
        {"aws": {"permissions_boundary": "boundary"}},
        "aws.permissions_boundary = 'boundary': must be the ARN of a policy, such as arn:aws:iam::",
    ),
    "a command of a relative path": (
        {"pools": [pool(idle={"command": ["busy"]})]},
        "pools[0].idle.command = ['busy']: must begin with an absolute path",
    ),
    "a command that a user can change": (
        {"pools": [pool(idle={"command": ["/home/bob/busy"]})]},
        "pools[0].idle.command = ['/home/bob/busy']: must lie where root alone can change it",
    ),
    "a program's name with its folder": (
        {"pools": [pool(idle={"watch": ["/opt/blender"]})]},
        "pools[0].idle.watch[0] = '/opt/blender': must be the name of a program, without its folder",
    ),
    "a limit that an instance at rest passes": (
        {"pools": [pool(idle={"limits": {"cpu_cores": 0}})]},
        "pools[0].idle.limits.cpu_cores = 0: must be greater than or equal to 0.01",
    ),
    "an idle time longer than heartbeats are kept": (
        {"pools": [pool(idle={"after_hours": 400})]},
        "pools[0].idle.after_hours = 400: must be less than or equal to 336",
    ),
    "a public network": (
        {"network": network(cidr="8.8.0.0/16")},
        "network.cidr = '8.8.0.0/16': not private: must lie in 10/8, 172.16/12 or 192.168/16",
    ),
    "a network too small for its zones": (
        {"network": network(cidr="10.0.0.0/24")},
        "network.cidr = '10.0.0.0/24': too small for the zones: 8 zone slots need /23 or larger",
    ),
    "a network wider than a VPC": (
        {"network": network(cidr="10.0.0.0/8")},
        "network.cidr = '10.0.0.0/8': too large: /16 at most",
    ),
    "an address for a network": (
        {"network": network(cidr="10.0.0.1/16")},
        "network.cidr = '10.0.0.1/16': has bits set beyond its prefix: the network is 10.0.0.0/16",
    ),
    "a peer that overlaps": (
        {"network": network(peers=["192.168.0.0/16", "10.0.128.0/17"])},
        "network.cidr = '10.0.0.0/16': overlaps network.peers[1] 10.0.128.0/17; must be apart from it",
    ),
    "a zone of another region": (
        {"network": network(zones=["us-east-1a", "eu-west-1a"])},
        "network.zones[1] = 'eu-west-1a': must be a zone of region us-east-1, such as us-east-1a",
    ),
    "a zone named twice": (
        {"network": network(zones=["us-east-1a", "us-east-1a"])},
        "network.zones = 'us-east-1a': named 2 times; each zone once",
    ),
    "no way out at all": (
        {"network": network(nat="none")},
        "network.interface_endpoints = False: must be true where network.nat is none",
    ),
    "a bucket by its URI": (
        {"network": network(s3_buckets=["s3://my-datasets"])},
        "network.s3_buckets[0] = 's3://my-datasets': must be the name of an S3 bucket, lower case",
    ),
    "an unknown NAT": (
        {"network": network(nat="two")},
        "network.nat = 'two': must be 'none', 'one' or 'per_zone'",
    ),
    "an unknown instance type": (
        {"pools": [pool(types=["p4d.42xlarge"])]},
        "pools[0].types[0] = 'p4d.42xlarge': unknown instance type; the nearest are p4d.24xlarge",
    ),
    "a type of the other cloud": (
        {"pools": [pool(types=["ecs.gn7i-c8g1.2xlarge"])]},
        "pools[0].types[0] = 'ecs.gn7i-c8g1.2xlarge': a type of alicloud; this stack is on aws",
    ),
    "EFA on a type without it": (
        {"pools": [pool(efa=True)]},
        "pools[0].efa = True: needs types with such adapters; g5.xlarge has none",
    ),
    "EFA on two types": (
        {"pools": [pool(efa=True, types=["p4d.24xlarge", "p4de.24xlarge"])]},
        "pools[0].types = ['p4d.24xlarge', 'p4de.24xlarge']: one type only where efa is true",
    ),
    "EFA in one group over two zones": (
        {"pools": [pool(efa=True, types=["p4d.24xlarge"], groups="single")]},
        "pools[0].groups = 'single': must be per_zone, or name one zone: EFA traffic never leaves a zone",
    ),
    "spot together with a reservation": (
        {"pools": [pool(efa=True, types=["p4d.24xlarge"], market="spot", reservation_id="cr-1")]},
        "pools[0].reservation_id = 'cr-1': cannot go with market spot; use market reservation",
    ),
    "a reservation without its id": (
        {"pools": [pool(market="reservation")]},
        "pools[0].reservation_id = None: required where market is reservation",
    ),
    "a capacity block over two zones": (
        {"pools": [pool(market="capacity-block", reservation_id=RESERVATION)]},
        "pools[0].zones = []: what is reserved lies in one zone: name it",
    ),
    "a reservation over two zones": (
        {"pools": [pool(market="reservation", reservation_id=RESERVATION)]},
        "pools[0].zones = []: what is reserved lies in one zone: name it",
    ),
    "a reservation's name for its id": (
        {"pools": [pool(market="reservation", reservation_id="hello", zones=["us-east-1a"])]},
        "pools[0].reservation_id = 'hello': must be the id of a capacity reservation (cr-...), or the ARN",
    ),
    "a group's ARN for a capacity block": (
        {"pools": [pool(market="capacity-block", reservation_id=GROUP, zones=["us-east-1a"])]},
        f"pools[0].reservation_id = '{GROUP}': must be the id of a capacity block (cr-...)",
    ),
    "eRDMA on AWS": (
        {"pools": [pool(erdma=True)]},
        "pools[0].erdma = True: is of Alibaba Cloud; on AWS use efa",
    ),
    "a desired size out of bounds": (
        {"pools": [pool(size={"min": 0, "desired": 5, "max": 2})]},
        "pools[0].size = 'min 0, desired 5, max 2': must hold min <= desired <= max",
    ),
    "a pool in a zone the network lacks": (
        {"pools": [pool(zones=["us-east-1f"])]},
        "pools[0].zones[0] = 'us-east-1f': must be one of network.zones: us-east-1a, us-east-1b",
    ),
    "a number that would open an address near 0.0.0.0": (
        {"access": {"ssh_from": {"home": 10}}},
        "access.ssh_from.home = 10: must be a network, such as 10.20.0.0/16",
    ),
    "a switch in place of a network": (
        {"network": {"peers": [True]}},
        "network.peers[0] = True: must be a network, such as 10.20.0.0/16",
    ),
    "SSH from anywhere": (
        {"access": {"ssh_from": {"home": "0.0.0.0/0"}}},
        "access.ssh_from.home = '0.0.0.0/0': the whole internet is never let in",
    ),
    "SSH from anywhere in IPv6": (
        {"access": {"ssh_from": {"home": "::/0"}}},
        "access.ssh_from.home = '::/0': is not a valid IPv4 network",
    ),
    "SSH from half the internet": (
        {"access": {"ssh_from": {"home": "128.0.0.0/1"}}},
        "access.ssh_from.home = '128.0.0.0/1': a public network must be /20 or narrower",
    ),
    "a budget of nothing": (
        {"budget": {"monthly": 0, "recipients": ["a@b.org"]}},
        "budget.monthly = 0: must be greater than 0",
    ),
    "more instances than can be counted": (
        {"pools": [pool(size={"max": 10**30})]},
        f"pools[0].size.max = {10**30}: must be less than or equal to 100000",
    ),
    "a budget beyond all money": (
        {"budget": {"monthly": 10**30, "recipients": ["a@b.org"]}},
        f"budget.monthly = {10**30}: must be less than or equal to 1000000000",
    ),
    "a budget without a recipient": (
        {"budget": {"monthly": 10}},
        "budget.recipients = []: needs at least one e-mail address",
    ),
    "a recipient that is no address": (
        {"budget": {"recipients": ["team"]}},
        "budget.recipients[0] = 'team': must be an e-mail address",
    ),
    "a user without an address": (
        {"notify": {"users": {"ada": "ada"}}},
        "notify.users.ada = 'ada': must be an e-mail address",
    ),
    "a sender that mails nobody": (
        {"notify": {"sender": "fleet@b.org"}},
        "notify.users = {}: needs at least one user, since notify.sender mails them alone",
    ),
    "more users than a topic filters for": (
        {"notify": {"users": {f"u{number}": f"u{number}@b.org" for number in range(201)}}},
        "notify.users = '201 addresses': a topic filters for 200 addresses at most; name a notify.sender",
    ),
    "the address of a webhook in clear": (
        {"notify": {"webhooks": [{"kind": "slack", "secret": "https://hooks.slack.com/services/T0/B0/x"}]}},
        "notify.webhooks[0].secret = '(not shown)': must be the name of a secret: its address stays out of "
        "this file",
    ),
    "a webhook named twice": (
        {"notify": {"webhooks": [{"kind": "slack", "secret": "room"}, {"kind": "teams", "secret": "room"}]}},
        "notify.webhooks = 'room': named 2 times; each secret once",
    ),
    "a recipient named twice": (
        {"budget": {"recipients": ["a@b.org", "a@b.org"]}},
        "budget.recipients = 'a@b.org': named 2 times; each address once",
    ),
    "more recipients than a notification takes": (
        {"budget": {"recipients": [f"a{number}@b.org" for number in range(11)]}},
        "budget.recipients = '11 recipients': AWS Budgets takes 10 at most",
    ),
    "more thresholds than a budget takes": (
        {"budget": {"recipients": ["a@b.org"], "thresholds": [{"percent": 9 + step} for step in range(11)]}},
        "budget.thresholds = '11 thresholds': AWS Budgets takes 10 at most",
    ),
    "a network let in under two names": (
        {"access": {"ssh_from": {"office": "10.9.0.0/16", "home": "10.9.0.0/16"}}},
        "access.ssh_from = '10.9.0.0/16': named 2 times; each network once",
    ),
    "a type named twice": (
        {"pools": [pool(types=["g5.xlarge", "g5.xlarge"])]},
        "pools[0].types = 'g5.xlarge': named 2 times; each type once",
    ),
    "nobody as the owner": ({"owner": ""}, "owner = '': must be 1 to 128 letters"),
    "an owner of spaces": ({"owner": "  "}, "owner = '  ': must be 1 to 128 letters"),
    "an owner that no tag of a role may hold": (
        {"owner": "Research (EMEA)"},
        "owner = 'Research (EMEA)': must be 1 to 128 letters, digits, spaces and any of _ . : / = + - @",
    ),
    "thresholds that fall": (
        {"budget": {"recipients": ["a@b.org"], "thresholds": [{"percent": 90}, {"percent": 80}]}},
        "budget.thresholds = [90, 80]: the percents of kind actual must rise",
    ),
    "a freeze with one threshold": (
        {"budget": {"recipients": ["a@b.org"], "on_exceeded": "freeze", "thresholds": [{"percent": 100}]}},
        "budget.on_exceeded = 'freeze': needs two thresholds of kind actual",
    ),
    "sweeps too far apart to meter": (
        {"reaper": {"every_minutes": 20}},
        "reaper.every_minutes = 20: must be less than or equal to 10",
    ),
    "a currency AWS budgets lack": (
        {"budget": {"currency": "CNY", "recipients": ["a@b.org"]}},
        "budget.currency = 'CNY': must be USD on aws: prices of instance types there are in no other",
    ),
    "key rotation over 90 days": (
        {"storage": {"key_rotation_days": 365}},
        "storage.key_rotation_days = 365: must be less than or equal to 90",
    ),
    "key rotation sooner than AWS can": (
        {"storage": {"key_rotation_days": 30}},
        "storage.key_rotation_days = 30: must be 90 on AWS",
    ),
    "a Lustre size that is not sold": (
        {"storage": {"scratch_gib": 1000}},
        "storage.scratch_gib = 1000: Lustre comes as 1200 or a multiple of 2400 GiB",
    ),
    "a Lustre that no baked image mounts": (
        {
            "storage": {"scratch_gib": 1200},
            "image": {"id": "ami-0123456789abcdef0", "mode": "baked", "bundled": True},
        },
        "storage.scratch_gib = 1200: no baked image has Lustre's client: leave it out, or say",
    ),
    "a volume smaller than the image": (
        {"pools": [pool(volume_gib=50)]},
        "pools[0].volume_gib = 50: smaller than the image: at least image.size_gib 100",
    ),
    "two pools of one name": (
        {"pools": [pool(), pool()]},
        "pools = 'dev': 2 pools of this name; each name once",
    ),
    "a pool that falls back from nothing": (
        {"pools": [pool(on_demand_fallback=True)]},
        "pools[0].on_demand_fallback = True: only for market spot",
    ),
    "a pool named as a group of another": (
        {"pools": [pool(market="spot", on_demand_fallback=True), pool(name="dev-on-demand")]},
        "pools = 'dev-on-demand': pool dev has a group of the name dev-on-demand, too",
    ),
    "a pool name too long once prefixed": (
        {"pools": [pool(name="a" * 60)]},
        "too long once prefixed: role gpu-fleet-test-",
    ),
    "a lifetime under a day": (
        {"pools": [pool(max_lifetime_hours=2)]},
        "pools[0].max_lifetime_hours = 2: must be greater than or equal to 24",
    ),
    "stopping a spot instance": (
        {"pools": [pool(market="spot", idle={"action": "stop"})]},
        "pools[0].idle.action = 'stop': must be terminate for market spot",
    ),
    "stopping an instance with local disks": (
        {"pools": [pool(idle={"action": "stop"})]},
        "must be terminate: a stop empties the local disks of g5.xlarge all the same",
    ),
    "Volta with the bundled image": (
        {"pools": [pool(types=["p3.2xlarge"])], "image": {"id": "ami-1", "bundled": True}},
        "the bundled image's open kernel modules need Turing or newer; p3.2xlarge is older",
    ),
    "two images": (
        {"image": {"id": "ami-1", "parameter": "/x"}},
        "needs exactly one of id and parameter",
    ),
    "a recipe that nothing runs": (
        {"image": {"id": "ami-1", "payload": "p.tar"}},
        "image.payload = 'p.tar': is what a build runs: needs image.base_id",
    ),
    "a base that is no image": (
        {"image": {"id": "ami-1", "base_id": "ubuntu", "payload": "p.tar"}},
        "image.base_id = 'ubuntu': must be ami-..., an image of Image Builder, or ssm: with a parameter",
    ),
    "a build without a way to the packages": (
        {
            "image": {"id": "ami-1", "base_id": "ami-0123456789abcdef0", "payload": "p.tar"},
            "network": network(nat="none", interface_endpoints=True),
        },
        "a build fetches packages: needs network.nat one or per_zone",
    ),
    "a build in an emulator": (
        {
            "image": {"id": "ami-1", "base_id": "ami-0123456789abcdef0", "payload": "p.tar"},
            "endpoint_url": "http://127.0.0.1:5000",
        },
        "no emulator of Image Builder is known; leave it out",
    ),
    "instances of a GPU that knows none": (
        {"pools": [pool(mig_profile="1g.5gb")]},
        "pools[0].mig_profile = '1g.5gb': g5.xlarge has A10G with 24 GiB, which know no such instances",
    ),
    "instances of a larger GPU": (
        {"pools": [pool(types=["p4d.24xlarge"], mig_profile="1g.18gb", volume_gib=200)]},
        "p4d.24xlarge has A100 with 40 GiB, which know 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb",
    ),
    "an unknown time zone": (
        {"reaper": {"time_zone": "Berlin"}},
        "reaper.time_zone = 'Berlin': must be an IANA time zone",
    ),
    "an unknown key at the top": ({"netwrok": {}}, "netwrok = {}: unknown key; did you mean 'network'?"),
    "an unknown key in a section": (
        {"network": network(nta="one")},
        "network.nta = 'one': unknown key; did you mean 'nat'?",
    ),
    "an unknown key deep in a pool": (
        {"pools": [pool(idle={"after_hour": 3})]},
        "pools[0].idle.after_hour = 3: unknown key; did you mean 'after_hours'?",
    ),
    "an account of the wrong length": (
        {"account_id": "123"},
        "account_id = '123': must be the 12 digits of an account of aws",
    ),
    "a region whose principals have other names": (
        {"region": "cn-north-1"},
        "region = 'cn-north-1': must be a region of aws, such as eu-north-1",
    ),
    "a region that is none": ({"region": "us-east"}, "region = 'us-east': must be a region of aws"),
    "a region that nobody has": (
        {"region": "eu-nowhere-9"},
        "region = 'eu-nowhere-9': must be a region of aws, such as eu-north-1",
    ),
    "an image of the other cloud": (
        {"image": {"id": "m-wz90000000000000000"}},
        "image.id = 'm-wz90000000000000000': must be an image of AWS: ami- and 8 or 17 of the digits",
    ),
    "an account without quotes": (
        {"account_id": 123456789012},
        "account_id = 123456789012: must be text, and YAML reads something else without quotes: "
        'write "123456789012"',
    ),
    "one recipient for a list of them": (
        {"budget": {"recipients": "team@example.com"}},
        "budget.recipients = 'team@example.com': must be a list, such as [team@example.com]",
    ),
    "one pool for a list of them": (
        {"pools": pool()},
        "must be a list: begin each of its items with a dash",
    ),
    "a section that is none": (
        {"network": "10.0.0.0/16"},
        "network = '10.0.0.0/16': must be a mapping with the keys zones, cidr, existing",
    ),
    "a section left empty": ({"storage": None}, "storage = None: must be a mapping with the keys"),
    "a currency that no price is in": (
        {"budget": {"currency": "EUR", "recipients": ["a@b.org"]}},
        "budget.currency = 'EUR': must be USD on aws",
    ),
    "a zone without a slot": (
        {"network": network(slots={"us-east-1a": 0})},
        "network.slots.us-east-1b = None: required, and missing; the first free slot is 1",
    ),
    "a slot of two zones": (
        {"network": network(slots={"us-east-1a": 2, "us-east-1b": 2})},
        "network.slots = 2: given to 2 zones; each slot to one zone",
    ),
    "a slot that no network has": (
        {"network": network(slots={"us-east-1a": 8, "us-east-1b": 1})},
        "network.slots.us-east-1a = 8: must be less than or equal to 7",
    ),
    "a peer with bits beyond its prefix": (
        {"network": network(peers=["192.168.1.1/16"])},
        "network.peers[0] = '192.168.1.1/16': has bits set beyond its prefix: the network is 192.168.0.0/16",
    ),
}


def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed():
    said = {fault: refusal(**changes) for fault, (changes, _) in BAD_INPUTS.items()}

    assert {fault: said[fault] for fault, row in BAD_INPUTS.items() if row[1] not in said[fault]} == {}


def test_no_pool_takes_the_name_of_a_security_group_that_the_stack_has_anyway():
    for own in (ENDPOINTS, HOME, SCRATCH, IMAGE_BUILDER):
        message = f"pools[0].name = '{own}': names a security group of the stack itself"
        assert message in refusal(pools=[pool(name=own)])


def test_an_owner_may_be_named_in_any_script():
    assert stack(owner="Jürgen Müller / 平台组").owner == "Jürgen Müller / 平台组"


def test_a_missing_section_is_named():
    content = stack_file()
    del content["network"]

    with pytest.raises(SettingsError, match="network = None: required, and missing"):
        from_mapping("test", content)


def test_a_stack_name_that_makes_the_scaling_role_name_too_long_is_refused():
    with pytest.raises(SettingsError, match="too long for the name of its scaling role: 25 characters"):
        stack("a" * 26)


def test_a_stack_name_that_makes_bucket_names_too_long_is_refused():
    with pytest.raises(SettingsError, match=r"too long: bucket gpu-fleet-a+-checkpoints-123456789012 has"):
        from_mapping("a" * 40, stack_file())


def test_every_problem_of_a_file_is_reported_at_once():
    text = refusal(
        network=network(cidr="8.8.0.0/16"),
        pools=[pool(volume_gib="big"), pool(name="other", types=["nonesuch"])],
        budget={"monthly": -1},
        extra=1,
    )

    for key in (
        *("network.cidr", "pools[0].volume_gib", "pools[1].types[0]", "budget.monthly", "budget.recipients"),
        "extra",
    ):
        assert f"- {key} = " in text
    assert "has 6 problems" in text


# Faults of one key each: where, what, and the keys that its message is made of besides.
FAULTS: dict[str, tuple[tuple[str | int, ...], object, tuple[str, ...]]] = {
    "region": (("region",), "eu-nowhere-9", ("cloud",)),
    "account_id": (("account_id",), 5, ()),
    "owner": (("owner",), "Research (EMEA)", ()),
    "network.cidr": (("network", "cidr"), "10.0.0.1/16", ()),
    "network.cidr = '8.8.0.0/16': not private": (("network", "cidr"), "8.8.0.0/16", ()),
    "network.nat": (("network", "nat"), "two", ()),
    "network.zones[1]": (("network", "zones", 1), "eu-west-1a", ("cloud", "region")),
    "network.nta": (("network", "nta"), "one", ()),
    "network.flow_log_retention_days": (("network", "flow_log_retention_days"), 2, ()),
    "logs.retention_days": (("logs", "retention_days"), 100, ()),
    "access.ssh_from.home": (("access", "ssh_from", "home"), "0.0.0.0/0", ()),
    "access.ssh_from.office": (("access", "ssh_from", "office"), "nowhere", ()),
    "storage.key_rotation_days": (("storage", "key_rotation_days"), 30, ("cloud",)),
    "storage.scratch_gib": (("storage", "scratch_gib"), 1000, ("cloud",)),
    "storage.home": (("storage", "home"), "perhaps", ()),
    "pools[0].volume_gib": (("pools", 0, "volume_gib"), 50, ("image.size_gib",)),
    "pools[0].types[0]": (("pools", 0, "types", 0), "p4d.42xlarge", ("cloud",)),
    "pools[0].market": (("pools", 0, "market"), "spott", ()),
    "pools[0].size": (("pools", 0, "size", "desired"), 5, ()),
    "pools[0].size.max": (("pools", 0, "size", "max"), "many", ()),
    "pools[0].idle.after_hours": (("pools", 0, "idle", "after_hours"), 400, ()),
    "pools[0].idle.action": (("pools", 0, "idle", "action"), "stop", ("pools[0].market", "pools[0].types")),
    "pools[0].zones[0]": (("pools", 0, "zones"), ["us-east-1f"], ("network.zones",)),
    "pools[1].name": (("pools", 1, "name"), "home", ()),
    "pools[1].max_lifetime_hours": (("pools", 1, "max_lifetime_hours"), 2, ()),
    "budget.monthly": (("budget", "monthly"), 0, ()),
    "budget.recipients": (("budget", "recipients"), "a@b.org", ()),
    "budget.currency": (("budget", "currency"), "EUR", ("cloud",)),
    "budget.thresholds": (("budget", "thresholds"), [{"percent": 90}, {"percent": 80}], ()),
    "reaper.time_zone": (("reaper", "time_zone"), "Berlin", ()),
    "reaper.every_minutes": (("reaper", "every_minutes"), 20, ()),
    "image.id": (("image", "id"), "m-wz90000000000000000", ("cloud",)),
    "image.size_gib": (("image", "size_gib"), "large", ()),
}


def faulty(*faults: str) -> dict[str, object]:
    """A sound file with these faults."""
    sections = {"access": {"ssh_from": {}}, "storage": {}, "logs": {}, "reaper": {}}
    content = copy.deepcopy(stack_file(**sections, pools=[pool(size={}, idle={}), pool(name="other")]))
    content["pools"][0]["size"] |= {"min": 0, "desired": 1, "max": 2}
    for fault in faults:
        (*way, last), value, _ = FAULTS[fault]
        place = content
        for step in way:
            place = place[step]
        place[last] = value
    return content


def path_of(fault: str) -> str:
    way, _, _ = FAULTS[fault]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).removeprefix(".")


def within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


def independent(each_str: str, other: str) -> bool:
    """Whether neither fault touches what the other's message is made of."""
    for first, second in ((each_str, other), (other, each_str)):
        reads = (path_of(first), first.partition(" = ")[0], *FAULTS[first][2])
        if any(within(path_of(second), key) or within(key, path_of(second)) for key in reads):
            return False
    return True


def message_of(*faults: str) -> str:
    with pytest.raises(SettingsError) as caught:
        from_mapping("test", faulty(*faults))
    return str(caught.value)


def test_a_single_fault_is_the_only_problem_of_its_file():
    said = {fault: message_of(fault) for fault in FAULTS}

    assert {
        fault: text
        for fault, text in said.items()
        if f"- {fault}" not in text or "has 1 problem:" not in text
    } == {}


def test_no_fault_hides_another():
    pairs = [pair for pair in combinations(FAULTS, 2) if independent(*pair)]

    hidden = {
        pair: text
        for pair in pairs
        if "has 2 problems:" not in (text := message_of(*pair))
        or not all(f"- {problem}" in text for problem in pair)
    }

    assert len(pairs) > 350
    assert hidden == {}


@given(stack_files())
def test_any_valid_file_is_accepted(content):
    read = from_mapping("test", content)

    assert len(read.pools) == len(content["pools"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = st.sampled_from(
    [*stack_file(), "access", "storage", "reaper", "owner", "protected", "endpoint_url"]
)


@given(st.dictionaries(SECTIONS, JSON, min_size=1, max_size=4))
def test_whatever_a_file_says_only_settings_errors_come_of_it(changes):
    try:
        outcome = from_mapping("test", stack_file(**changes))
    except SettingsError as error:
        outcome = error

    assert isinstance(outcome, Stack) or outcome.problems


@given(networks().filter(lambda raw: raw["nat"] == "none"))
def test_a_network_without_nat_and_endpoints_is_refused(raw):
    assert "network.interface_endpoints" in refusal(network=raw | {"interface_endpoints": False})


def test_the_order_of_zones_numbers_their_subnets_where_no_slots_are_given():
    network = stack_settings(zones=["us-east-1b", "us-east-1a"])

    assert network.slot_of == {"us-east-1b": 0, "us-east-1a": 1}
    assert network.home_zone == "us-east-1b"


def test_with_slots_the_order_of_zones_is_preference_alone():
    slots = {"us-east-1a": 0, "us-east-1b": 1, "us-east-1c": 4}
    network = stack_settings(zones=["us-east-1b", "us-east-1a"], slots=slots)

    assert network.slot_of == {"us-east-1b": 1, "us-east-1a": 0}
    assert network.home_zone == "us-east-1a"


def stack_settings(**network):
    return from_mapping("test", stack_file(network={"cidr": "10.0.0.0/16"} | network)).network


def test_no_problem_shows_the_address_of_a_webhook():
    address = "https://hooks.example.com/SECRET"
    for webhooks in (
        address,
        [address],
        [{"kind": "slack", "url": address}],
        [{"kind": address, "secret": "room"}],
    ):
        message = refusal(notify={"webhooks": webhooks})

        assert "notify.webhooks" in message
        assert "SECRET" not in message
