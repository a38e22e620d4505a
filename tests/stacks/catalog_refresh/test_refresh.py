"""Update of the price files: the requests, the written files, and no partial write."""

import datetime
import shutil
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, prices, reader
from gpu_fleet_stacks.catalog_refresh import alicloud, aws, command
from gpu_fleet_stacks.catalog_refresh.listed import SpotSpan, plain, share_of_time
from gpu_fleet_stacks.catalog_refresh.rewrite import RefreshError, rewrite_catalog, rewrite_prices, wanted
from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.core.files import replace
from tests.stacks import alicloud_account
from tests.stacks.aws_account import Account, Refusal
from tests.stacks.catalog_refresh.price_answers import describe_price, get_products, spot_history

TODAY = datetime.date(2026, 11, 21)
HERE = "us-east-1"
PRICES_FILE = command.PRICES
CATALOG, PRICES = command.CATALOG.read_text(), command.PRICES.read_text()


def say(_: str) -> None:
    """Ignore a message."""


@pytest.fixture
def copies(tmp_path, monkeypatch) -> Path:
    """Copy the price files to a folder where a test may write."""
    for name in ("CATALOG", "PRICES"):
        path = getattr(command, name)
        shutil.copy(path, tmp_path / path.name)
        monkeypatch.setattr(command, name, tmp_path / path.name)
    return tmp_path


@pytest.fixture
def cloud(monkeypatch) -> Account:
    """Return an AWS with every price of the files, and spot at a quarter."""
    found = Account(
        {
            "pricing:GetProducts": get_products(),
            "ec2:DescribeSpotPriceHistory": spot_history(g5_xlarge="0.2515"),
        }
    )
    monkeypatch.setattr(aws, "clients_in", lambda region: found.client)
    return found


def run(*arguments: str):
    return CliRunner().invoke(main, ["catalog", "refresh", *arguments])


def renewed(copies: Path):
    """Refresh AWS's prices; return those that are then written, and what was said."""
    done = run("--cloud", "aws")
    assert done.exit_code == 0, done.output
    prices.load.cache_clear()
    return prices.load(Cloud.AWS, copies / "prices.toml"), done


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


UNTOUCHED = {"catalog.toml": CATALOG, "prices.toml": PRICES}


def test_aws_is_asked_for_every_type_spot_and_everything_else_it_lists(cloud):
    """Each price is of the first tier, in our unit, without capacity blocks and other storage classes."""
    found = aws.ask(HERE, wanted(CATALOG, Cloud.AWS), TODAY, say, Aws(cloud.client))

    kinds = catalog.load().of_cloud(Cloud.AWS)
    quotes = prices.load(Cloud.AWS).quotes
    elsewhere = {"scratch", "replica_traffic", "egress"}
    others = {what: quote.amount for what, quote in quotes.items() if what not in elsewhere}
    assert {name for name, _ in found.instances} == {kind.name for kind in kinds if kind.price is not None}
    assert set(found.unlisted) == {f"{kind.name} in us-east-1" for kind in kinds if kind.price is None}
    assert {what: listed.amount for what, listed in found.others.items()} == others
    assert found.instances["g5.xlarge", HERE].amount == Decimal("1.006")
    assert found.spot == {"g5.xlarge": SpotSpan(Decimal("0.2515"), Decimal("0.2515"))}
    assert found.spot_source.endswith("median and 90th percentile of 90 days, all zones of us-east-1")


def test_egress_reservations_and_spot_of_the_region_are_renewed_and_those_of_others_kept(copies, cloud):
    before = prices.load(Cloud.AWS, PRICES_FILE)

    after, _ = renewed(copies)

    here = {
        (term, name): price for (region, term, name), price in after.commitments.items() if region == HERE
    }
    assert here["one_year", "g5.xlarge"].amount_per_hour == Decimal("0.6")
    assert here["three_years", "g5.xlarge"].amount_per_hour == Decimal("0.4")
    assert {here[of, "g5.xlarge"].source for of in ("one_year", "three_years")} == {aws.SOURCE}
    assert here["capacity_block", "p5.48xlarge"] == before.commitments[HERE, "capacity_block", "p5.48xlarge"]
    assert after.egress[HERE].cost(Decimal(50001)) == Decimal("0.09") * 50000 + 99
    assert {**after.egress, HERE: None} == {**before.egress, HERE: None}
    (spot,) = after.spot.values()
    assert (spot.expected, spot.p90) == (Decimal("0.2515"), Decimal("0.2515"))
    assert spot.source.startswith("EC2 DescribeSpotPriceHistory")


def test_what_has_no_new_reservation_keeps_its_price_with_its_day_and_is_named(copies, cloud):
    before = prices.load(Cloud.AWS, PRICES_FILE).commitments
    cloud.answers["pricing:GetProducts"] = get_products({"g6.xlarge": ""}, free=["g5.xlarge"])

    found, done = renewed(copies)

    after = found.commitments
    for name in ("g5.xlarge", "g6.xlarge"):
        assert after[HERE, "one_year", name] == before[HERE, "one_year", name]
        assert f"warning: {name}, one year, in {HERE} is in no price list" in done.stderr
    assert after[HERE, "one_year", "g5.2xlarge"].source == aws.SOURCE
    assert after[HERE, "three_years", "g5.xlarge"].source == aws.SOURCE

    cloud.answers["pricing:GetProducts"] = get_products()
    later = renewed(copies)[0].commitments
    assert {later[HERE, "one_year", name].source for name in ("g5.xlarge", "g6.xlarge")} == {aws.SOURCE}


def several(asked):
    listed = get_products()(asked)["PriceList"]
    more = [text.replace("USE1-Data", "USE1-LAX1-Data").replace("0.0900000000", "0.1") for text in listed]
    return {"PriceList": listed + (more if asked["ServiceCode"] == "AWSDataTransfer" else [])}


def test_egress_that_the_list_leaves_open_keeps_its_price_and_is_named(copies, cloud):
    first_gb_free = get_products(**{"USE1-DataTransfer-Out-Bytes": "0.0000000000"})
    for answer in (first_gb_free, several):
        cloud.answers["pricing:GetProducts"] = answer

        found, done = renewed(copies)

        assert "warning: egress is in no price list" in done.stderr
        assert found.egress == prices.load(Cloud.AWS, PRICES_FILE).egress


UNTIL = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)


def quote(days_before, price, zone="us-east-1a"):
    moment = UNTIL - datetime.timedelta(days=days_before)
    return {"InstanceType": "g5.xlarge", "AvailabilityZone": zone, "SpotPrice": price, "Timestamp": moment}


def test_a_spot_price_counts_for_as_long_as_it_held_in_all_zones_together():
    """In 90 days at 1, one zone was at 4 for 20 and the other at 9 for 10: a sixth of the time above 1."""
    history = [quote(400, "1"), quote(20, "4"), quote(400, "1", "us-east-1b"), quote(10, "9", "us-east-1b")]

    found = aws.spans(reversed(history), UNTIL)

    assert found == {"g5.xlarge": SpotSpan(Decimal(1), Decimal(4))}


@given(st.lists(st.tuples(st.decimals("0.01", 9, places=4), st.integers(1, 1000)), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_a_price_of_a_share_of_the_time_is_one_that_held_and_bounds_that_share(held):
    found = share_of_time(held, 0.9)

    assert found in [price for price, _ in held]
    below = sum(seconds for price, seconds in held if price <= found)
    assert below >= 0.9 * sum(seconds for _, seconds in held) - 1e-9


def test_an_amount_is_written_without_an_exponent_or_needless_zeros():
    written = {"1.0060000000": "1.006", "100": "100", "0E-10": "0", "0.00001": "0.00001"}

    assert {text: plain(Decimal(text)) for text in written} == written


def test_a_new_price_is_written_with_source_and_day_and_nothing_else_moves(copies, cloud):
    cloud.answers["pricing:GetProducts"] = get_products({"g5.xlarge": "1.1100000000"})

    _, done = renewed(copies)

    assert f"wrote {copies / 'catalog.toml'}, {copies / 'prices.toml'}: the prices of this" in done.output
    after = (copies / "catalog.toml").read_text().splitlines()
    pairs = zip(CATALOG.splitlines(), after, strict=False)
    different = [new for old, new in pairs if old != new and "price_list =" not in new]
    assert next(new.strip() for new in different if "g5.xlarge" in new).endswith('price = "1.11" },')
    others = [new for new in different if "g5.xlarge" not in new]
    assert any(new.startswith("date = ") for new in others)
    assert any(aws.SOURCE in new for new in others)
    (kind,) = [kind for kind in reader.read(copies / "catalog.toml") if kind.name == "g5.xlarge"]
    today = datetime.datetime.now(datetime.UTC).date()
    found = (kind.price.amount_per_hour, kind.price.date, kind.price.source)
    assert found == (Decimal("1.11"), today, aws.SOURCE)


def test_comments_order_and_the_other_cloud_stay_and_a_second_refresh_of_the_day_changes_nothing(
    copies, cloud
):
    def of_alicloud(text):
        families = tomllib.loads(text)["families"].items()
        return {name: family for name, family in families if family["cloud"] == "alicloud"}

    run("--cloud", "aws")
    first = texts(copies)
    run("--cloud", "aws")

    assert texts(copies) == first
    for name, old in UNTOUCHED.items():
        comments = [line for line in old.splitlines() if line.startswith("#")]
        assert [line for line in first[name].splitlines() if line.startswith("#")] == comments
        assert list(tomllib.loads(first[name])) == list(tomllib.loads(old))
    assert of_alicloud(first["catalog.toml"]) == of_alicloud(CATALOG)


def test_a_dry_run_shows_the_difference_and_writes_nothing(copies, cloud):
    cloud.answers["pricing:GetProducts"] = get_products({"g5.xlarge": "1.1066000000"})

    done = run("--cloud", "aws", "--dry-run")

    assert done.exit_code == 0
    row = next(line for line in done.output.splitlines() if "g5.xlarge" in line)
    assert row.split()[:5] == ["g5.xlarge", "1.006", "1.1066", "USD", "+10.0%"]
    assert texts(copies) == UNTOUCHED


SLOWER = Refusal("ThrottlingException", "slower")
NO_ANSWERS = (
    ("pricing:GetProducts", Refusal(), "denied pricing:GetProducts"),
    ("pricing:GetProducts", None, "Could not connect to the endpoint"),
    ("pricing:GetProducts", SLOWER, "GetProducts: ThrottlingException: slower"),
    # after a hundred answers
    ("ec2:DescribeSpotPriceHistory", Refusal("UnauthorizedOperation"), "denied ec2:DescribeSpotPriceHistory"),
)


def test_where_a_cloud_does_not_answer_one_message_says_so_and_nothing_is_written(copies, cloud):
    sound = dict(cloud.answers)
    for call, answer, said in NO_ANSWERS:
        cloud.answers = sound | {call: answer}

        done = run("--cloud", "aws")

        assert done.exit_code == 1
        assert f"prices could not be read: {said}" in done.output
        assert "nothing was written" in done.output
        assert "Traceback" not in done.output
        assert texts(copies) == UNTOUCHED


def test_a_type_without_an_answer_keeps_its_price_and_the_day_of_it(copies, cloud):
    cloud.answers["pricing:GetProducts"] = get_products({"p3.2xlarge": ""})

    _, done = renewed(copies)

    assert "warning: p3.2xlarge in us-east-1 is in no price list" in done.stderr
    kinds = {kind.name: kind for kind in reader.read(copies / "catalog.toml")}
    assert kinds["p3.2xlarge"].price == catalog.load().get("p3.2xlarge").price
    assert kinds["g5.xlarge"].price.source == aws.SOURCE


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "prices.toml"
    path.write_text("old")
    monkeypatch.setattr(
        "gpu_fleet_stacks.core.files.os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full"))
    )

    with pytest.raises(OSError, match="disk full"):
        replace(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_answers_that_would_make_a_bad_file_are_not_written(copies, cloud, monkeypatch):
    monkeypatch.setattr(command, "rewrite_prices", lambda text, cloud, answers: ("[clouds]", []))

    done = run("--cloud", "aws")

    assert done.exit_code == 1
    assert "nothing was written" in done.output
    assert texts(copies) == UNTOUCHED


def test_without_credentials_of_one_cloud_the_other_is_not_written_either(copies, cloud, monkeypatch):
    with alicloud_account.serving(alicloud_account.Account({})) as asked:
        monkeypatch.setattr(alicloud, "Alicloud", lambda region: asked)
        done = run()

    assert done.exit_code == 1
    assert texts(copies) == UNTOUCHED


def alicloud_answers(**changes):
    account = alicloud_account.Account({"DescribePrice": describe_price(), **changes})
    with alicloud_account.serving(account) as asked:
        return alicloud.ask("cn-shenzhen", wanted(CATALOG, Cloud.ALICLOUD), TODAY, say, asked), account


def test_alibaba_cloud_lists_instances_without_their_disk_and_a_gib_of_disk_by_the_month():
    found, account = alicloud_answers()

    assert found.instances["ecs.gn7i-c8g1.2xlarge", "cn-shenzhen"].amount == Decimal("12.5")
    assert plain(found.others["disk"].amount) == "1.095"  # 1.5 x 730 hours / 1000 GiB
    elsewhere = [asked for _, asked in account.asked if asked.get("InstanceType") == "ecs.gn7-c12g1.3xlarge"]
    assert {asked["RegionId"] for asked in elsewhere} == {"cn-shanghai"}


def test_what_alibaba_cloud_published_nowhere_gets_its_first_price():
    found, _ = alicloud_answers()

    text, changes = rewrite_catalog(CATALOG, Cloud.ALICLOUD, found)
    other, _ = rewrite_prices(PRICES, Cloud.ALICLOUD, found)

    (first,) = [change for change in changes if change.what == "ecs.gn8is.2xlarge"]
    assert (first.before, first.after, first.moved) == (None, "12.5", True)
    families = tomllib.loads(text)["families"].values()
    rows = {row["name"]: row for family in families for row in family["types"]}
    assert rows["ecs.gn8is.2xlarge"]["price_list"] == "alicloud-cn-shenzhen"
    prices = tomllib.loads(other)["clouds"]["alicloud"]["prices"]
    for name, amount in (("disk", "1.095"), ("queue_controller", "12.5")):
        assert (prices[name]["amount"], prices[name]["date"]) == (amount, TODAY)


def test_a_type_that_a_region_does_not_sell_is_named_and_no_error():
    gone = alicloud_account.Refusal("InvalidInstanceType.ValueNotSupported", "not sold")

    def answer(asked):
        return gone if asked.get("InstanceType") == "ecs.gn8v.4xlarge" else describe_price()(asked)

    found, _ = alicloud_answers(DescribePrice=answer)

    assert found.unlisted == ("ecs.gn8v.4xlarge in cn-shenzhen",)


def test_prices_in_another_currency_than_the_list_are_refused():
    found, _ = alicloud_answers(DescribePrice=describe_price(currency="USD"))

    with pytest.raises(
        RefreshError, match=r"is listed in USD, price_lists\.alicloud-\S+ is in CNY: ask with"
    ):
        rewrite_catalog(CATALOG, Cloud.ALICLOUD, found)
