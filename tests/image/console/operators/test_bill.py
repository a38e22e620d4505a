"""The month beside the cloud's bill: every kind of file that is read, what is matched, what is refused."""

import csv
import gzip
import io
import json
import tempfile
import zipfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_fleet_image.console.operators import bill_match
from gpu_fleet_image.console.operators.bill import BillError, opened, read
from gpu_fleet_image.controllers.meter.meter import SHARED
from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance
from gpu_fleet_image.core import policy as policies
from tests.image.controllers.metered import NOON
from tests.image.moto_fleet import budget_json, policy_json

OURS, ANOTHER = "123456789012", "210987654321"
DAY = "2026-11-21"
AWS = policies.parse(json.dumps(policy_json(budget=budget_json())))
ALICLOUD = policies.parse(json.dumps(policy_json(cloud="alicloud", budget=budget_json())))
LEGACY = (
    *("lineItem/UsageAccountId", "lineItem/UsageStartDate", "lineItem/ResourceId", "lineItem/UnblendedCost"),
    *("lineItem/CurrencyCode", "lineItem/LineItemType"),
    *("resourceTags/user:gpu-fleet:stack", "resourceTags/user:gpu-fleet:pool"),
)
EXPORT = (
    *("line_item_usage_account_id", "line_item_usage_start_date", "line_item_resource_id"),
    *("line_item_unblended_cost", "line_item_currency_code", "line_item_line_item_type", "resource_tags"),
)
DETAILS = ("AccountID", "BillingDate", "InstanceID", "PretaxAmount", "Currency", "Tag")
CONSOLE = ("资源购买账号ID", "账单日期", "资产/资源实例ID", "应付金额", "定价币种", "实例标签")
BEGIN = f"{DAY}T00:00:00Z"
MAP = json.dumps({"user_gpu_fleet_stack": "test", "user_gpu_fleet_pool": "dev"})
TAGS = "key:gpu-fleet:pool value:dev; key:gpu-fleet:stack value:test"
LINES = {
    "legacy": (LEGACY, (OURS, BEGIN, "i-1", "1.5", "USD", "Usage", "test", "dev")),
    "export": (EXPORT, (OURS, BEGIN, "arn:aws:ec2:us-east-1:1:instance/i-1", "1.5", "USD", "Usage", MAP)),
    "details": (DETAILS, (OURS, DAY, "i-1", "1.5", "USD", TAGS)),
    "older details": (DETAILS, (OURS, DAY, "i-1", "1.5", "USD", "gpu-fleet:stack:test;gpu-fleet:pool:dev")),
    "console": (CONSOLE, (OURS, DAY, "i-1", "1.5", "USD", TAGS)),
}


def written(path, columns, *rows):
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    path.write_text(text.getvalue(), encoding="utf-8-sig")
    return path


def lines_of(path):
    return read(opened(path), account=OURS, currency="USD", month="2026-11")


@pytest.mark.parametrize("name", LINES)
def test_every_kind_of_bill_says_the_same_also_compressed(name, tmp_path):
    plain = written(tmp_path / "bill.csv", *LINES[name])
    (tmp_path / "bill.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (line,) = lines_of(plain)

    assert lines_of(tmp_path / "bill.csv.gz") == [line]
    assert (line.day, line.resource, line.stack, line.pool) == (DAY, "i-1", "test", "dev")
    assert (line.cost, line.use) == (Decimal("1.5"), True)


def test_a_bill_of_an_account_without_tags_has_the_needed_columns_alone(tmp_path):
    needed = len(LEGACY) - 2

    (line,) = lines_of(written(tmp_path / "bill.csv", LEGACY[:needed], row()[:needed]))

    assert (line.resource, line.stack, line.pool) == ("i-1", "", "")


@pytest.mark.parametrize(
    ("reason", "pool"),
    [
        ("x gpu-fleet:pool:prod", "dev"),
        ("key:gpu-fleet:pool value:prod", "dev"),
        ("x; key:gpu-fleet:pool value:prod", ""),
    ],
)
def test_the_reason_of_a_hold_forges_no_tag(reason, pool, tmp_path):
    tags = f"key:gpu-fleet:keep-reason value:{reason}; {TAGS}"

    (line,) = lines_of(written(tmp_path / "bill.csv", DETAILS, (OURS, DAY, "i-1", "1.5", "USD", tags)))

    assert (line.stack, line.pool) == ("test", pool)


def legacy(tmp_path, *rows):
    return written(tmp_path / "bill.csv", LEGACY, *rows)


def row(resource="i-1", cost="24.144", kind="Usage", stack="test", pool="dev", **changes):
    known = {"account": OURS, "begin": BEGIN, "currency": "USD"} | changes
    return (known["account"], known["begin"], resource, cost, known["currency"], kind, stack, pool)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(account=ANOTHER)], f"is of {ANOTHER}; allowed: a bill with account {OURS}, the stack's own"),
        ([row(begin="2026-10-21T00:00:00Z")], "is of 2026-10; allowed: --month 2026-11"),
        ([row(currency="EUR")], "line 2: lineItem/CurrencyCode = 'EUR'; allowed: USD, as the meter counts"),
        ([row(cost="1e999999")], "line 2: lineItem/UnblendedCost = '1e999999'; allowed: a number up to "),
        ([row(), row(cost="much")], "line 3: lineItem/UnblendedCost = 'much'; allowed: a number"),
        ([row(begin="yesterday")], "line 2: lineItem/UsageStartDate = 'yesterday'; allowed: a day"),
        ([row()[:3]], "damaged at line 2: not as many fields as columns"),
        ([], "has no lines"),
    ],
)
def test_a_bill_that_cannot_be_compared_is_refused_by_one_message(rows, words, tmp_path):
    with pytest.raises(BillError) as raised:
        lines_of(legacy(tmp_path, *rows))

    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x1f\x8bno", b"PK\x03\x04no", b"PAR1no", b"a,b\n1,2\n"]
)
def test_what_is_no_bill_is_refused(content, tmp_path):
    path = tmp_path / "bill"
    path.write_bytes(content)

    with pytest.raises(BillError, match=r"allowed|damaged|pyarrow"):
        lines_of(path)


@given(st.integers(0, 10_000), st.integers(0, 7), st.sampled_from(["gzip", "zip"]))
@example(at=11, bit=0, form="zip")
def test_a_compressed_bill_with_a_wrong_bit_is_read_or_refused_by_one_message(at, bit, form):
    text = "\n".join(["no bill", *(f"{number}" for number in range(400))]).encode()
    packed = io.BytesIO()
    if form == "gzip":
        packed.write(gzip.compress(text))
    else:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bill.csv", text)
    content = bytearray(packed.getvalue())
    content[at % len(content)] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bill")
        path.write_bytes(content)

        with pytest.raises(BillError):
            lines_of(path)


def metered():
    """Return a day of two instances with disks of 0.02 an hour, and 2.40 that all pools share."""
    known = MeteredInstance("dev", "ada", "g5.xlarge", 1, Decimal("1.026"))
    shares = {name: DayShare(known, 86_400, Decimal("24.624")) for name in ("i-1", "i-2")}
    return Day(NOON.replace(hour=0), {"dev": Decimal("49.248"), SHARED: Decimal("2.40")}, shares)


def compared(tmp_path, *rows, policy=AWS):
    return bill_match.compare([metered()], lines_of(legacy(tmp_path, *rows)), policy)


def test_instances_disks_and_shared_parts_are_matched_by_day(tmp_path):
    found = compared(
        tmp_path,
        row("i-1", "12"),
        row("i-1", "13"),
        row("vol-1", "0.90"),
        row("i-9", "5"),
        row("nat-1", "2.40", pool=""),
        row("i-7", "100", stack="other"),
        row("", "7", kind="Tax", stack="", pool=""),
    )

    assert [(each.what, each.place, each.meter, each.bill) for each in found.rows] == [
        ("(shared)", "both", Decimal("2.40"), Decimal("2.40")),
        ("(disks and others)", "both", Decimal("0.96"), Decimal("0.90")),
        ("i-1", "both", Decimal("24.144"), Decimal(25)),
        ("i-2", "meter", Decimal("24.144"), None),
        ("i-9", "bill", None, Decimal(5)),
    ]
    assert (found.others, found.no_use) == (100, 7)
    assert "meter 51.65, bill 33.30 USD (+55.1%)" in found.sentence()


def test_on_alibaba_cloud_the_disks_are_in_the_instance_s_line(tmp_path):
    found = compared(
        tmp_path, row("i-1", "24.624"), row("i-2", "24.624"), row("", "2.40", pool=""), policy=ALICLOUD
    )

    assert {each.difference for each in found.rows} == {0}


def test_the_difference_of_a_pool_s_day_is_that_of_its_rows(tmp_path):
    found = compared(tmp_path, row("i-1", "25"), row("i-9", "5"))

    sums = bill_match.by_pool(found.rows)

    assert [(each.day, each.pool, each.difference) for each in sums] == [
        (DAY, SHARED, Decimal("-2.40")),
        (DAY, "dev", Decimal(30) - Decimal("49.248")),
    ]
    assert list(csv.DictReader(io.StringIO(bill_match.as_text(sums, "csv"))))[1]["difference"] == "-19.25"
