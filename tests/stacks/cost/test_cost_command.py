"""The cost for users: the command, the line in a preview, the output, the refusal."""

import datetime
import io
import json
import re
from decimal import Decimal

import pulumi
import pytest
from click.testing import CliRunner
from rich.console import Console

from gpu_fleet_stacks.aws import stack as aws_stack
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.cost import page, view
from gpu_fleet_stacks.cost.command import cost as command
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import OvercommitError
from gpu_fleet_stacks.cost.notice import VARIABLE, Deployed, DeployedCostError, deployed, ended, sentence
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks import test_queue
from tests.stacks.alicloud import test_queue_alicloud
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.alicloud_programs import register as alicloud_register
from tests.stacks.examples import pool, stack, stack_file
from tests.stacks.registrations import declared
from tests.stacks.shipped import SHIPPED


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "160"})


def test_a_reservation_that_has_ended_is_named_since_the_estimate_counts_it():
    held = [{"id": "cr-0123456789abcdef0", "zone": "us-east-1a", "count": 2, "until": "2027-03-31T11:30Z"}]
    reserved = pool(types=["p5.48xlarge"], size={"max": 2}, market="reservation", reservations=held)
    dev = stack(pools=[reserved])

    assert ended(dev, datetime.date(2027, 3, 31)) == []
    assert (
        "cr-0123456789abcdef0 of pool dev is past its until, 2027-03-31T11:30Z"
        in ended(dev, datetime.date(2027, 4, 1))[0]
    )


@pytest.fixture
def years_later(monkeypatch):
    """Make every price stale."""
    monkeypatch.setattr(prices, "today", lambda: datetime.date(2100, 1, 1))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Return the list of a program's log lines."""
    lines: list[str] = []
    for level in ("info", "warn"):
        monkeypatch.setattr(pulumi.log, level, lambda text, level=level: lines.append(f"{level}: {text}"))
    return lines


def dear(**budget: object):
    recipients = {"monthly": 5000, "recipients": ["a@b.org"]}
    return stack(pools=[pool(types=["p5.48xlarge"], size={"max": 4})], budget=recipients | budget)


def test_the_command_shows_parts_sums_prices_bars_and_what_the_budget_leaves(years_later):
    done = run("aws-prod")

    assert done.exit_code == 0
    for shown in (
        r"train .* spot p4d\.24xlarge .* 21,158\.32 .* 64,116\.31",
        r"a month .* 6,593\.26 .* 17,332\.76 .* 352\.92 .* 28,981\.78 .* 72,044\.68",
        r"p4d\.24xlarge on spot .* 7\.246 USD .* us-east-1 .* 2025-06-28 .* 90th percentile",
        r"worst month +█+.* 72,044\.68 USD",
        r"nat gateway +0\.045 USD +gateway and hour +us-east-1 +2026-02-24 +cloudburn",
        r"47,955\.32 USD under the",
    ):
        assert re.search(shown, done.output), shown
    assert re.search(r"^warning: \d+ prices older than 180 days, the oldest \(", done.stderr, re.MULTILINE)
    bars = {name: len(bar) for name, bar in re.findall(r"^ (\w+) +(█+)", done.output, re.MULTILINE)}
    assert bars["budget"] == page.BAR_WIDTH
    assert bars["train"] == pytest.approx(page.BAR_WIDTH * 64_296 / 120_000, abs=1)


def test_an_unknown_price_reads_unknown_and_an_assumed_one_is_distinguished_from_a_listed_one():
    done = run("alicloud-prod")

    assert re.search(r"shared .* nat traffic .* unknown .* unknown .* unknown", done.output)
    assert re.search(r"all .* at least, a month .* 1,151,531\.02", done.output)
    assert "at worst at least 1,151,531.02 CNY a month" in done.output.replace("\n", " ")
    assert re.search(r"ecs\.gn8v-8x\.48xlarge +400 CNY .* assumed +budget\.assume", done.output)


def test_a_price_of_another_region_is_named_beside_it(monkeypatch):
    network = {"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]}
    monkeypatch.setattr(
        stack_files, "settings_of", lambda name: stack(region="eu-central-1", network=network)
    )

    done = run("test")

    assert re.search(r"g5\.xlarge +1\.006 USD .* us-east-1, not eu-central-1", done.output)
    assert "warning: prices of us-east-1 replace those of eu-central-1: g5.xlarge" in done.stderr


def test_more_data_costs_more_and_traffic_to_the_internet_tier_by_tier_where_it_is_asked_for():
    asked = run("aws-dev", "--bucket-gb", "10000", "--egress-gb", "60000", "--snapshot-gb", "100")

    assert re.search(r"storage .* bucket .* 230\.00", asked.output)
    # 10,240 * 0.09 + 40,960 * 0.085 + 8,800 * 0.07
    assert re.search(r"traffic .* egress .* 5,019\.20", asked.output)
    assert re.search(r"storage .* snapshot .* 5\.00", asked.output)
    assert "egress" not in run("aws-dev").output.split("not counted")[0]


def test_a_region_without_a_price_of_egress_takes_that_of_no_other_and_one_may_be_assumed(monkeypatch):
    region = {"region": "mx-central-1", "network": {"cidr": "10.0.0.0/16", "zones": ["mx-central-1a"]}}
    budget = {"monthly": 5000, "recipients": ["a@b.org"], "assume": {"egress": 0.5}}
    files = {"test": stack(**region), "assuming": stack(**region, budget=budget)}
    monkeypatch.setattr(stack_files, "settings_of", files.__getitem__)

    done, assuming = run("test", "--egress-gb", "500", "-o", "json"), run("assuming", "--egress-gb", "500")

    assert json.loads(done.stdout)["unknown"] == ["egress"]
    assert "without these, which have no public price: egress; the sums are minimums" in done.output
    assert re.search(r"traffic .* egress .* 250\.00", assuming.output)


def test_more_data_than_can_be_counted_is_refused():
    done = run("aws-dev", "--nat-gb", str(10**35))

    assert done.exit_code == 2
    assert "is not in the range 0<=x<=1000000000" in done.output


def test_a_stack_over_its_budget_is_shown_first_and_then_refused(monkeypatch):
    monkeypatch.setattr(stack_files, "settings_of", lambda name: dear())

    done = run("test")

    assert "155,894.10 USD over the" in done.output
    assert isinstance(done.exception, OvercommitError)


def handed_over(settings: Stack) -> str:
    """Return the output of a deployed stack, as the CLI prints it."""
    return json.dumps(view.output(estimate(settings), settings.budget.monthly))


def test_a_preview_says_the_cost_in_one_line_and_how_it_differs_from_the_deployed_one(
    register, said, monkeypatch
):
    larger = stack(pools=[pool(size={"min": 0, "desired": 2, "max": 4})])

    register(stack())
    monkeypatch.setenv(VARIABLE, handed_over(stack()))
    register(larger)
    register(stack())

    first, of_larger, of_same = [text for text in said if text.startswith("info: cost of")]
    now = "now 1.16 USD an hour, 848.68 USD a month expected; at worst "
    assert first.startswith(f"info: cost of test: {now}")
    assert first.endswith("the budget")
    # an instance more is 1.006 x 730 and 21.00 of disk, two at worst
    assert of_larger.endswith("; deployed: +755.38 a month now, +1,510.76 at worst, USD")
    assert of_same.endswith("; deployed: the same")


def test_a_smaller_stack_is_cheaper_than_the_deployed_one_and_another_currency_not_comparable():
    before = deployed({VARIABLE: handed_over(stack())})
    smaller = estimate(stack(pools=[pool(size={"min": 0, "desired": 0, "max": 2})]))
    elsewhere = Deployed(Money(Decimal(1), "CNY"), Money(Decimal(2), "CNY"))

    assert sentence(smaller, before) == "deployed: -755.38 a month now, 0.00 at worst, USD"
    assert sentence(smaller, elsewhere) == "deployed: in CNY, not comparable"


def test_before_the_first_up_there_is_nothing_to_compare():
    for environ in ({}, {VARIABLE: ""}, {VARIABLE: " \n"}):
        assert deployed(environ) is None
    assert sentence(estimate(stack()), None) == ""


def test_what_is_no_output_of_the_program_is_named():
    message = r"GPU_FLEET_DEPLOYED_COST = .* must be the stack's output cost"
    for text in ("42", "{}", "not JSON", '{"currency": "USD", "month": {"now": {"high": "x"}}}'):
        with pytest.raises(DeployedCostError, match=message):
            deployed({VARIABLE: text})


def test_stale_prices_and_an_output_of_another_version_are_warned_of_and_stop_no_preview(
    register, said, monkeypatch, years_later
):
    monkeypatch.setenv(VARIABLE, '{"hourly": 3}')

    register(stack())

    warned = " ".join(text for text in said if text.startswith("warn:"))
    assert "no difference to the deployed stack" in warned
    assert "180 days" in warned
    assert [text for text in said if text.startswith("info: cost of test") and text.endswith("the budget")]


def test_the_cost_is_an_output_of_the_stack_as_plain_text_also_over_its_budget_where_its_file_allows_that():
    found = declared(stack()).outputs["cost"]

    assert found == view.output(estimate(stack()), 5000)
    assert found["month"]["now"] == {"low": "848.68", "high": "848.68"}
    assert (found["currency"], found["unknown"]) == ("USD", [])
    assert declared(dear(allow_overcommit=True)).outputs["cost"]["worst_month"] == "160894.10"


def test_nothing_is_declared_of_a_stack_whose_worst_month_passes_its_budget(register, monkeypatch):
    reached: list[str] = []
    monkeypatch.setattr(aws_stack, "provider", lambda settings: reached.append(settings.name))

    with pytest.raises(OvercommitError, match=r"budget\.monthly = 5,000\.00 USD: the worst case of a month"):
        register(dear())

    assert reached == []


# What a part of a stack is called where its cost is shown: a price's name, or a word of what is not counted.
CALLED = {
    "aws:autoscaling/group:Group": "on-demand",
    "aws:budgets/budget:Budget": None,
    "aws:cloudwatch/dashboard:Dashboard": "dashboards",
    "aws:cloudwatch/logGroup:LogGroup": "logs",
    "aws:cloudwatch/metricAlarm:MetricAlarm": "alarms",
    "aws:ec2/eip:Eip": "public address",
    "aws:ec2/flowLog:FlowLog": "log",
    "aws:ec2/natGateway:NatGateway": "nat gateway",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "endpoint",
    "aws:efs/backupPolicy:BackupPolicy": "backups",
    "aws:efs/fileSystem:FileSystem": "home",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "scratch",
    "aws:imagebuilder/imagePipeline:ImagePipeline": "image builder",
    "aws:kms/key:Key": "keys",
    "aws:lambda/function:Function": "functions",
    "aws:s3/bucket:Bucket": "bucket",
    "aws:scheduler/schedule:Schedule": "functions",
    "aws:secretsmanager/secret:Secret": "secrets",
    "aws:sns/topic:Topic": "messages",
    "aws:sqs/queue:Queue": "messages",
    "alicloud:cms/alarm:Alarm": "alarms",
    "alicloud:ecs/ecsImagePipeline:EcsImagePipeline": "image builds",
    "alicloud:ecs/eipAddress:EipAddress": "public address",
    "alicloud:ecs/instance:Instance": "queue controller",
    "alicloud:ess/alarm:Alarm": "alarms",
    "alicloud:ess/scalingGroup:ScalingGroup": "on-demand",
    "alicloud:fc/v3Function:V3Function": "functions",
    "alicloud:kms/key:Key": "keys",
    "alicloud:kms/secret:Secret": "secrets",
    "alicloud:log/store:Store": "log",
    "alicloud:nas/fileSystem:FileSystem": "home",
    "alicloud:oss/bucket:Bucket": "bucket",
    "alicloud:privatelink/vpcEndpoint:VpcEndpoint": "endpoint",
    "alicloud:vpc/natGateway:NatGateway": "nat gateway",
}
# Rules, roles, names and what hangs on a part above: nothing is paid for them alone.
WITHOUT_PRICE = re.compile(
    r"aws:(iam|vpc|lambda/(functionEventInvokeConfig|permission)|s3/bucket\w+|sns/topic\w+|efs/(fileSystemPolicy|mountTarget)"
    r"|ec2/(defaultSecurityGroup|internetGateway|launchTemplate|networkInterface|placementGroup|route\w*|securityGroup|subnet|vpc)"
    r"|cloudwatch/event\w+|autoscaling/lifecycleHook|kms/alias|ssm/(document|parameter)|imagebuilder/(?!imagePipeline)\w+)[:/]"
    r"|alicloud:(ram|cms/(alarmContact|alarmContactGroup|monitorGroup)|ecs/(command|ecsImageComponent|ecsLaunchTemplate"
    r"|eipAssociation|securityGroup\w*)|ess/(?!alarm:|scalingGroup:)\w+|fc/(?!v3Function)\w+|kms/alias|log/(project|storeIndex)"
    r"|nas/(?!fileSystem)\w+|oss/bucket\w+|privatelink/vpcEndpointZone|vpc/(?!natGateway)\w+)[:/]"
)


def unnamed(parts: set[str], said: str) -> set[str]:
    """Return the types without a price that are not named as not counted either."""
    unknown = {part for part in parts if part not in CALLED and not WITHOUT_PRICE.match(part)}
    return unknown | {part for part in parts if CALLED.get(part) and CALLED[part] not in said}


def test_every_part_of_a_stack_is_priced_or_named_as_not_counted():
    for name in SHIPPED:
        said = CliRunner().invoke(command, [name], env={"COLUMNS": "400"}).stdout
        assert unnamed({made.type for made in declared(name).resources}, said) == set(), name


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_every_part_of_a_queue_is_priced_or_named_as_not_counted(cloud, request):
    """No shipped stack has a queue."""
    if cloud == "aws":
        settings, program_of = stack(**test_queue.QUEUED), request.getfixturevalue("register")
    else:
        settings, program_of = alicloud_stack(**test_queue_alicloud.QUEUED), alicloud_register
    parts = {made.type for made in program_of(settings).resources}
    console = Console(width=400, file=io.StringIO(), record=True)

    console.print(page.page(estimate(settings), settings.budget.monthly))

    said = console.export_text()
    assert "queue controller" in said
    assert unnamed(parts, said) == set()


def test_what_a_stack_declares_and_no_line_counts_is_named():
    full = stack(
        storage={"home": True},
        network=stack_file()["network"] | {"interface_endpoints": True},
        logs={"bucket_access": True, "data_events": True},
        image={"id": "ami-0123456789abcdef0", "base_id": "ami-0123456789abcdef1", "scan": True},
    )
    console = Console(width=400, file=io.StringIO(), record=True)

    console.print(page.page(estimate(full), full.budget.monthly))

    words = ("throughput of EFS", "interface endpoints", "CloudTrail", "Amazon Inspector", "requests")
    said = console.export_text().split("not counted: ")[1]
    assert [word for word in words if word not in said] == []
    assert estimate(stack()).uncounted == ()
