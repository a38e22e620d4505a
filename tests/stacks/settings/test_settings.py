"""Errors in a stack file, and their messages."""

from datetime import UTC, date, datetime
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.aws.firewall import ENDPOINTS, HOME, IMAGE_BUILDER, SCRATCH
from gpu_fleet_stacks.core.errors import SettingsError, shown
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks.edits import EXISTING
from tests.stacks.examples import changed, networks, pool, refusal, stack, stack_file, stack_files


def refusal_of(values: dict[str, object]) -> str:
    """Return the errors of a valid file of two pools with these values at their keys."""
    return refusal(changed(stack_file(pools=[pool(), pool(name="other")]), values))


def test_a_valid_file_is_read_as_it_is_written():
    read = stack(owner="Jürgen Müller / 平台组", pools=[pool(types=["p4d.24xlarge"], efa=True, spare=1)])

    assert read.owner == "Jürgen Müller / 平台组"
    assert (read.pools[0].types, read.pools[0].spare) == (("p4d.24xlarge",), 1)
    assert [str(zone) for zone in read.zones_of(read.pools[0])] == ["us-east-1a", "us-east-1b"]


NETWORK = "must be a network, such as 10.20.0.0/16"
REGION = "must be a region of aws, such as eu-north-1"
OWNER = "must be 1 to 128 letters, digits, spaces and any of _ . : / = + - @"
DEAR = 10**30
# A key, a value that may not stand there, and what is allowed.
REFUSED: tuple[tuple[str, object, str], ...] = (
    ("owner", None, "must be text"),
    ("pools[0].types", [], "must have at least one item"),
    ("pools[0].types[0]", ["g5.xlarge"], "must be text"),
    ("network.slots", ["us-east-1a"], "must be a mapping of names to values"),
    ("budget.monthly", None, "must be a whole number"),
    ("owner", "", OWNER),
    ("owner", "  ", OWNER),
    ("owner", "Research (EMEA)", OWNER),
    ("region", "cn-north-1", REGION),
    ("region", "us-east", "must be a region of aws"),
    ("region", "eu-nowhere-9", REGION),
    ("account_id", "123", "must be the 12 digits of an account of aws"),
    ("account_id", "\u0661" * 12, "must be the 12 digits of an account of aws"),
    ("account_id", 123456789012, 'must be text, and YAML reads something else without quotes: write "1'),
    ("owner", 1.0e12, "must be text, and YAML reads a number without quotes: put quotes around it"),
    ("budget.monthly", 1e300, "must be a smaller number"),
    ("tags", {f"t{number}": "x" for number in range(9)}, "must have at most 8 items"),
    ("\u043ewner", "x", r"unknown key; did you mean 'owner'? This one is '\u043ewner'"),
    ("netwrok", {}, "unknown key; did you mean 'network'?"),
    ("name", "other", "unknown key: the file's name is the stack's"),
    ("network.nta", "one", "unknown key; did you mean 'nat'?"),
    ("pools[0].idle.after_hour", 3, "unknown key; did you mean 'after_hours'?"),
    ("tags.Team", "a;b", "must be 1 to 128 letters"),
    ("tags.Team", 4711, "must be text"),
    ("aws.permissions_boundary", f"arn:aws:iam::{chr(0x661) * 12}:policy/p", "must be the ARN of a policy"),
    ("aws.permissions_boundary", "boundary", "must be the ARN of a policy, such as arn:aws:iam::"),
    ("network", "10.0.0.0/16", "must be a mapping with the keys zones, cidr, existing"),
    ("network.cidr", "8.8.0.0/16", "not private: must be in 10/8, 172.16/12 or 192.168/16"),
    ("network.cidr", "10.0.0.0/24", "too small for the zones: 8 zone slots need /23 or larger"),
    ("network.cidr", "10.0.0.0/8", "too large: /16 at most"),
    ("network.cidr", "10.0.0.1/16", "has bits set beyond its prefix: the network is 10.0.0.0/16"),
    ("network.peers[0]", True, NETWORK),
    ("network.peers[0]", "192.168.1.1/16", "has bits set beyond its prefix: the network is 192.168.0.0/16"),
    ("network.zones[1]", "eu-west-1a", "must be a zone of region us-east-1, such as us-east-1a"),
    ("network.s3_buckets[0]", "s3://my-datasets", "must be the name of an S3 bucket, lower case"),
    ("network.nat", "two", "must be 'none', 'one' or 'per_zone'"),
    ("network.flow_log_retention_days", 2, "must be 1, 3, 5, 7, 14, 30"),
    ("logs.retention_days", 100, "must be 1, 3, 5, 7, 14, 30"),
    ("access.ssh_from.home", 10, NETWORK),
    ("access.ssh_from.home", "0.0.0.0/0", "the whole internet is never let in"),
    ("access.ssh_from.home", "::/0", "must be an IPv4 network, such as 10.20.0.0/16"),
    ("access.ssh_from.home", "128.0.0.0/1", "a public network must be /20 or narrower"),
    ("storage", None, "must be a mapping with the keys"),
    ("storage.home", "perhaps", "must be true or false"),
    ("storage.key_rotation_days", 365, "must be less than or equal to 90"),
    ("storage.key_rotation_days", 30, "must be 90 on AWS"),
    ("storage.scratch_gib", 1000, "Lustre comes as 1200 or a multiple of 2400 GiB"),
    ("pools[0].types[0]", "p4d.42xlarge", "unknown instance type; the nearest are p4d.24xlarge"),
    ("pools[0].types[0]", "ecs.gn7i-c8g1.2xlarge", "a type of alicloud; this stack is on aws"),
    ("pools[0].efa", True, "needs types with such adapters; g5.xlarge has none"),
    ("pools[0].market", "spott", "must be 'on-demand', 'spot', 'reservation' or 'capacity-block'"),
    ("pools[0].size.max", 2.5, "must be a whole number"),
    ("pools[0].size.max", DEAR, "must be less than or equal to 100000"),
    ("pools[0].zones[0]", "us-east-1f", "must be one of network.zones: us-east-1a, us-east-1b"),
    ("pools[0].volume_gib", 50, "smaller than the image: at least image.size_gib 100"),
    ("pools[0].volume_gib", 65_537, "must be less than or equal to 65536"),
    ("pools[0].on_demand_fallback", True, "only for market spot"),
    ("pools[1].max_lifetime_hours", 2, "must be greater than or equal to 24"),
    ("pools[0].mig_profile", "1g.5gb", "g5.xlarge has A10G with 24 GiB, which know no such instances"),
    ("pools[0].idle.command", ["busy"], "must begin with an absolute path"),
    ("pools[0].idle.command", ["/home/bob/busy"], "must be where only root can change it"),
    ("pools[0].idle.watch[0]", "/opt/blender", "must be the name of a program, without its folder"),
    ("pools[0].idle.limits.cpu_cores", 0, "must be greater than or equal to 0.01"),
    ("pools[0].idle.after_hours", 400, "must be less than or equal to 336"),  # heartbeats are kept as long
    ("pools[0].idle.action", "stop", "must be terminate: a stop empties the local disks of g5.xlarge all"),
    ("budget.monthly", 0, "must be greater than 0"),
    ("budget.monthly", DEAR, "must be less than or equal to 1000000000"),
    ("budget.recipients", "team@example.com", "must be a list, such as [team@example.com]"),
    ("budget.recipients[0]", "team", "must be an e-mail address"),
    ("budget.currency", "CNY", "must be USD on aws: prices of instance types there are in no other"),
    ("budget.currency", "EUR", "must be USD on aws"),
    ("notify.users.ada", "ada", "must be an e-mail address"),
    ("reaper.every_minutes", 20, "must be less than or equal to 10"),
    ("reaper.time_zone", "Berlin", "must be an IANA time zone"),
    ("image.id", "m-wz90000000000000000", "must be an image of AWS: ami- and 8 or 17 of the digits"),
    ("image.payload", "p.tar", "is what a build runs: needs image.base_id"),
    ("image.size_gib", "large", "must be a number"),
    ("image.size_gib", 65_537, "must be less than or equal to 65536"),
)


def of_pool(place: int = 0, **values: Any) -> dict[str, Any]:
    """Return values at keys of a pool."""
    return {f"pools[{place}].{key}": value for key, value in values.items()}


FIRST, SECOND = (f"cr-0123456789abcdef{number}" for number in "01")
BLOCK = of_pool(market="capacity-block", reservation_id=FIRST)
HELD = [
    {"id": FIRST, "zone": "us-east-1a", "count": 1},
    {"id": SECOND, "zone": "us-east-1b", "count": 1, "until": "2027-03-31T11:30Z"},
]
EFA = of_pool(efa=True, types=["p4d.24xlarge"], groups="single")


def several(index: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a pool with two reservations, one of which is changed."""
    held = [each | changes if number == index else each for number, each in enumerate(HELD)]
    return of_pool(market="reservation", reservations=held)


def reserved(by: str, place: int = 0) -> dict[str, Any]:
    return of_pool(place, market="reservation", reservation_id=by, zones=["us-east-1a"])


def slots(first: int, second: int) -> dict[str, Any]:
    return {"network.slots": {"us-east-1a": first, "us-east-1b": second}}


BUILD = {"image.base_id": "ami-0123456789abcdef0", "image.payload": "p.tar"}
BAKED = {"image.mode": "baked", "image.bundled": True}
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/odcr"
ELSEWHERE, ARABIC = GROUP.replace("us-east-1", "eu-west-1"), GROUP.replace(":1", ":\u0661")
A100 = "p4d.24xlarge has A100 with 40 GiB, which know 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
P4D = ["p4d.24xlarge", "p4de.24xlarge"]
ADDRESS, MAILBOX = "https://hooks.slack.com/services/T0/B0/x", "a@b.org"
LUSTRE = {"id": "fs-0123456789abcdef0", "mount_name": "fsx"}
HOLD = "must hold min <= desired <= max"
# Values of pools that may not stand together, and what is said of them.
OF_POOLS: dict[str, dict[str, Any]] = {
    "pools[0].erdma = true: is for Alibaba Cloud only; on AWS use efa": of_pool(erdma=True),
    "must be a list: begin each of its items with a dash": {"pools": pool()},
    "pools = 'dev': 2 pools of this name; each name once": of_pool(1, name="dev"),
    "pools = 'dev-on-demand': pool dev has a group of the name dev-on-demand, too": of_pool(
        market="spot", on_demand_fallback=True
    )
    | of_pool(1, name="dev-on-demand"),
    "pools[0].name = 'shared': is the folder of all pools in the data bucket": of_pool(name="shared"),
    "too long once prefixed: role gpu-fleet-test-": of_pool(name="a" * 60),
    "types = 'g5.xlarge': named 2 times; each type once": of_pool(types=["g5.xlarge", "g5.xlarge"]),
    f"types = {P4D}: one type only where efa is true": of_pool(efa=True, types=P4D),
    "groups = 'single': must be per_zone, or name one zone: EFA traffic never leaves a zone": EFA,
    "groups = 'single': must be per_zone, or name one": EFA | of_pool(zones=["us-east-1a", "us-east-1b"]),
    "pools[0].spare = 1: must leave room between size.min 1, size.max 1": of_pool(
        spare=1, size={"min": 1, "desired": 1, "max": 1}
    ),
    "pools[0].spare = 1: 0 where image.mode is none: nothing of gpu-fleet runs there": of_pool(spare=1)
    | {"image.mode": "none"},
    "reservation_id = 'cr-1': does not fit market spot; use market reservation": of_pool(
        market="spot", reservation_id="cr-1"
    ),
    "reservation_id = null: required where market is reservation": of_pool(market="reservation"),
    "pools[0].zones = []: reserved capacity is in one zone: name that zone": BLOCK,
    "pools[0].zones = []: reserved capacity is in one zone": BLOCK | of_pool(market="reservation"),
    "reservation_id = 'hello': must be the id of a capacity reservation (cr-...), or the ARN": reserved(
        "hello"
    ),
    f"reservation_id = '{ELSEWHERE}': must be a group of region us-east-1": reserved(ELSEWHERE),
    f"reservation_id = '{ARABIC}': must be the id of a capacity reservation": reserved(ARABIC),
    f"reservation_id = '{GROUP}': must be the id of a capacity block (cr-...)": BLOCK
    | of_pool(reservation_id=GROUP, zones=["us-east-1a"]),
    f"reservation_id = '{FIRST}': one of the two: this, or pools[0].reservations": BLOCK | several(),
    "does not fit market spot; use market reservation": several() | of_pool(market="spot"),
    f"pools[0].reservations[0].id = '{GROUP}': must be the id of a capacity": several(id=GROUP),
    "reservations[1].id = 'eap-bp67': must be the id of a capacity": several(1, id="eap-bp67"),
    "[1].zone = 'us-east-1c': must be a zone of the pool: us-east-1a, ": several(1, zone="us-east-1c"),
    "[1].zone = 'us-east-1b': must be a zone of the pool: us-east-1a": several()
    | of_pool(zones=["us-east-1a"]),
    "zones[1] = 'us-east-1b': none of pools[0].reservations is there": several(1, zone="us-east-1a")
    | of_pool(zones=["us-east-1a", "us-east-1b"]),
    f"pools[0].reservations = '{FIRST}': named 2 times; each": several(1, id=FIRST),
    f"pools = 'other': pool dev has reservation {FIRST}, too: one pool each": several()
    | {"pools[0].size.max": 1}
    | reserved(FIRST, 1),
    "size.max = 3: at most 2, which pools[0].reservations hold": several() | of_pool(size={"max": 3}),
    "pools[0].reservations[1].count = 0: must be greater than 0": several(1, count=0),
    "[1].until = '2027-02-30T00:00Z': no such day": several(1, until="2027-02-30T00:00Z"),
    "until = 'soon': must be a time in UTC, such as 2027-03-31T11:30Z": several(1, until="soon"),
    f"size = 'min 1, desired 1, max 0': {HOLD}": of_pool(size={"min": 1, "desired": 1, "max": 0}),
    "size.max = 0: at least 1 with market capacity-block, which is paid for until it ends": BLOCK
    | of_pool(size={"max": 0}),
    f"size = 'min 0, desired 5, max 2': {HOLD}": {"pools[0].size.desired": 5},
    A100: of_pool(types=P4D[:1], mig_profile="1g.18gb", volume_gib=200),
    "pools[0].idle.action = 'stop': must be terminate for market spot": of_pool(market="spot")
    | {"pools[0].idle.action": "stop"},
    "the bundled image's open kernel modules need Turing or newer; p3.2xlarge is older": of_pool(
        types=["p3.2xlarge"]
    )
    | {"image.bundled": True},
    **{
        f"pools[0].name = '{own}': names a security group of the stack itself": of_pool(name=own)
        for own in (ENDPOINTS, HOME, SCRATCH, IMAGE_BUILDER)
    },
}
# The same of everything else.
NOT_TOGETHER: dict[str, dict[str, Any]] = {
    "- 'owner\\u200b' = 'x': unknown key; did you mean 'owner'?": {"owner\u200b": "x"},
    "take.null = 1: unknown key; known keys are max_per_person": {"take": {None: 1}},
    "tags.gpu-fleet:owner = 'gpu-fleet:owner': must not be Name or begin": {"tags.gpu-fleet:owner": "bob"},
    "tags.AWS:cost = 'AWS:cost': must not be Name or begin with aws:, acs:, aliyun": {"tags.AWS:cost": "x"},
    "tags.name = 'name': must not be Name or begin": {"tags.name": "x"},
    "tags.Gpu-Fleet:stack = 'Gpu-Fleet:stack': must not be Name or": {"tags.Gpu-Fleet:stack": "x"},
    "tags = 'Größe': must be of ASCII letters where image.base_id is set": BUILD | {"tags.Größe": "x"},
    "tags = ['Team', 'team']: IAM holds": {"tags.Team": "a", "tags.team": "b"},
    "network.cidr = '10.0.0.0/16': overlaps network.peers[1] 10.0.128.0/17; must be apart from it": {
        "network.peers": ["192.168.0.0/16", "10.0.128.0/17"]
    },
    "network.zones = 'us-east-1a': named 2 times; each zone once": {"network.zones[1]": "us-east-1a"},
    "network.interface_endpoints = false: must be true where network.nat is none": {"network.nat": "none"},
    "slots.us-east-1b = null: required, and missing; the first free slot is 1": {
        "network.slots.us-east-1a": 0
    },
    "network.slots = 2: given to 2 zones; each slot to one zone": slots(2, 2),
    "network.slots.us-east-1a = 8: must be less than or equal to 7": slots(8, 1),
    """access.ssh_from = 'Büro <1>': must be up to 200 ASCII letters""": {
        "access.ssh_from": {"Büro <1>": "10.9.0.0/16"}
    },
    "access.ssh_from = '10.9.0.0/16': named 2 times; each network once": {
        "access.ssh_from": {"office": "10.9.0.0/16", "home": "10.9.0.0/16"}
    },
    "budget.recipients = []: needs at least one e-mail address": {"budget.recipients": []},
    f"recipients = '{MAILBOX}': named 2 times; each address once": {"budget.recipients": [MAILBOX, MAILBOX]},
    "budget.recipients = '11 recipients': AWS Budgets takes 10 at most": {
        "budget.recipients": [f"a{number}@b.org" for number in range(11)]
    },
    "budget.thresholds = []: needs at least one": {"budget.thresholds": []},
    "budget.thresholds = '11 thresholds': AWS Budgets takes 10 at most": {
        "budget.thresholds": [{"percent": 9 + step} for step in range(11)]
    },
    "budget.thresholds = [90, 80]: the percents of kind actual must rise": {
        "budget.thresholds": [{"percent": 90}, {"percent": 80}]
    },
    "budget.on_exceeded = 'freeze': needs two thresholds of kind actual": {
        "budget.on_exceeded": "freeze",
        "budget.thresholds": [{"percent": 100}],
    },
    "budget.on_exceeded = 'freeze': needs a pool with purpose: training; no other freezes": {
        "budget.on_exceeded": "freeze"
    },
    "users = {}: needs at least one user, since notify.sender mails them alone": {"notify.sender": MAILBOX},
    "notify.users = '201 addresses': a topic filters for 200 addresses at most; name a notify.sender": {
        "notify.users": {f"u{number}": f"u{number}@b.org" for number in range(201)}
    },
    "notify.webhooks[0].secret = '(not shown)': must be the name of a secret: its address stays out": {
        "notify.webhooks": [{"kind": "slack", "secret": ADDRESS}]
    },
    "notify.webhooks = 'room': named 2 times; each secret once": {
        "notify.webhooks": [{"kind": kind, "secret": "room"} for kind in ("slack", "teams")]
    },
    "storage.scratch_gib = 1200: no baked image has Lustre's client: leave it out, or set": BAKED
    | {"storage.scratch_gib": 1200},
    "storage.existing.scratch = 'fs-0123456789abcdef0': no baked image has Lustre's client": BAKED
    | {"storage.existing.scratch": LUSTRE},
    "needs exactly one of id and parameter": {"image.parameter": "/x"},
    "image.base_id = 'ubuntu': must be ami-..., an image of Image Builder, or ssm: with a parameter": BUILD
    | {"image.base_id": "ubuntu"},
    "network.nat = 'none': must lead to the internet where image.base_id is set: a build fetches": BUILD
    | {"network.nat": "none", "network.interface_endpoints": True},
    "network.existing.internet = false: must lead to the internet where image.base_id": BUILD
    | {"network.cidr": None, "network.existing": EXISTING | {"internet": False}},
    "no emulator of Image Builder is known; leave it out": BUILD | {"endpoint_url": "http://127.0.0.1:5000"},
}


def test_a_bad_value_is_the_only_problem_and_named_with_its_key_and_what_is_allowed():
    said = {(key, repr(value)): refusal_of({key: value}) for key, value, _ in REFUSED}

    wrong = {}
    for key, value, allowed in REFUSED:
        text = said[key, repr(value)]
        if f"- {key} = {shown(value)}: {allowed}" not in text or "has 1 problem:" not in text:
            wrong[key] = text
    assert wrong == {}


def test_values_that_do_not_go_together_are_refused_with_what_is_allowed():
    said = {expected: refusal_of(values) for expected, values in (OF_POOLS | NOT_TOGETHER).items()}

    assert {expected: text for expected, text in said.items() if expected not in text} == {}


def test_one_group_of_efa_instances_fits_one_zone():
    efa = pool(types=["p4d.24xlarge"], efa=True, groups="single", zones=["us-east-1b"])

    assert stack(pools=[efa]).pools[0].zones == ("us-east-1b",)


def test_a_capacity_block_needs_no_price_for_it_is_paid_before_an_instance_starts():
    unpriced = pool(types=["p5e.48xlarge"], zones=["us-east-1a"])

    block = stack(pools=[unpriced | {"market": "capacity-block", "reservation_id": FIRST}])

    assert block.budget.assume == {}
    assert "in budget.assume: {p5e.48xlarge: ...}" in refusal(stack_file(pools=[unpriced]))


def test_a_stack_whose_name_no_resource_could_have_is_refused():
    letters = {
        name: f"stack = '{name}': must be lower case letters" for name in ("aws_dev", "Dev", "d", "dev-")
    }
    length = {
        "a" * 26: "too long for the name of its scaling role: 25 characters",
        "a" * 40: r"too long: bucket gpu-fleet-a+-checkpoints-123456789012 has",
    }
    for name, says in (letters | length).items():
        with pytest.raises(SettingsError, match=says):
            stack(name)


def test_a_problem_brings_no_other_that_goes_with_it():
    drained = of_pool(size={"min": 1, "desired": 1, "max": 0})
    nameless = {"queue": "slurm", "storage.home": True, "access.people": {"ada": {}}}
    elsewhere = of_pool(types=["ecs.gn8v-8x.48xlarge"])  # of Alibaba Cloud, where no list has its price
    keys = ("pools[0].size", "access.people.ada", "pools[0].types[0]")
    for key, values in zip(keys, (drained, nameless, elsewhere), strict=True):
        said = refusal_of(values)
        assert f"- {key}" in said
        assert "has 1 problem:" in said
    assert "to drain the pool write min 0 and desired 0" in refusal_of(drained)


def test_a_missing_section_is_named():
    content = stack_file()
    del content["network"]

    assert "network = null: required, and missing" in refusal(content)


AS_YAML = {
    "- access.people.ada.uid = null: required, and missing": {"access.people": {"ada": {}}},
    "- teams.nlp = 2: must be a mapping of keys to values": {"teams": {"nlp": 2}},
    "- owner = 2026-01-01: must be text": {"owner": date(2026, 1, 1)},
    'write "2027-03-31T11:30Z"': {"owner": datetime(2027, 3, 31, 11, 30, tzinfo=UTC)},
    "- owner = {a: [true, null, 'x']}: must be text": {"owner": {"a": (True, None, "x")}},
}


def test_a_value_is_shown_as_it_is_written_in_a_stack_file():
    assert {line: said for line, values in AS_YAML.items() if line not in (said := refusal_of(values))} == {}


def test_every_problem_of_a_file_is_reported_at_once():
    text = refusal_of(
        {"network.cidr": "8.8.0.0/16", "pools[0].volume_gib": "big", "pools[1].types": ["nonesuch"]}
        | {"budget": {"monthly": -1}, "extra": 1}
    )

    keys = "network.cidr", "pools[0].volume_gib", "pools[1].types[0]", "budget.monthly", "budget.recipients"
    assert [key for key in (*keys, "extra") if f"- {key} = " not in text] == []
    assert "has 6 problems" in text


# The keys that a message is made of beside its own.
READ_BESIDE = {
    "network.zones[1]": ("region",),
    "pools[0].efa": ("pools[0].types",),
    "pools[0].on_demand_fallback": ("pools[0].market",),
    "pools[0].idle.action": ("pools[0].market", "pools[0].types"),
    "pools[0].mig_profile": ("pools[0].types",),
    "pools[0].volume_gib": ("image.size_gib",),
    "pools[0].zones[0]": ("network.zones",),
}


def overlap(first: str, second: str) -> bool:
    return first == second or first.startswith((f"{second}.", f"{second}["))


def independent(key: str, other: str) -> bool:
    """Return whether neither value changes the message about the other."""
    return not any(
        overlap(changed_key, read) or overlap(read, changed_key)
        for one, changed_key in ((key, other), (other, key))
        for read in (one, *READ_BESIDE.get(one, ()))
    )


def test_no_fault_hides_another():
    first = {key: (value, allowed) for key, value, allowed in REFUSED}
    pairs = [pair for pair in combinations(first, 2) if independent(*pair)]

    hidden = {}
    for pair in pairs:
        text = refusal_of({key: first[key][0] for key in pair})
        problems = [f"- {key} = {shown(first[key][0])}: {first[key][1]}" for key in pair]
        if "has 2 problems:" not in text or any(problem not in text for problem in problems):
            hidden[pair] = text
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
    assert "network.interface_endpoints" in refusal(stack_file(network=raw | {"interface_endpoints": False}))


def test_zones_are_numbered_by_their_slots_or_else_in_the_order_of_the_file():
    def network_of(**network):
        return stack(network={"cidr": "10.0.0.0/16", "zones": ["us-east-1b", "us-east-1a"]} | network).network

    by_order = network_of()
    by_slots = network_of(slots={"us-east-1a": 0, "us-east-1b": 1, "us-east-1c": 4})

    assert (by_order.slot_of, by_order.home_zone) == ({"us-east-1b": 0, "us-east-1a": 1}, "us-east-1b")
    assert (by_slots.slot_of, by_slots.home_zone) == ({"us-east-1b": 1, "us-east-1a": 0}, "us-east-1a")


def test_no_problem_shows_the_address_of_a_webhook():
    address = "https://hooks.example.com/SECRET"
    for webhooks in (
        address,
        [address],
        [{"kind": "slack", "url": address}],
        [{"kind": address, "secret": "room"}],
    ):
        message = refusal(stack_file(notify={"webhooks": webhooks}))

        assert "notify.webhooks" in message
        assert "SECRET" not in message
