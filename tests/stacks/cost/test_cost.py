"""Cost of a stack: shipped stacks to the cent, and invariants of any stack."""

import datetime
from dataclasses import replace
from decimal import Decimal
from operator import add, le, lt, sub

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_stacks.alicloud import endpoints as alicloud_endpoints
from gpu_fleet_stacks.aws import endpoints as aws_endpoints
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.catalog.money import CurrencyError, Money
from gpu_fleet_stacks.cost import view
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import Cost, OvercommitError, hold_to_budget, warnings
from gpu_fleet_stacks.settings import Stack, stack_files
from gpu_fleet_stacks.settings.quantities import ENDPOINTS, CostKind, Level, Volumes
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks import alicloud_examples
from tests.stacks.examples import pool, refusal, stack
from tests.stacks.examples import stack_files as any_stack_file
from tests.stacks.shipped import SHIPPED

CENT = Decimal("0.01")
TODAY = datetime.date(2026, 11, 21)

# Worked by hand from prices.toml and catalog.toml, 730 hours a month, 100 GB of whatever grows.
# stack -> (pool, kind) -> a month: now expected and at worst, min at worst, max expected and at worst.
# A pool of None is shared.
BY_HAND = {
    "aws-dev": {
        # 3 x g5.xlarge 1.006 x 730; a volume is 200 GiB x 0.08 and 125 MB/s x 0.04, so 21.00
        ("dev", "compute"): ("0.00", "0.00", "0.00", "2203.14", "2203.14"),
        ("dev", "disks"): ("0.00", "0.00", "0.00", "63.00", "63.00"),
        # 2 x 730 x g5.xlarge, 0.4125 on spot and 1.006 on demand
        ("spot", "compute"): ("0.00", "0.00", "0.00", "602.25", "1468.76"),
        ("spot", "disks"): ("0.00", "0.00", "0.00", "42.00", "42.00"),
        # one gateway 0.045 x 730 = 32.85, its address 0.005 x 730 = 3.65, 100 GB x 0.045 = 4.50
        (None, "nat"): ("41.00", "41.00", "41.00", "41.00", "41.00"),
        # buckets 100 x 0.023, homes 100 x 0.30
        (None, "storage"): ("32.30", "32.30", "32.30", "32.30", "32.30"),
        (None, "logs"): ("50.00", "50.00", "50.00", "50.00", "50.00"),
    },
    "aws-prod": {
        # 1 and 8 x 730 x g5.2xlarge 1.212, the first type and the dearest
        ("dev", "compute"): ("884.76", "884.76", "0.00", "7078.08", "7078.08"),
        ("dev", "disks"): ("21.00", "21.00", "0.00", "168.00", "168.00"),
        # p4d.24xlarge 21.957642 x 730 = 16029.07866; 2 in each of two zones at worst; 7.246 on spot
        ("train", "compute"): ("5289.58", "16029.08", "0.00", "21158.32", "64116.31"),
        # 500 GiB x 0.08 and 5.00 of throughput
        ("train", "disks"): ("45.00", "45.00", "0.00", "180.00", "180.00"),
        (None, "nat"): ("77.50", "77.50", "77.50", "77.50", "77.50"),
        # 12 services x 2 zones x 730 x 0.01
        (None, "endpoints"): ("175.20", "175.20", "175.20", "175.20", "175.20"),
        # buckets 2.30, homes 30.00
        (None, "storage"): ("32.30", "32.30", "32.30", "32.30", "32.30"),
        (None, "logs"): ("50.00", "50.00", "50.00", "50.00", "50.00"),
        # 5 h of c7i.2xlarge at 0.357, 5 h of g6.2xlarge at 0.9776, 9 images of 25 GB at 0.05; at worst
        # 35 h, 5 h of a p4d.24xlarge instead, and 9 full disks of 100 GB
        (None, "images"): ("17.92", "17.92", "17.92", "62.38", "167.28"),
    },
    "local": {
        # 4, 1 and 6 x 730 x g5.xlarge 1.006
        ("shared", "compute"): ("2937.52", "2937.52", "734.38", "4406.28", "4406.28"),
        ("shared", "disks"): ("84.00", "84.00", "21.00", "126.00", "126.00"),
        # 1 and 2 x 730 x g5.xlarge, 0.4125 on spot and 1.006 on demand
        ("spot", "compute"): ("301.12", "734.38", "0.00", "602.25", "1468.76"),
        ("spot", "disks"): ("21.00", "21.00", "0.00", "42.00", "42.00"),
        (None, "nat"): ("41.00", "41.00", "41.00", "41.00", "41.00"),
        (None, "endpoints"): ("175.20", "175.20", "175.20", "175.20", "175.20"),
        (None, "storage"): ("32.30", "32.30", "32.30", "32.30", "32.30"),
        (None, "logs"): ("50.00", "50.00", "50.00", "50.00", "50.00"),
    },
    "alicloud-dev": {
        # 2 x 730 x from gn7i-c8g1.2xlarge 9.5326 to gn7i-c16g1.4xlarge 10.0934
        ("dev", "compute"): ("0.00", "0.00", "0.00", "13917.60", "14736.36"),
        # 2 x 700 GiB x 1.5, which the stack assumes
        ("dev", "disks"): ("0.00", "0.00", "0.00", "2100.00", "2100.00"),
        # nobody publishes a spot price: the first type on demand is expected
        ("spot", "compute"): ("0.00", "0.00", "0.00", "13917.60", "14736.36"),
        ("spot", "disks"): ("0.00", "0.00", "0.00", "2100.00", "2100.00"),
        (None, "nat"): None,
        # buckets 100 x 0.12; homes have no public price
        (None, "storage"): ("12.00", "12.00", "12.00", "12.00", "12.00"),
        (None, "logs"): None,
    },
    "alicloud-prod": {
        # 1 and 4 x gn7e-c16g1.4xlarge 34.742 x 730
        ("dev", "compute"): ("25361.66", "25361.66", "0.00", "101446.64", "101446.64"),
        # 1 and 4 x 1,200 GiB x 1.5, which the stack assumes
        ("dev", "disks"): ("1800.00", "1800.00", "0.00", "7200.00", "7200.00"),
        # 277.933 x 730 = 202891.09: one on demand, at most one more on spot
        ("train", "compute"): ("202891.09", "202891.09", "0.00", "405782.18", "405782.18"),
        # 1 and 2 x 8,500 GiB x 1.5
        ("train", "disks"): ("12750.00", "12750.00", "0.00", "25500.00", "25500.00"),
        # 2 x 400, which the stack assumes, x 730
        ("cluster", "compute"): ("0.00", "0.00", "0.00", "584000.00", "584000.00"),
        ("cluster", "disks"): ("0.00", "0.00", "0.00", "25500.00", "25500.00"),
        (None, "nat"): None,
        # one service x 2 zones x 730 x 0.07
        (None, "endpoints"): ("102.20", "102.20", "102.20", "102.20", "102.20"),
        # homes of 1,000 GiB x 2, which the stack assumes; zone-redundant buckets have no public price
        (None, "storage"): ("2000.00", "2000.00", "2000.00", "2000.00", "2000.00"),
        (None, "logs"): None,
    },
}


def cents(money: Money) -> str:
    return str(money.amount.quantize(CENT))


def shipped(name: str) -> Cost:
    return estimate(stack_files.settings_of(name))


def parts_of(cost: Cost) -> dict[tuple[str | None, str], tuple[str, ...] | None]:
    """Return the monthly cost of each part of a stack: now low, now high, min high, max low, max high."""
    found = {}
    for part in dict.fromkeys((line.pool, str(line.kind)) for line in cost.lines):
        lines = [line for line in cost.lines if (line.pool, line.kind) == part]
        now, least, most = (cost.month(level, lines) for level in (Level.NOW, Level.MIN, Level.MAX))
        known = any(line.months is not None for line in lines)
        amounts = (now.expected, now.worst, least.worst, most.expected, most.worst)
        found[part] = tuple(map(cents, amounts)) if known else None
    return found


def test_a_shipped_stack_costs_to_the_cent_what_the_hand_worked_table_says():
    assert {name: parts_of(shipped(name)) for name in SHIPPED} == BY_HAND


def test_the_worst_month_of_a_shipped_stack_stays_within_its_budget():
    worst = {
        "aws-dev": "3900.20 USD",
        "aws-prod": "72044.68 USD",
        "local": "6341.54 USD",
        "alicloud-dev": "33684.73 CNY",
        "alicloud-prod": "1151531.02 CNY",
    }
    for name in SHIPPED:
        cost, budget = shipped(name), stack_files.settings_of(name).budget
        hold_to_budget(cost, budget.monthly, allow_overcommit=False)
        assert f"{cents(cost.worst_month)} {cost.currency}" == worst[name]
        assert budget.allow_overcommit is False


@given(any_stack_file())
@settings(max_examples=25, deadline=None)
def test_parts_add_up_to_the_whole_which_grows_from_min_by_now_to_max(content):
    cost = estimate(from_mapping("any", content))
    least, now, most = (cost.month(level) for level in (Level.MIN, Level.NOW, Level.MAX))

    for level in Level:
        whole = cost.month(level)
        pools = [cost.month(level, cost.of_pool(pool)) for pool in cost.pools]
        kinds = [cost.month(level, cost.of_kind(kind)) for kind in CostKind]
        for parts in (pools, kinds):
            assert sum(part.expected.amount for part in parts) == whole.expected.amount
            assert sum(part.worst.amount for part in parts) == whole.worst.amount
    assert least.expected <= now.expected <= most.expected
    assert least.worst <= now.worst <= most.worst
    assert all(span.expected <= span.worst for span in (least, now, most))


@given(any_stack_file(), st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_that_grows_makes_a_stack_cheaper(content, data):
    before = from_mapping("any", content)
    after, volumes = grown(before, data)

    for level in Level:
        small, large = estimate(before).month(level), estimate(after, volumes).month(level)
        assert small.expected <= large.expected
        assert small.worst <= large.worst


def grown(before: Stack, data: st.DataObject) -> tuple[Stack, Volumes]:
    """Return the stack with one larger size."""
    more = data.draw(st.integers(1, 50), label="more")
    size = data.draw(st.sampled_from(["pool", "volume", "scratch", "zones", "stored"]), label="size")
    first, *others = before.pools
    if size == "pool":
        larger = replace(first.size, min=first.size.min + more, desired=first.size.desired + more)
        pools = (replace(first, size=replace(larger, max=first.size.max + more)), *others)
        return replace(before, pools=pools), Volumes()
    if size == "volume":
        return replace(before, pools=(replace(first, volume_gib=first.volume_gib + more), *others)), Volumes()
    if size == "scratch":
        storage = replace(before.storage, home=True, scratch_gib=before.storage.scratch_gib + 2400)
        return replace(before, storage=storage), Volumes()
    if size == "zones":
        zones = (*before.network.zones, "us-east-1z")
        return replace(before, network=replace(before.network, zones=zones)), Volumes()
    return before, Volumes(*(100 + more,) * 4)


def test_an_hour_is_the_month_over_730_hours():
    assert cents(shipped("aws-prod").hour(Level.MAX).worst) == "98.69"


def test_two_currencies_have_no_sum_and_no_order():
    dollars, yuan = Money(Decimal(1), "USD"), Money(Decimal(1), "CNY")

    for operation in (add, sub, le, lt):
        with pytest.raises(CurrencyError, match=r"1.00 USD and 1.00 CNY are of two currencies"):
            operation(dollars, yuan)


def test_prices_of_the_other_currency_count_at_the_rate_of_the_budget():
    for settings_of_cloud, currency in ((alicloud_examples.stack(), "USD"), (stack(), "CNY")):
        budget = replace(settings_of_cloud.budget, currency=currency, cny_per_usd=Decimal("7.1"))
        own, other = estimate(settings_of_cloud), estimate(replace(settings_of_cloud, budget=budget))
        yuan, dollars = (own, other) if currency == "USD" else (other, own)

        spans = [line.months[Level.MAX] for line in other.lines if line.months is not None]
        assert {money.currency for span in spans for money in (span.expected, span.worst)} == {currency}
        expected = yuan.worst_month.amount / Decimal("7.1")
        assert cents(dollars.worst_month) == str(expected.quantize(CENT))


def test_a_currency_without_a_rate_is_named():
    settings_in_yuan = alicloud_examples.stack()
    for rate in (None, Decimal("7.1")):
        budget = replace(settings_in_yuan.budget, currency="EUR", cny_per_usd=rate)

        with pytest.raises(CurrencyError, match=r"budget.currency = 'EUR': the price of ecs\.\S+ is in CNY"):
            estimate(replace(settings_in_yuan, budget=budget))


def test_a_limit_on_the_spot_price_bounds_the_worst_case():
    free = {"market": "spot", "size": {"max": 10}}
    bound = free | {"spot_price_limit": "2.5"}
    without, within = (
        estimate(alicloud_examples.stack(pools=[alicloud_examples.pool(**changes)]))
        for changes in (free, bound)
    )

    assert within.month(Level.MAX, within.of_kind(CostKind.COMPUTE)).worst == Money(Decimal("18250.0"), "CNY")
    assert within.worst_month < without.worst_month


def test_instances_bought_on_demand_within_a_spot_pool_get_no_discount():
    mixed = pool(market="spot", on_demand_base=2, size={"desired": 3, "max": 4})

    found = estimate(stack(pools=[mixed]))

    certain, revocable = found.of_kind(CostKind.COMPUTE)
    assert {cents(certain.months[level].expected) for level in (Level.NOW, Level.MAX)} == {"1468.76"}
    now = revocable.months[Level.NOW]
    assert (cents(now.expected), cents(now.worst)) == ("301.12", "734.38")


def test_spares_are_paid_for_from_the_first_hour_though_nobody_asks_for_them():
    kept = pool(spare=3, size={"desired": 1, "max": 3})
    (line,) = estimate(stack(pools=[kept])).of_kind(CostKind.COMPUTE)

    paid = [cents(line.months[level].worst) for level in (Level.NOW, Level.MIN, Level.MAX)]
    assert paid == ["2203.14"] * 3


def test_a_spot_price_that_nobody_publishes_for_the_region_is_said_and_counts_as_on_demand():
    nameless = pool(market="spot", types=["p6-b200.48xlarge"], size={"max": 1})
    far = {"region": "eu-central-1", "network": {"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]}}

    cost, elsewhere = estimate(stack(pools=[nameless])), estimate(stack(pools=[pool(market="spot")], **far))

    (line,) = cost.of_kind(CostKind.COMPUTE)
    assert line.months[Level.MAX].expected == line.months[Level.MAX].worst
    said = "no spot price is known, so these count at the on-demand price: p6-b200.48xlarge on spot"
    assert said in warnings(cost, TODAY)
    assert cost.unknown == ()
    assert [quote.what for quote in elsewhere.bounded] == ["g5.xlarge on spot"]
    assert "g5.xlarge on spot" not in [quote.what for quote in elsewhere.elsewhere]


def test_a_spot_pool_that_may_fall_back_costs_at_worst_what_on_demand_costs():
    size = {"desired": 2, "max": 4}

    falls_back = estimate(stack(pools=[pool(market="spot", on_demand_fallback=True, size=size)]))
    on_demand = estimate(stack(pools=[pool(size=size)]))
    spot = estimate(stack(pools=[pool(market="spot", size=size)]))

    (line,) = falls_back.of_kind(CostKind.COMPUTE)
    (dearest,), (cheapest,) = (found.of_kind(CostKind.COMPUTE) for found in (on_demand, spot))
    assert line.months[Level.MAX].worst == dearest.months[Level.MAX].worst
    assert line.months[Level.MAX].expected == cheapest.months[Level.MAX].expected
    assert line.what.startswith("spot or on-demand ")


def test_each_reservation_has_a_line_whose_count_is_paid_at_every_level():
    held = [
        {"id": "cr-0123456789abcdef0", "zone": "us-east-1a", "count": 1},
        {"id": "cr-0123456789abcdef1", "zone": "us-east-1b", "count": 2, "until": "2027-03-31T11:30Z"},
    ]
    one = {"reservation_id": "cr-0123456789abcdef0", "zones": ["us-east-1a"]}

    (single,), (first, second) = (
        estimate(
            stack(pools=[pool(types=["p5.48xlarge"], size={"max": 2}, market="reservation", **by)])
        ).of_kind(CostKind.COMPUTE)
        for by in (one, {"reservations": held})
    )

    # 55.04 x 730, and twice of it
    paid = [[cents(line.months[level].worst) for level in Level] for line in (single, first, second)]
    assert paid == [["80358.40"] * 3, ["40179.20"] * 3, ["80358.40"] * 3]
    assert single.what == "reservation p5.48xlarge, used or not"
    assert second.what.endswith("used or not: 2 in us-east-1b, cr-0123456789abcdef1 until 2027-03-31T11:30Z")


def test_a_capacity_block_is_paid_beforehand_and_its_price_unknown():
    held = {"zones": ["us-east-1a"], "reservation_id": "cr-0123456789abcdef0"}
    block = pool(market="capacity-block", types=["p5.48xlarge"], **held)

    (line,) = estimate(stack(pools=[block])).of_kind(CostKind.COMPUTE)

    assert line.months is None
    assert line.unknown[0].source == "paid in full when the capacity block was bought"
    assert line.unknown[0].what == "p5.48xlarge in a capacity block", "on demand it has a price"


def test_an_unknown_price_is_warned_of_by_name():
    (unknown, *_) = warnings(shipped("alicloud-prod"), TODAY)

    assert "nat_traffic" in unknown
    assert unknown.endswith("the sums are minimums")


def test_stale_prices_are_warned_of_in_one_sentence_with_the_oldest():
    cost = shipped("aws-dev")
    oldest = min((quote for quote in cost.quotes if quote.date), key=lambda quote: quote.date)
    last_day = oldest.date + datetime.timedelta(days=180)

    assert warnings(cost, last_day) == []
    (sentence,) = warnings(cost, last_day + datetime.timedelta(days=1))
    assert f"prices older than 180 days, the oldest ({oldest.what}) of {oldest.date}" in sentence
    single = replace(cost, lines=(replace(cost.lines[0], quotes=(oldest,)),))
    assert warnings(single, last_day + datetime.timedelta(days=1))[0].startswith("1 price older than")


def test_prices_of_another_region_are_said_to_be():
    elsewhere = stack(region="eu-central-1", network={"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]})

    cost = estimate(elsewhere)

    (sentence,) = [text for text in warnings(cost, TODAY) if "replace those" in text]
    assert sentence.startswith("prices of us-east-1 replace those of eu-central-1: g5.xlarge, disk, ")
    assert sentence.endswith("; it is unknown whether the budget holds")
    assert view.summary(cost, 5000).endswith(
        "by prices of us-east-1: it is unknown whether the budget of 5,000.00 USD holds"
    )
    assert "under" not in view.summary(cost, 5000)


def test_a_worst_month_over_the_budget_is_refused_with_both_amounts_and_the_ways_out():
    cost = estimate(stack(pools=[pool(types=["p5.48xlarge"], size={"max": 4})]))

    with pytest.raises(OvercommitError) as refused:
        hold_to_budget(cost, 5000, allow_overcommit=False)

    message = str(refused.value)
    assert "budget.monthly = 5,000.00 USD: the worst case of a month is 160,894.10 USD" in message
    assert "of which dev 160,800.80 USD" in message
    assert "budget.allow_overcommit: true" in message


def test_a_cent_more_than_the_budget_is_too_much_unless_overcommit_is_allowed():
    cost = shipped("aws-dev")
    exact = cost.worst_month.amount

    hold_to_budget(cost, exact, allow_overcommit=False)
    with pytest.raises(OvercommitError):
        hold_to_budget(cost, exact - CENT, allow_overcommit=False)
    hold_to_budget(cost, exact - CENT, allow_overcommit=True)


def months(cost: Cost, kind: CostKind, level: Level) -> dict[str, tuple[Decimal, Decimal]]:
    spans = {line.what.split(" ")[0]: line.months[level] for line in cost.of_kind(kind) if line.months}
    return {what: (span.expected.amount, span.worst.amount) for what, span in spans.items()}


def test_image_builds_of_a_month_are_counted_by_builder_canary_and_what_is_kept():
    """Five Sundays; at worst six more hours each, on the most expensive type, with full disks."""
    image = {"id": "ami-0123456789abcdef0", "base_id": "ami-0aaaaaaaaaaaaaaaa", "size_gib": 60}
    pools = [pool(types=["g5.xlarge", "g5.2xlarge"])]

    cost = estimate(stack(image=image, pools=pools))

    assert months(cost, CostKind.IMAGES, Level.NOW) == {
        "image_builder": (Decimal("1.785"), Decimal("1.785")),
        "canary": (Decimal("5.030"), Decimal("5.030")),
        "image_snapshot": (Decimal("11.25"), Decimal("11.25")),
    }
    assert months(cost, CostKind.IMAGES, Level.MAX) == {
        "image_builder": (Decimal("12.495"), Decimal("12.495")),
        "canary": (Decimal("5.030"), Decimal("6.060")),
        "image_snapshot": (Decimal("27.00"), Decimal("27.00")),
    }


def test_a_scan_has_an_instance_of_its_own_and_no_canary_costs_no_gpu():
    image = {"id": "ami-0123456789abcdef0", "base_id": "ami-0aaaaaaaaaaaaaaaa", "mode": "baked"}

    scanning = estimate(stack(image=image | {"scan": True, "canary": False}))

    assert months(scanning, CostKind.IMAGES, Level.NOW)["image_builder"] == (Decimal("3.57"), Decimal("3.57"))
    assert "canary" not in months(scanning, CostKind.IMAGES, Level.NOW)


def test_no_image_is_counted_where_none_is_built_or_no_list_has_its_price():
    for unbuilt in (stack(), alicloud_examples.stack(image={"id": "m-1", "base_id": "m-2"})):
        assert estimate(unbuilt).of_kind(CostKind.IMAGES) == ()


def test_as_many_endpoints_are_counted_as_are_built():
    assert ENDPOINTS[Cloud.AWS] == len(aws_endpoints.SERVICES)
    assert ENDPOINTS[Cloud.ALICLOUD] == len(alicloud_endpoints.SERVICES)


UNKNOWN_TYPE = "ecs.gn8v-8x.48xlarge"


def unpriced_file(**assume: str):
    pools = [alicloud_examples.pool(types=[UNKNOWN_TYPE], size={"max": 2})]
    content = alicloud_examples.stack_file(pools=pools)
    return content | {"budget": content["budget"] | {"assume": assume}}


def with_disk(gib: int):
    return alicloud_examples.stack_file(
        pools=[alicloud_examples.pool(size={"max": 1}, volume_gib=100, scratch_gib=gib)]
    )


def with_storage(**storage):
    content = alicloud_examples.stack_file()
    return content | {"storage": content["storage"] | storage}


NEVER_FREE = "no list has its price, and unknown is never free"
# What is said of a file whose costs nobody could know, and of an assumption of nothing.
REFUSED = (
    (unpriced_file(), f"pools[0].types[0] = '{UNKNOWN_TYPE}': {NEVER_FREE}"),
    (unpriced_file(), f"of an hour of it in CNY in budget.assume: {{{UNKNOWN_TYPE}: ...}}"),
    (with_disk(900), f"pools = '1,000 GiB of disks at most': {NEVER_FREE}"),
    (with_storage(home=True, home_gib=1000), f"storage.home_gib = 1000: {NEVER_FREE}"),
    (with_storage(scratch_gib=3600), f"storage.scratch_gib = 3600: {NEVER_FREE}"),
    *(
        (unpriced_file(**{name: price}), f"budget.assume.{name} = '{price}': {says}")
        for name, price, says in (
            (
                "ecs.gn8v-8x.48xlareg",
                "400",
                f"names nothing that this stack uses without a list price; did you mean '{UNKNOWN_TYPE}'?",
            ),
            ("scratch", "3", "names nothing that this stack uses without a list price"),
            ("bucket", "0.5", "has a list price of cn-shenzhen; leave it out"),
            ("disk", "0", "must be greater than or equal to 0.0001"),
            ("disk", "much", "must be a number"),
        )
    ),
)


def test_what_no_list_has_a_price_for_and_an_assumption_of_nothing_are_refused():
    assert [says for content, says in REFUSED if says not in refusal(content)] == []
    assert estimate(from_mapping("test", with_disk(899))).unknown


def test_an_assumed_price_is_counted_as_if_it_were_listed():
    known = estimate(from_mapping("test", unpriced_file(**{UNKNOWN_TYPE: "400"})))

    (line,) = known.of_kind(CostKind.COMPUTE)
    assert line.months[Level.MAX].worst == Money(Decimal(2 * 400 * 730), "CNY")
    assert f"prices that the stack assumes, in CNY: {UNKNOWN_TYPE} 400" in warnings(known, TODAY)


def test_what_another_region_has_a_price_for_may_be_assumed():
    network = {"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]}
    budget = {"monthly": 5000, "recipients": ["a@b.org"], "assume": {"g5.xlarge": "1.258"}}
    cost = estimate(stack(region="eu-central-1", network=network, budget=budget))

    assert "g5.xlarge" not in [quote.what for quote in cost.elsewhere]
    assert cents(cost.month(Level.NOW, cost.of_kind(CostKind.COMPUTE)).worst) == "918.34"


def test_sums_with_unknown_parts_are_least_ones():
    cost = shipped("alicloud-dev")

    assert (
        "now at least 0.02 CNY an hour, at least 12.00 CNY a month expected; at worst at least 33,684.73"
        in (text := view.summary(cost, 40_000))
    )
    assert text.endswith("under the budget, as far as prices are known")
    with pytest.raises(OvercommitError, match=r"the worst case of a month is at least 33,684\.73 CNY"):
        hold_to_budget(cost, 100, allow_overcommit=False)
