"""After each sweep the meter advances, is published, and freezes pools by the budget."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.spending import line_of
from gpu_fleet_image.controllers.sweep.handler import conclude
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.job_use import DayUse
from gpu_fleet_image.core.metrics import METRIC_GPU_SM_ACTIVITY, METRIC_GPU_UTILISATION
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_OWNER, TAG_POOL, TAG_STACK
from tests.image.moto_fleet import budget_json
from tests.image.sweeping import CLOUDS, connect_world, policy
from tests.image.world import World

TAGS = {TAG_STACK: "test", TAG_MANAGED: "true", TAG_POOL: "dev", TAG_OWNER: "ada"}
HOUR_OF_ONE = Decimal("1.026")


def rules(monthly="1000", **changes):
    return policy(top={"budget": budget_json(monthly=monthly, **changes)}, idle_after_hours=100)


@pytest.fixture
def world():
    """Return a world with a pool of two busy instances, and room for eight more."""
    made = World()
    made.group("pool", min_size=0, max_size=10, **{TAG_POOL: "dev"})
    for _ in range(2):
        made.join("pool", TAGS)
    made.pass_minutes(1)
    return made


def swept(world, checked, *, dry_run=False):
    cloud = connect_world(world, checked)
    result = sweep(cloud, checked, SweepOptions(clock=world.clock, holder="a sweep", dry_run=dry_run))
    return conclude(cloud, checked, result)


def stored(world, key):
    return json.loads(world.objects[f"reaper/{key}"][0])


def records(world, prefix):
    found = world.objects.items()
    return [json.loads(body) for key, (body, _) in found if key.startswith(f"reaper/{prefix}/")]


def test_each_sweep_publishes_what_an_hour_and_the_month_cost(world):
    swept(world, rules())
    world.published.clear()
    world.pass_minutes(60)

    result = swept(world, rules())

    assert not result.failed
    assert result.spending.rates == {"_shared": Decimal("0.10"), "dev": 2 * HOUR_OF_ONE}
    # twice: of the pools, and of the whole
    assert world.published["HourCost"] == pytest.approx(2 * 2.152)
    assert world.published["MonthBudget"] == 1000
    assert world.published["MonthCost"] == pytest.approx(2 * float(result.spending.reading.month_cost))
    assert result.to_json()["spending"]["month_to_date"]["dev"] == "2.09"


DEV = budget_json()["pools"]["dev"]
UNPRICED = {"pools": {"dev": DEV | {"on_demand": {"g5.xlarge": None}}}}
RESERVED = {"pool": "dev", "reservation": "", "used": 2, "paid": 4}
# What the budget says of prices, instances without one, the line from its begin to its end, and the report.
PRICES = [
    (
        UNPRICED,
        2,
        (
            "at least 0.14 USD an hour; at least 0.00 of 1,000 this month",
            "; 2 instances without a price: not counted",
        ),
        {"at_least": True},
    ),
    (
        {"lacks": ["log", "nat_gateway"], "borrowed": ["us-east-1"]},
        0,
        (
            "at least 2.15 USD an hour; at least 0.03 of 1,000 this month",
            "; without a public price, not counted: log, nat_gateway; by prices of us-east-1, for want of",
        ),
        {"at_least": True},
    ),
    (
        UNPRICED | {"assumed": {"g5.xlarge": "5"}},
        0,
        ("10.14 USD an hour; ", "; prices assumed by the stack: g5.xlarge"),
        {"assumed": {"g5.xlarge": "5"}},
    ),
    (
        {"pools": {"dev": DEV | {"reserved": 4}}},
        0,
        ("", "; 2 of 4 reserved instances of dev in use (50%), all are paid for"),
        {"reserved": [RESERVED]},
    ),
]


@pytest.mark.parametrize(("prices", "unpriced", "line", "report"), PRICES)
def test_line_and_report_say_which_prices_a_sum_lacks_assumes_or_pays_for_nothing(
    world, prices, unpriced, line, report
):
    result = swept(world, rules(**prices))

    begin, part = line
    assert world.published["UnpricedInstances"] == unpriced
    assert line_of(result.spending).startswith(begin)
    assert part in line_of(result.spending)
    assert result.to_json()["spending"].items() >= report.items()


def test_sweeps_that_fail_for_hours_lose_no_money(world):
    swept(world, rules())
    cloud = connect_world(world, rules())
    before = read_spending(cloud, rules(), cloud.instances.fleet(), world.now)
    world.pass_minutes(7 * 60)

    after = swept(world, rules()).spending

    grown = after.reading.month["dev"] - before.reading.month["dev"]
    assert grown == pytest.approx(14 * HOUR_OF_ONE, rel=Decimal("0.001"))


@pytest.mark.parametrize(
    ("prices", "rate"), [({"a": "0.20", "b": "0.30"}, "0.32"), ({"a": "3.00"}, "0.523"), ({}, "0.523")]
)
def test_spot_counts_at_the_dearest_zones_price_and_never_for_more_than_the_policys(prices, rate):
    """The policy's price counts if the market gives none; a refusal of the market is reported."""
    world = World()
    world.start(TAGS, spot=True)
    world.pass_minutes(1)
    world.spot_prices = {"g5.xlarge": prices}

    first = swept(world, rules())
    world.deny("DescribeSpotPriceHistory")
    second = swept(world, rules())

    assert first.spending.rates["dev"] == Decimal(rate)
    assert second.spending.rates["dev"] == Decimal("0.523")
    assert not first.failed
    assert [failure.step for failure in second.done.failures] == ["read spot prices"]


def test_a_policy_without_a_budget_meters_nothing(world):
    result = swept(world, policy(idle_after_hours=100))

    assert result.spending is None
    assert "reaper/meter.json" not in world.objects


@pytest.mark.parametrize(
    ("key", "body", "step"),
    [
        ("reaper/meter.json", b'{"until": "yesterday"}', "meter"),
        ("reaper/accounts.json", b'{"schema_version": 1, "users": [{"name": "a/b"}]}', "budgets of teams"),
    ],
)
def test_what_cannot_be_read_fails_the_sweep_visibly_is_not_begun_anew_and_freezes_nobody(
    world, key, body, step
):
    world.objects[key] = (body, '"damaged"')

    result = swept(world, of_teams(monthly="0"))

    assert [failure.step for failure in result.done.failures] == [step]
    assert world.published["SweepFailures"] == 1
    assert world.objects[key][0] == body
    assert "reaper/team-budgets.json" not in world.objects


def test_another_sweep_at_the_same_moment_counts_nothing_twice(world):
    swept(world, rules())
    world.pass_minutes(60)
    cloud = connect_world(world, rules())
    first = sweep(cloud, rules(), SweepOptions(clock=world.clock, holder="one", dry_run=True))

    conclude(cloud, rules(), first)
    second = conclude(cloud, rules(), first)

    assert second.spending.reading.month["dev"] == pytest.approx(2 * HOUR_OF_ONE, rel=Decimal("0.02"))


def test_spending_past_the_budget_freezes_within_one_sweep_is_reported_once_and_busy_instances_stay(world):
    world.pass_minutes(10 * 60)

    result = swept(world, rules(monthly="10"))
    for _ in range(2):
        world.pass_minutes(10)
        swept(world, rules(monthly="10"))

    assert world.groups["pool"]["max"] == 2
    assert world.groups["pool"]["suspended"] == {"Launch"}
    assert world.ends == []
    assert result.spending.freeze.stage.word == "closed"
    assert world.published["FreezeStage"] == 3 * 2
    (record,) = records(world, "budget")
    assert (record["action"], record["stage"], record["by"]) == ("freeze", "closed", "sweep")
    assert len([text for _, text in world.messages if "spent" in text]) == 1
    assert any("training pools start no new instances" in text for _, text in world.messages)


def draining(cloud, **changes):
    """Rules of a budget that only notifies, for a pool that takes no new instances."""
    pool = budget_json()["pools"]["dev"] | {"freezes": False, "drains": True} | changes
    return policy(top=CLOUDS[cloud] | {"budget": budget_json(on_exceeded="notify", pools={"dev": pool})})


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_pool_that_drains_is_closed_until_its_users_are_done_and_opens_again(world, cloud):
    for _ in range(2):
        swept(world, draining(cloud))
        world.pass_minutes(1)
    group = world.groups["pool"]
    closed = (set(group["suspended"]), group["max"], list(world.ends))

    swept(world, draining(cloud, drains=False))

    assert closed == ({"Launch"}, 2, [])
    assert (group["suspended"], group["max"]) == (set(), 10)


def account(name, team, uid):
    gid = {"team_gid": 30_001} if team else {"team_gid": 0}
    return {"name": name, "uid": uid, "keys": [], "team": team, "admin": False, **gid}


def of_teams(cloud="aws", monthly="20", on_exceeded="freeze", **pool):
    """Rules by which each of two teams has a budget."""
    teams = {name: {"monthly": monthly, "on_exceeded": on_exceeded} for name in ("nlp", "vision")}
    return policy(top=CLOUDS[cloud] | {"budget": budget_json(teams=teams)}, idle_after_hours=100, **pool)


@pytest.fixture
def teams(world):
    """The world's accounts: ada, who has its instances, and bob are in teams of their own."""
    join(world, ada="vision", bob="nlp")


def join(world, **teams):
    users = [account(name, team, 5001 + number) for number, (name, team) in enumerate(teams.items())]
    content = json.dumps({"schema_version": 1, "users": users}).encode()
    world.objects["reaper/accounts.json"] = (content, '"1"')


@pytest.mark.parametrize(("cloud", "monthly"), [("aws", "20"), ("alicloud", "0.4")])
def test_a_team_past_its_budget_is_frozen_alone_and_said_once_and_its_instances_stay(
    world, teams, cloud, monthly
):
    checked = of_teams(cloud, monthly)
    swept(world, checked)
    world.pass_minutes(10 * 60)  # 20.52 on AWS, disks alone on Alibaba Cloud: its type has no price here

    for _ in range(2):
        result = swept(world, checked)
        world.pass_minutes(1)

    assert not result.failed
    assert [name for name, team in result.spending.teams.items() if team.frozen] == ["vision"]
    assert ", and is frozen" in line_of(result.spending).partition("; team vision has spent ")[2]
    (record,) = records(world, "budget")
    assert (record["action"], record["team"]) == ("freeze", "vision")
    assert len([text for _, text in world.messages if "gpu-fleet unfreeze --team vision" in text]) == 1
    assert (world.groups["pool"]["suspended"], world.groups["pool"]["max"], world.ends) == (set(), 10, [])


def test_a_team_s_month_is_the_sum_of_its_days_and_begins_anew(world, teams):
    swept(world, of_teams())
    for _ in range(26):
        world.pass_minutes(60)
        result = swept(world, of_teams(monthly="100"))

    closed = list(stored(world, "team-budgets.json")["days"])
    yesterday = stored(world, "days/2026/03/2026-03-02.json")["costs"]["dev"]
    today = result.spending.reading.day.costs["dev"]
    assert closed == ["2026-03-01", "2026-03-02"]  # the meter began on the second
    assert result.spending.teams["vision"].spent == Decimal(yesterday) + today

    join(world, ada="nlp", bob="nlp")
    moved = swept(world, of_teams(monthly="100")).spending.teams
    assert moved["vision"].spent == Decimal(yesterday), "who changes teams takes no cost along"
    assert moved["nlp"].spent == today


QUEUE = {"capacity": {"groups": ["pool"], "max_size": 4, "queue_gpus": 1}}


@pytest.mark.parametrize("queue", [QUEUE, {}], ids=["of a pool of the queue", "of one that has left it"])
def test_a_team_pays_for_its_jobs_also_where_the_controller_wrote_them_after_midnight(world, teams, queue):
    queued = of_teams(monthly="100", **queue)
    (instance, _) = sorted(world.instances)
    swept(world, queued)
    while (result := swept(world, queued)).spending.reading.day.name == "2026-03-02":
        world.pass_minutes(20)
    before = result.spending.teams["nlp"].spent

    write_use(world, "2026-03-02", instance)
    world.pass_minutes(20)
    counted = swept(world, queued).spending.teams["nlp"].spent
    world.objects["reaper/queue/use/2026-03-02.json"] = (b"{}", '"2"')
    for _ in range(6):
        world.pass_minutes(20)
        damaged = swept(world, queued)

    assert (before, counted) == (0, 2 * HOUR_OF_ONE)
    assert not damaged.failed


def write_use(world, day, instance):
    use = DayUse(day, {instance: {"bob/train": 7200.0}}, 86_400)
    world.objects[f"reaper/{job_use.key_of(day)}"] = (json.dumps(use.to_json()).encode(), '"1"')


def test_days_whose_record_of_jobs_was_missing_are_counted_once_it_is_there_while_the_month_is_open(
    world, teams
):
    queued = of_teams(monthly="100", **QUEUE)
    (instance, _) = sorted(world.instances)
    swept(world, queued)
    for _ in range(28):
        world.pass_minutes(120)
        result = swept(world, queued)
    unread = stored(world, "team-budgets.json")["unread"]

    write_use(world, "2026-03-03", instance)
    spent = []
    for _ in range(2):
        world.pass_minutes(5)
        spent.append(swept(world, queued).spending.teams["nlp"].spent)

    assert sorted(unread) == ["2026-03-02", "2026-03-03"]
    assert result.spending.teams["nlp"].spent == 0
    assert spent[-1] == 2 * HOUR_OF_ONE
    assert stored(world, "team-budgets.json")["unread"] == ["2026-03-02"]


def test_a_team_that_only_notifies_is_said_to_have_passed_its_budget_and_goes_on(world, teams):
    swept(world, of_teams(on_exceeded="notify"))
    world.pass_minutes(10 * 60)

    result = swept(world, of_teams(on_exceeded="notify"))

    assert not result.spending.teams["vision"].frozen
    assert len([text for _, text in world.messages if text.startswith("team vision has spent 20.5")]) == 1


def test_a_dry_run_meters_and_freezes_nothing(world):
    world.pass_minutes(10 * 60)

    result = swept(world, rules(monthly="10"), dry_run=True)

    assert result.spending.reading.month_cost > 10
    assert world.groups["pool"]["max"] == 10


def test_a_larger_budget_gives_the_groups_their_limits_back(world):
    world.pass_minutes(10 * 60)
    swept(world, rules(monthly="10"))

    swept(world, rules(monthly="10000"))

    assert (world.groups["pool"]["max"], world.groups["pool"]["suspended"]) == (10, set())
    assert [record["action"] for record in records(world, "budget")] == ["freeze", "unfreeze"]


def test_a_group_that_will_not_be_limited_fails_the_sweep_and_is_tried_again(world):
    world.pass_minutes(10 * 60)
    world.deny("UpdateAutoScalingGroup")

    first = swept(world, rules(monthly="10"))
    second = swept(world, rules(monthly="10"))

    assert [failure.step for failure in first.done.failures] == ["max of pool = 2"]
    assert not second.failed
    assert world.groups["pool"]["max"] == 2


def test_the_day_that_is_over_is_reported_once_by_mail_and_as_a_page(world):
    checked = rules()
    for key in world.instances:
        world.daily[key, METRIC_GPU_UTILISATION] = 25.0
        world.daily[key, METRIC_GPU_SM_ACTIVITY] = 10.0
    swept(world, checked)
    for _ in range(26):
        world.pass_minutes(60)
        swept(world, checked)

    mails = [text for _, text in world.messages if "GPU hours rented" in text]
    assert len(mails) == 1
    assert mails[0].startswith("31.97 GPU hours rented, 7.99 computing, 23.98 idle; 34.40 USD")
    assert "used 10% of their multiprocessors" in mails[0]
    page = world.objects["reaper/reports/2026/03/2026-03-02.html"][0].decode()
    assert "<svg" in page
    assert next(iter(world.instances)) in page
    assert stored(world, "reports/2026/03/2026-03-02.json")["gpu_hours"]["rented"] == "31.97"
    assert stored(world, "meter.json")["unreported"] == []


def test_a_day_whose_mail_fails_is_reported_by_the_next_sweep(world):
    swept(world, rules())
    world.pass_minutes(24 * 60)
    world.deny("Publish")

    first = swept(world, rules())
    world.pass_minutes(10)
    second = swept(world, rules())

    assert [failure.step for failure in first.done.failures] == ["report the day"]
    assert not second.failed
    assert len([text for _, text in world.messages if "GPU hours rented" in text]) == 1


def test_what_the_reaper_terminated_counts_as_saved_from_then_on(world):
    checked = policy(top={"budget": budget_json()}, idle_after_hours=1, grace_minutes=20)
    instance = next(iter(world.instances.values()))
    instance.busy = False
    for _ in range(30 * 6):
        swept(world, checked)
        world.pass_minutes(10)

    assert [each_end.id for _, each_end, _ in world.ends] == [instance.id]
    saved = stored(world, "days/2026/03/2026-03-02.json")["saved"][instance.id]
    end = world.ends[0][0]
    midnight = end.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    assert saved["seconds"] == pytest.approx((midnight - end).total_seconds(), abs=120)
