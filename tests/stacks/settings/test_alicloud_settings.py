"""Errors in a stack file of Alibaba Cloud, and their messages."""

from typing import Any

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import shown
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks.alicloud_examples import pool, stack_file
from tests.stacks.alicloud_programs import inputs, register
from tests.stacks.examples import changed, refusal
from tests.stacks.examples import stack_file as aws_stack_file


def test_a_valid_file_is_read_as_it_is_written():
    settings = from_mapping("test", stack_file(pools=[pool(gpu_memory_gib=24, scratch_gib=200)]))

    read = settings.pools[0]
    assert (settings.cloud, read.gpu_memory_gib, read.scratch_gib) == ("alicloud", 24, 200)


ONLY_AWS = "is for AWS only"
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
BLOCK_ONLY = f"{ONLY_AWS}; on Alibaba Cloud use market reservation"
ASSURANCE = "must be the id of an elasticity assurance"
OLDER = "the bundled image's open kernel modules need Turing or newer; ecs.gn6v-c8g1.2xlarge is older"
# A key, a value that may not stand there, and what is said of it.
BAD_VALUES = (
    ("image.id", "ami-0123456789abcdef0", "must be an image of Alibaba Cloud: m-..."),
    ("region", "cn-nowhere", "must be a region of alicloud, such as "),
    ("network.zones[0]", "us-east-1a", "must be a zone of region cn-shenzhen, such as cn-shenzhen-a"),
    ("image.lustre_client", True, f"{ONLY_AWS}; leave it out"),
    ("network.s3_buckets", ["open-data"], f"{ONLY_AWS}; leave it out"),
    ("pools[0].types[0]", "g5.xlarge", "a type of aws; this stack is on alicloud, which has ecs."),
    ("budget.currency", "USD", "the prices of its types are in CNY: needs budget.cny_per_usd"),
    ("budget.cny_per_usd", 0, "must be greater than 0"),
    ("budget.currency", "EUR", "must be CNY or USD on alicloud"),
    ("pools[0].market", "capacity-block", BLOCK_ONLY),
    ("aws.permissions_boundary", BOUNDARY, ONLY_AWS),
    ("pools[0].spot_allocation_strategy", "price-capacity-optimized", "unknown key"),
    ("pools[0].efa", True, f"{ONLY_AWS}; on Alibaba Cloud use erdma"),
    ("image.parameter", "/aws/x", f"{ONLY_AWS}; on Alibaba Cloud use image.id"),
    ("image.payload", "p.tar", "is what a build runs: needs image.base_id"),
    ("endpoint_url", "http://127.0.0.1:5000", "no emulator of Alibaba Cloud is known"),
    ("pools[0].erdma", True, "needs types with such adapters; ecs.gn7i-c8g1.2xlarge has none"),
    ("pools[0].spot_price_limit", "9.5", "only for market spot"),
    ("storage.kms_instance_id", None, "required on alicloud: only a key in a KMS instance"),
    ("storage.kms_instance_id", "key-szh0000000000000000", "the id of a KMS instance begins with kst-"),
    ("storage.scratch_gib", 2400, "CPFS comes as 3600 GiB and steps of 1200 GiB; 0 for none"),
    ("storage.home_gib", 50, "must be greater than or equal to 100"),
    ("pools[0].volume_gib", 2000, "must be from 20 to 500; put data on scratch_gib"),
    ("pools[0].scratch_gib", 10, "must be from 20 to 65536; 0 for none"),
    ("pools[0].size.max", 2001, "a scaling group holds 2000 instances at most"),
    ("owner", "aliyun-team", "must not begin with aliyun or acs:, or contain http:// or https://"),
    ("tags.wiki", "see https://wiki.example.com", "must not begin with aliyun or acs:, or contain"),
    ("pools[0].owner", "acs:team", "must not begin with aliyun or acs:"),
    ("pools[0].name", "aliyun", "must not begin with aliyun"),
    ("account_id", "123456789012", "must be the 16 digits of an account of alicloud"),
)
A10, A100 = (
    "ecs.gn7i-c8g1.2xlarge has A10 with 24 GiB each",
    "ecs.gn7-c12g1.3xlarge has A100 with 40 GiB each",
)
ELEVEN_TYPES = [kind.name for kind in catalog.load().of_cloud(Cloud.ALICLOUD)][:11]
ENDS = "-cn-shenzhen-d-cpu-high has 67 characters, 64 allowed"
RESERVED = {"pools[0].market": "reservation"}
SPOT = {"pools[0].market": "spot"}
# What is said of values that may not stand together.
NOT_TOGETHER: dict[str, dict[str, Any]] = {
    "notify.sender = null: must be a sender address of DirectMail: notify.users can be reached by no other": {
        "notify": {"users": {"ada": "ada@example.com"}}
    },
    f"pools[0].reservation_id = 'cr-0123456789abcdef0': {ASSURANCE}": RESERVED
    | {"pools[0].reservation_id": "cr-0123456789abcdef0", "pools[0].zones": ["cn-shenzhen-d"]},
    f"pools[0].gpu_memory_gib = 40: {A10}: gn7i is A10 and not A100; A100 is gn7 with 40 GiB, gn7e and ebm": {
        "pools[0].gpu_memory_gib": 40
    },
    f"pools[0].gpu_memory_gib = 80: {A100}": {
        "pools[0].types": ["ecs.gn7-c12g1.3xlarge"],
        "pools[0].gpu_memory_gib": 80,
    },
    "pools[0].spot_price_limit = '0.001': must be a multiple of 0.01": SPOT
    | {"pools[0].spot_price_limit": "0.001"},
    "pools[0].on_demand_base = 1001: must be 1000 at most": SPOT
    | {"pools[0].on_demand_base": 1001, "pools[0].size": {"min": 0, "desired": 0, "max": 1900}},
    "10 types at most where eRDMA or a reservation is asked for": RESERVED
    | {"pools[0].reservation_id": "eap-1", "pools[0].types": ELEVEN_TYPES},
    "characters, 64 allowed": {"pools[0].name": "a" * 40},
    ENDS: {"pools[0].name": "a" * 29},
    OLDER: {"pools[0].types": ["ecs.gn6v-c8g1.2xlarge"], "image.bundled": True},
    "tags = 'a-http://b': must not begin with aliyun or acs:, or contain": {"tags.a-http://b": "x"},
    "storage.redundancy = null: required where protected is true: ZRS or LRS": {"protected": True},
}


def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed():
    rows = [*NOT_TOGETHER.items()]
    rows += [(f"{key} = {shown(value)}: {says}", {key: value}) for key, value, says in BAD_VALUES]

    said = [(says, refusal(changed(stack_file(), values))) for says, values in rows]
    assert [row for row in said if row[0] not in row[1]] == []


def test_a_usd_budget_is_accepted_with_a_rate():
    budget = {"monthly": 5000, "currency": "USD", "cny_per_usd": "7.1", "recipients": ["team@example.com"]}

    assert str(from_mapping("test", stack_file(budget=budget)).budget.cny_per_usd) == "7.1"


def test_protection_is_no_part_of_a_buckets_redundancy():
    storage = {"kms_instance_id": "kst-szh0000000000000000", "redundancy": "LRS"}
    plain, protected = (
        register(from_mapping("test", stack_file(storage=storage, protected=wanted)))
        for wanted in (False, True)
    )

    kinds = [inputs(found, "alicloud:oss/bucket:Bucket") for found in (plain, protected)]
    assert [{bucket["redundancyType"] for bucket in buckets} for buckets in kinds] == [{"LRS"}, {"LRS"}]


ONLY_HERE = "is for Alibaba Cloud only"
OF_ALIBABA = (
    ("storage.redundancy", "ZRS", f"{ONLY_HERE}: S3 keeps copies in three zones at least"),
    ("image.disk", "build/disk.qcow2", f"{ONLY_HERE}; leave it out"),
    ("storage.kms_instance_id", "kst-1", "is for"),
    ("budget.cny_per_usd", "7.1", "AWS prices are in USD; leave it out"),
    ("pools[0].spot_price_limit", "1", f"{ONLY_HERE}; leave it out"),
    ("pools[0].scratch_gib", 100, f"{ONLY_HERE}; on AWS /scratch is on the type's"),
    ("pools[0].erdma", True, f"{ONLY_HERE}; on AWS use efa"),
    ("pools[0].gpu_memory_gib", 80, "g5.xlarge has A10G with 24 GiB each"),
)


def test_a_key_of_alibaba_cloud_is_refused_on_aws_and_gpu_memory_is_held_there_too():
    rows = [(f"{key} = {shown(value)}: {says}", {key: value}) for key, value, says in OF_ALIBABA]

    said = [(says, refusal(changed(aws_stack_file(), values))) for says, values in rows]
    assert [row for row in said if row[0] not in row[1]] == []
