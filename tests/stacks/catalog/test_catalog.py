"""The instance catalog, and the messages about a bad catalog or a bad name."""

import datetime
import json
import re
from decimal import Decimal

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, MalformedCatalogError, NetworkCard, command, prices, regions

EVERY_TYPE = list(catalog.load())
PRICED = [kind for kind in EVERY_TYPE if kind.price is not None]
FAMILIES = {
    Cloud.AWS: {*("g4dn", "g5", "g6", "g6e", "p3", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300")},
    Cloud.ALICLOUD: {"gn6i", "gn6v", "gn7", "gn7i", "gn7e", "ebmgn7e", "gn8is", "gn8v"},
}

ROW = '{ name = "x1.large", gpus = 1, vcpu = 4, memory_gib = 16, network_gbps = 5, price = "1.5" }'
SOUND = f"""
[sources]
aws = "a page, 2026-01-01"
[price_lists.aws]
currency = "USD"
region = "us-east-1"
date = 2026-01-01
source = "a list"
[card_layouts]
[families.x1]
cloud = "aws"
gpu_model = "T4"
gpu_memory_gib = 16
gpu_architecture = "turing"
price_list = "aws"
source = "aws"
types = [{ROW}]
"""


def family(name):
    """Return ``p6-b200`` of ``p6-b200.48xlarge``, and ``gn7i`` of ``ecs.gn7i-c8g1.2xlarge``."""
    return name.split(".")[1].partition("-")[0] if name.startswith("ecs.") else name.partition(".")[0]


def refusal_of(text, tmp_path):
    path = tmp_path / "catalog.toml"
    path.write_text(text)
    with pytest.raises(MalformedCatalogError) as caught:
        catalog.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_every_family_the_fleet_offers_is_there_and_named_in_the_way_of_its_cloud():
    for cloud, offered in FAMILIES.items():
        found = {family(kind.name) for kind in catalog.load().of_cloud(cloud)}
        assert offered - found == set()
    assert all(kind.name.startswith("ecs.") is (kind.cloud is Cloud.ALICLOUD) for kind in EVERY_TYPE)


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
ADAPTERS = {"g6e.24xlarge": 2, "g6e.48xlarge": 4, "p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32}
ADAPTERS |= {"p5e.48xlarge": 32, "p5en.48xlarge": 16, "p6-b200.48xlarge": 8}


def test_every_card_of_a_large_type_has_its_adapter_and_only_the_first_an_address():
    for name, adapters in ADAPTERS.items():
        kind = catalog.load().get(name)
        others = [NetworkCard(index, 1, "efa-only") for index in range(1, adapters)]
        assert kind.efa_interfaces == adapters
        assert [*kind.network_cards] == [NetworkCard(0, 0, "efa"), *others]
    first, *cards = catalog.load().get("p6-b300.48xlarge").network_cards
    assert first == NetworkCard(0, 0, "interface")
    found = [(card.card_index, card.interface_type) for card in cards]
    assert found == [(index, "efa-only") for index in range(1, 17)]


def test_adapters_are_those_of_the_cloud():
    """EFA follows AWS's cards; Alibaba Cloud has no cards and no local disks, and eRDMA only from gn8 on."""
    for kind in EVERY_TYPE:
        if kind.cloud is Cloud.AWS:
            carried = [card for card in kind.network_cards if card.interface_type != "interface"]
            assert len(carried) == kind.efa_interfaces, kind.name
        else:
            shown = kind.network_cards, kind.efa_interfaces, kind.instance_store_scratch
            assert shown == ((), 0, False), kind.name
    assert {family(kind.name) for kind in EVERY_TYPE if kind.erdma_interfaces} == {"gn8is", "gn8v"}


# docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
QUOTAS = {
    "g5.xlarge": ("L-DB2E81BA", "L-3819A6DF"),
    "p4d.24xlarge": ("L-417A185B", "L-7212CCBC"),
    "p5.48xlarge": ("L-417A185B", "L-C4BD4855"),
}


def test_quota_codes_are_those_of_the_family_and_the_market():
    found = {name: catalog.load().get(name) for name in QUOTAS}

    assert {name: (kind.quota_code, kind.quota_code_spot) for name, kind in found.items()} == QUOTAS


def test_gn7i_is_an_a10_and_volta_is_too_old_for_the_bundled_image():
    kind = catalog.load().get("ecs.gn7i-c8g1.2xlarge")
    volta = [catalog.load().get(name) for name in ("p3.2xlarge", "ecs.gn6v-c8g1.2xlarge")]

    assert (kind.gpu_count, kind.gpu_model, kind.gpu_memory_gib) == (1, "A10", 24)
    assert (kind.vcpu, kind.memory_gib, kind.network_gbps) == (8, 30, 16)
    assert not any(kind.runs_bundled_image for kind in volta)


def is_told_in_full(price, cloud):
    dated = datetime.date(2023, 1, 1) <= price.date <= datetime.date(2026, 11, 21)
    currency = {Cloud.AWS: "USD", Cloud.ALICLOUD: "CNY"}[cloud]
    placed = price.source and price.region in regions.of_cloud(cloud)
    return price.amount_per_hour > 0 and dated and placed and price.currency == currency


def test_a_price_says_when_where_in_what_currency_and_who_says_so_and_every_fact_has_a_dated_source():
    assert PRICED
    assert [(kind.name, kind.price) for kind in PRICED if not is_told_in_full(kind.price, kind.cloud)] == []
    assert [(kind.name, kind.source) for kind in EVERY_TYPE if "2026-" not in (kind.source or "")] == []


def test_an_unpublished_price_is_unknown_and_a_row_may_name_a_price_list_of_its_own():
    assert catalog.load().get("ecs.gn8v.4xlarge").price is None
    assert "price: unknown" in catalog.describe("ecs.gn8v.4xlarge")
    assert catalog.load().get("ecs.gn7i-2x.8xlarge").price.region == "cn-beijing"
    assert catalog.load().get("ecs.gn7i-c8g1.2xlarge").price.region == "cn-shenzhen"


def test_every_type_can_be_described_and_the_command_prints_all_of_them():
    said = {f"{kind.name} ({kind.cloud})": catalog.describe(kind.name) for kind in EVERY_TYPE}
    printed = CliRunner().invoke(command.list_types).output

    assert [begin for begin, text in said.items() if not text.startswith(begin)] == []
    assert [kind.name for kind in EVERY_TYPE if kind.name not in printed] == []
    for part in ("8 x A100 40 GiB", "96 vCPU", "400 Gbit/s, 4 EFA", "L-417A185B", "21.957642 USD", "source:"):
        assert part in said["p4d.24xlarge (aws)"]


def test_the_list_is_filtered_and_recommends_the_cheapest_of_each_currency():
    def listed(*words):
        return CliRunner().invoke(main, ["catalog", "list", *words])

    types = json.loads(listed("--gpu", "h100", "--gpus", "8", "-o", "json").output)["types"]
    cheap = json.loads(listed("--gpu-memory", "40", "--top", "1", "-o", "json").output)["types"]

    assert [kind["type"] for kind in types] == ["p5.48xlarge"]
    assert sorted(kind["currency"] for kind in cheap) == sorted({kind["currency"] for kind in cheap})
    assert f"recommended, the cheapest of these: {cheap[0]['type']} (" in listed("--gpu-memory", "40").output
    assert "no type of the catalog is so" in listed("--gpu", "t4", "--gpu-memory", "40").output
    assert "'--gpu': 'X900'; allowed: a text in one of A10, A100" in listed("--gpu", "X900").output


@given(st.text(max_size=20), st.sampled_from(list(Cloud)))
def test_whatever_is_typed_the_suggestions_are_of_the_cloud_asked_for(typed, cloud):
    known = catalog.load()

    suggested = known.suggest(typed, cloud=cloud)

    assert 1 <= len(suggested) <= 3
    assert all(known.get(name).cloud is cloud for name in suggested)
    like = known.suggest("p4de.24xlarge", cloud=Cloud.ALICLOUD)
    assert like[:2] == ["ecs.gn7e-c16g1.32xlarge", "ecs.ebmgn7e.32xlarge"], "of like GPUs"


def test_a_valid_file_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "catalog.toml"
    path.write_text(SOUND)

    (kind,) = catalog.load(path)

    assert kind.name == "x1.large"
    assert kind.price.amount_per_hour == Decimal("1.5")
    assert kind.network_cards == (NetworkCard(0, 0, "interface"),)


# Of a sound file, what is replaced by what, and what is said of it.
BAD_FILES = (
    ("gpus = 1", "gpus = 0", "families.x1.types.0.gpus = 0: must be more than 0"),
    ("vcpu = 4", 'vcpu = "many"', "families.x1.types.0.vcpu = 'many': must be a number"),
    ("vcpu = 4", "vcpu = 4, cores = 2", "families.x1.types.0.cores = 2: unknown key; allowed: cards, "),
    ("vcpu = 4, ", "", "families.x1.types.0.vcpu"),
    ('price = "1.5"', 'price = "-1"', "families.x1.types.0.price = '-1'"),
    ('cloud = "aws"', 'cloud = "azure"', "families.x1.cloud = 'azure': allowed: 'aws' or 'alicloud'"),
    ('"USD"', '"dollars"', "price_lists.aws.currency = 'dollars'"),
    ("date = 2026-01-01", 'date = "lately"', "price_lists.aws.date = 'lately': must be a date"),
    ('\nsource = "aws"', '\nsource = "hearsay"', "x1.large refers to sources.hearsay; defined are aws"),
    ('price_list = "aws"', 'price_list = "moon"', "x1.large refers to price_lists.moon; defined are aws"),
    ('price_list = "aws"\n', "", "x1.large has a price but no price_list"),
    ("vcpu = 4", 'vcpu = 4, cards = "efa-9"', "x1.large refers to card_layouts.efa-9"),
    (ROW, f"{ROW}, {ROW}", "x1.large appears more than once; name each type once"),
    ("[sources]", "[sources", "Expected"),
)


def test_a_bad_file_is_refused_with_row_key_and_value(tmp_path):
    said = [(row, refusal_of(SOUND.replace(*row[:2], 1), tmp_path)) for row in BAD_FILES]

    assert [old for old, _, _ in BAD_FILES if old not in SOUND] == []
    assert [(row, text) for row, text in said if row[2] not in text] == []
    with pytest.raises(MalformedCatalogError, match=r"nonesuch\.toml"):
        catalog.load(tmp_path / "nonesuch.toml")


MISSPELT = {
    "p4d.42xlarge": "p4d.24xlarge",
    "g5.xlrage": "g5.xlarge",
    "ecs.gn7i-c8g1.2xlage": "ecs.gn7i-c8g1.2xlarge",
    "P5.48XLARGE": "p5.48xlarge",
}


def test_a_misspelt_name_is_answered_with_the_nearest():
    for typed, meant in MISSPELT.items():
        said = CliRunner().invoke(main, ["catalog", "show", typed])
        assert said.exit_code == 1
        assert f"error: unknown instance type {typed!r}; the nearest are {meant}" in said.output


SOUND_PRICES = """
[clouds.aws]
currency = "USD"
region = "us-east-1"

[clouds.aws.prices]
disk = { amount = "0.08", unit = "GB and month", date = 2026-01-01, source = "aws" }

[clouds.aws.regions.us-east-1]
egress = { date = 2026-01-01, source = "aws", tiers = { 0 = "0.09" } }
one_year = { date = 2026-01-01, source = "aws", prices = { "x1.large" = "0.6" } }
"""
YEAR = '{ date = 2026-01-01, source = "aws", prices = { "x1.large" = "0.6" } }'
BAD_PRICES = (
    ("[clouds.aws.prices]", "[clouds.aws.prices", "Expected"),
    ('"USD"', '"dollars"', "clouds.aws.currency = 'dollars'"),
    ('amount = "0.08"', 'amount = "0"', "clouds.aws.prices.disk.amount = '0': must be more than 0"),
    (", date = 2026-01-01", "", "clouds.aws.prices.disk has an amount and no date"),
    ("{ 0 = ", "{ 5 = ", "clouds.aws.regions.us-east-1.egress.tiers"),
    (YEAR, f"[{YEAR}, {YEAR}]", "must have one price of x1.large"),
    ("one_year", "two_years", "two_years"),
    ("clouds.aws", "clouds.alicloud", "no clouds.aws; known: alicloud"),
)


def test_a_corrupt_price_list_is_refused_with_its_place(tmp_path):
    for number, (old, new, said) in enumerate([("", "", ""), *BAD_PRICES]):
        path = tmp_path / f"prices-{number}.toml"
        path.write_text(SOUND_PRICES.replace(old, new, -1 if old == "clouds.aws" else 1))
        if not said:
            assert prices.load(Cloud.AWS, path).commitments
            continue
        with pytest.raises(prices.PriceListError, match=re.escape(said)):
            prices.load(Cloud.AWS, path)
