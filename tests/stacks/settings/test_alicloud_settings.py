"""Errors in a stack file of Alibaba Cloud, and their messages."""

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks.alicloud_examples import pool, stack_file
from tests.stacks.alicloud_programs import inputs, register
from tests.stacks.examples import pool as aws_pool
from tests.stacks.examples import refusal
from tests.stacks.examples import stack_file as aws_stack_file


def test_a_valid_file_is_read_as_it_is_written():
    settings = from_mapping("test", stack_file(pools=[pool(gpu_memory_gib=24, scratch_gib=200)]))

    assert settings.cloud == "alicloud"
    assert settings.pools[0].gpu_memory_gib == 24
    assert settings.pools[0].scratch_gib == 200


ELEVEN_TYPES = [kind.name for kind in catalog.load().of_cloud(Cloud.ALICLOUD)][:11]

BAD_INPUTS = {
    "an image of the other cloud": (
        {"image": {"id": "ami-0123456789abcdef0"}},
        "image.id = 'ami-0123456789abcdef0': must be an image of Alibaba Cloud: m-...",
    ),
    "a region that nobody has": (
        {"region": "cn-nowhere"},
        "region = 'cn-nowhere': must be a region of alicloud, such as ",
    ),
    "a zone of AWS": (
        {"network": {"cidr": "10.0.0.0/16", "zones": ["us-east-1a"]}},
        "network.zones[0] = 'us-east-1a': must be a zone of region cn-shenzhen, such as cn-shenzhen-a",
    ),
    "a client of Lustre": (
        {"image": {"id": "m-wz9b8aqevuyw6xm1abcd", "lustre_client": True}},
        "image.lustre_client = true: is for AWS only; leave it out",
    ),
    "buckets of S3": (
        {"network": stack_file()["network"] | {"s3_buckets": ["open-data"]}},
        "network.s3_buckets = ['open-data']: is for AWS only; leave it out",
    ),
    "a type of AWS": (
        {"pools": [pool(types=["g5.xlarge"])]},
        "pools[0].types[0] = 'g5.xlarge': a type of aws; this stack is on alicloud, which has ecs.",
    ),
    "a USD budget over CNY prices without a rate": (
        {"budget": {"monthly": 5000, "currency": "USD", "recipients": ["team@example.com"]}},
        "budget.currency = 'USD': the prices of its types are in CNY: needs budget.cny_per_usd",
    ),
    "a rate of nothing": (
        {"budget": {"cny_per_usd": 0, "recipients": ["team@example.com"]}},
        "budget.cny_per_usd = 0: must be greater than 0",
    ),
    "users whom nothing mails": (
        {"notify": {"users": {"ada": "ada@example.com"}}},
        "notify.sender = null: must be a sender address of DirectMail: notify.users can be reached by no "
        "other mail there",
    ),
    "a currency neither cloud bills in": (
        {"budget": {"currency": "EUR", "recipients": ["team@example.com"]}},
        "budget.currency = 'EUR': must be CNY or USD on alicloud",
    ),
    "a capacity block": (
        {"pools": [pool(market="capacity-block", reservation_id="cr-1", zones=["cn-shenzhen-d"])]},
        "pools[0].market = 'capacity-block': is for AWS only; on Alibaba Cloud use market reservation",
    ),
    "a boundary of AWS": (
        {"aws": {"permissions_boundary": "arn:aws:iam::123456789012:policy/boundary"}},
        "aws.permissions_boundary = 'arn:aws:iam::123456789012:policy/boundary': is for AWS only",
    ),
    "a reservation of AWS": (
        {
            "pools": [
                pool(market="reservation", reservation_id="cr-0123456789abcdef0", zones=["cn-shenzhen-d"])
            ]
        },
        "pools[0].reservation_id = 'cr-0123456789abcdef0': must be the id of an elasticity assurance",
    ),
    "a spot strategy of AWS": (
        {"pools": [pool(market="spot", spot_allocation_strategy="price-capacity-optimized")]},
        "pools[0].spot_allocation_strategy = 'price-capacity-optimized': unknown key",
    ),
    "EFA": ({"pools": [pool(efa=True)]}, "pools[0].efa = true: is for AWS only; on Alibaba Cloud use erdma"),
    "an SSM parameter": (
        {"image": {"parameter": "/aws/x"}},
        "image.parameter = '/aws/x': is for AWS only; on Alibaba Cloud use image.id",
    ),
    "a recipe that nothing runs": (
        {"image": {"id": "m-1", "payload": "p.tar"}},
        "image.payload = 'p.tar': is what a build runs: needs image.base_id",
    ),
    "an emulator": (
        {"endpoint_url": "http://127.0.0.1:5000"},
        "endpoint_url = 'http://127.0.0.1:5000': no emulator of Alibaba Cloud is known",
    ),
    "eRDMA on a type without it": (
        {"pools": [pool(erdma=True)]},
        "pools[0].erdma = true: needs types with such adapters; ecs.gn7i-c8g1.2xlarge has none",
    ),
    "A100 memory on gn7i": (
        {"pools": [pool(gpu_memory_gib=40)]},
        "pools[0].gpu_memory_gib = 40: ecs.gn7i-c8g1.2xlarge has A10 with 24 GiB each: "
        "gn7i is A10 and not A100; A100 is gn7 with 40 GiB, gn7e and ebmgn7e with 80 GiB",
    ),
    "more memory than an A100 of 40 GiB has": (
        {"pools": [pool(types=["ecs.gn7-c12g1.3xlarge"], gpu_memory_gib=80)]},
        "pools[0].gpu_memory_gib = 80: ecs.gn7-c12g1.3xlarge has A100 with 40 GiB each",
    ),
    "a limit on what an on-demand instance costs": (
        {"pools": [pool(spot_price_limit="9.5")]},
        "pools[0].spot_price_limit = '9.5': only for market spot",
    ),
    "a key that turns quarterly outside of a KMS instance": (
        {"storage": {"key_rotation_days": 90}},
        "storage.kms_instance_id = null: required on alicloud: only a key in a KMS instance",
    ),
    "a KMS instance by another id than its own": (
        {"storage": {"kms_instance_id": "key-szh0000000000000000"}},
        "storage.kms_instance_id = 'key-szh0000000000000000': the id of a KMS instance begins with kst-",
    ),
    "a limit that would be rounded away": (
        {"pools": [pool(market="spot", spot_price_limit="0.001")]},
        "pools[0].spot_price_limit = '0.001': must be a multiple of 0.01",
    ),
    "more instances always on demand than Auto Scaling keeps so": (
        {"pools": [pool(market="spot", on_demand_base=1001, size={"min": 0, "desired": 0, "max": 1900})]},
        "pools[0].on_demand_base = 1001: must be 1000 at most",
    ),
    "more types than a scaling configuration takes": (
        {"pools": [pool(market="reservation", reservation_id="eap-1", types=ELEVEN_TYPES)]},
        "10 types at most where eRDMA or a reservation is asked for",
    ),
    "a CPFS size that is not sold": (
        {"storage": {"kms_instance_id": "kst-1", "scratch_gib": 2400}},
        "storage.scratch_gib = 2400: CPFS comes as 3600 GiB and steps of 1200 GiB; 0 for none",
    ),
    "a root volume over what the service takes": (
        {"pools": [pool(volume_gib=2000)]},
        "pools[0].volume_gib = 2000: must be from 20 to 500; put data on scratch_gib",
    ),
    "a scratch disk too small": (
        {"pools": [pool(scratch_gib=10)]},
        "pools[0].scratch_gib = 10: must be from 20 to 65536; 0 for none",
    ),
    "a group of more instances than one holds": (
        {"pools": [pool(size={"min": 0, "desired": 0, "max": 2001})]},
        "pools[0].size.max = 2001: a scaling group holds 2000 instances at most",
    ),
    "a name too long for a rule of one zone's group": (
        {"pools": [pool(name="a" * 40)]},
        "characters, 64 allowed",
    ),
    "a name too long for an alarm of one zone's group": (
        {"pools": [pool(name="a" * 29)]},
        "-cn-shenzhen-d-cpu-high has 67 characters, 64 allowed",
    ),
    "a home smaller than one that is sold": (
        {"storage": {"kms_instance_id": "kst-1", "home_gib": 50}},
        "storage.home_gib = 50: must be greater than or equal to 100",
    ),
    "V100 with the bundled image": (
        {"pools": [pool(types=["ecs.gn6v-c8g1.2xlarge"])], "image": {"id": "m-1", "bundled": True}},
        "the bundled image's open kernel modules need Turing or newer; ecs.gn6v-c8g1.2xlarge is older",
    ),
    "an account of AWS": (
        {"account_id": "123456789012"},
        "account_id = '123456789012': must be the 16 digits of an account of alicloud",
    ),
}


def test_a_bad_input_is_refused_with_key_value_and_what_is_allowed():
    said = {fault: refusal(stack_file(**changes)) for fault, (changes, _) in BAD_INPUTS.items()}

    assert {fault: said[fault] for fault, row in BAD_INPUTS.items() if row[1] not in said[fault]} == {}


def test_a_usd_budget_is_accepted_with_a_rate():
    budget = {
        "monthly": 5000,
        "currency": "USD",
        "cny_per_usd": "7.1",
        "recipients": ["team@example.com"],
    }

    assert str(from_mapping("test", stack_file(budget=budget)).budget.cny_per_usd) == "7.1"


def test_a_protected_stack_names_the_redundancy_of_its_buckets():
    assert "storage.redundancy = null: required where protected is true: ZRS or LRS" in refusal(
        stack_file(protected=True)
    )


def test_protection_is_no_part_of_a_buckets_redundancy():
    storage = {"kms_instance_id": "kst-szh0000000000000000", "redundancy": "LRS"}
    plain, protected = (
        register(from_mapping("test", stack_file(storage=storage, protected=wanted)))
        for wanted in (False, True)
    )

    kinds = [inputs(found, "alicloud:oss/bucket:Bucket") for found in (plain, protected)]
    assert [{bucket["redundancyType"] for bucket in buckets} for buckets in kinds] == [{"LRS"}, {"LRS"}]


KEYS_OF_ALIBABA = {
    "the redundancy of buckets": (
        {"storage": {"redundancy": "ZRS"}},
        "storage.redundancy = 'ZRS': is for Alibaba Cloud only: S3 keeps copies in three zones at least",
    ),
    "a disk to import": (
        {"image": {"id": "ami-1", "disk": "build/disk.qcow2"}},
        "image.disk = 'build/disk.qcow2': is for Alibaba Cloud only; leave it out",
    ),
    "a KMS instance": (
        {"storage": {"kms_instance_id": "kst-1"}},
        "storage.kms_instance_id = 'kst-1': is for",
    ),
    "a rate": (
        {"budget": {"cny_per_usd": "7.1", "recipients": ["team@example.com"]}},
        "budget.cny_per_usd = '7.1': AWS prices are in USD; leave it out",
    ),
    "a spot price limit": (
        {"pools": [aws_pool(market="spot", spot_price_limit=1)]},
        "pools[0].spot_price_limit = '1': is for Alibaba Cloud only; leave it out",
    ),
    "a scratch disk": (
        {"pools": [aws_pool(scratch_gib=100)]},
        "pools[0].scratch_gib = 100: is for Alibaba Cloud only; on AWS /scratch is on the type's",
    ),
    "eRDMA": (
        {"pools": [aws_pool(erdma=True)]},
        "pools[0].erdma = true: is for Alibaba Cloud only; on AWS use efa",
    ),
}


def test_a_key_of_alibaba_cloud_is_refused_on_aws():
    said = {fault: refusal(aws_stack_file(**changes)) for fault, (changes, _) in KEYS_OF_ALIBABA.items()}

    assert {fault: said[fault] for fault, row in KEYS_OF_ALIBABA.items() if row[1] not in said[fault]} == {}


def test_gpu_memory_is_held_on_aws_too():
    content = aws_stack_file(pools=[aws_pool(gpu_memory_gib=80)])

    assert "pools[0].gpu_memory_gib = 80: g5.xlarge has A10G with 24 GiB each" in refusal(content)
