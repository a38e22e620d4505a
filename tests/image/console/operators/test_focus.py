"""The month as rows of FOCUS 1.2: the columns, their values, and the sum, which is the meter's."""

import csv
import io
import json
import shutil
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpu_fleet_image.console.operators import focus
from gpu_fleet_image.controllers.meter.meter import SHARED
from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance, Unused
from gpu_fleet_image.core import policy as policies
from tests.image.controllers.metered import NOON
from tests.image.moto_fleet import REGION, policy_json
from tests.pins import pinned
from tests.ran import ran

POLICY = policies.parse(json.dumps(policy_json()))
ACCOUNT = "123456789012"
MONTH_COST = Decimal("99.123456789")
# FOCUS 1.2, model 1.2.0.1: column -> allowed values, of those that this project writes.
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other", ""},
    "ServiceCategory": {"Compute", "Other"},
    "ServiceSubcategory": {"Virtual Machines", "Other (Other)"},
}
MAY_BE_NULL = {
    *("ChargeClass", "CommitmentDiscountId", "CommitmentDiscountStatus", "InvoiceId"),
    *("ConsumedQuantity", "ConsumedUnit", "PricingCategory", "PricingQuantity", "PricingUnit"),
    *("ResourceId", "ResourceName", "ResourceType"),
}
# What these rows claim. A rule of the others is for providers that publish SKUs, discounts, reservations ...
CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED,BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED,REGION_SUPPORTED,TAGGING_SUPPORTED,"
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED,RESOURCE_TYPE_ASSIGNMENT_SUPPORTED,USAGE_MEASUREMENT_SUPPORTED"
)
OPTIONS = ("--validate-version", "1.2", "--block-download", "--applicability-criteria", CRITERIA)
VALIDATOR = ("focus-validator==2.2.1", *pinned("pyarrow"))
# InvoiceId must be null (C-004) or must not (C-005): the model has no condition, and no column passes both.
CONTRADICTORY = {"InvoiceId-C-005-C"}


def text() -> str:
    """Return three days of an instance, on spot but for the first, and one that nobody owns, as CSV."""
    days = []
    for number in range(3):
        known = MeteredInstance("dev", "ada", "g5.xlarge", 1, Decimal("1.026"), spot=number > 0)
        mine = DayShare(known, 86_399, Decimal("24.623715"))
        free = DayShare(MeteredInstance("dev", "", "g5.xlarge", 1, Decimal(0)), 3600, Decimal(0))
        costs = {"dev": Decimal("25.1"), SHARED: Decimal("2.400000001")}
        begin = NOON.replace(day=2 + number, hour=0)
        unused = {"dev": {"cr-1": Unused(7200, Decimal("0.25"))}}
        days.append(Day(begin, costs, {f"i-{number}": mine, "i-z": free}, unused=unused, seconds=86_400))
    jobs = {"2026-11-03": {"i-1": {"bob/wrap": 100.0, "ada/gpt": 20_000.0}}}
    return focus.as_csv(focus.rows(days, MONTH_COST, POLICY, ACCOUNT, teams={"ada": "vision"}, jobs=jobs))


def read() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text())))


def test_each_cost_adds_up_to_the_meter_without_rounding_and_other_columns_have_an_allowed_value_or_none():
    sums = {column: sum(Decimal(row[column]) for row in read()) for column in focus.COSTS}

    assert sums == dict.fromkeys(focus.COSTS, MONTH_COST)
    for row in read():
        assert {name for name, value in row.items() if not value} <= MAY_BE_NULL
        assert all(row[column] in allowed for column, allowed in ALLOWED.items())
        assert (row["ConsumedQuantity"] == "") == (row["ChargeCategory"] != "Usage")
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]


def test_an_instance_s_row_names_who_pays_for_it_and_there_is_one_for_each_who_had_jobs_on_it():
    (row,) = [row for row in read() if row["ResourceId"] == "i-0"]

    assert json.loads(row["Tags"]) == {
        "gpu-fleet:owner": "ada",
        "gpu-fleet:pool": "dev",
        "gpu-fleet:stack": "test",
        "gpu-fleet:team": "vision",
    }
    assert (row["PricingCategory"], row["PricingQuantity"]) == ("Standard", "23.999722222")
    assert (row["BillingAccountId"], row["RegionId"]) == (ACCOUNT, REGION)
    rows = {json.loads(row["Tags"])["gpu-fleet:owner"]: row for row in read() if row["ResourceId"] == "i-1"}

    assert {owner: row["PricingQuantity"] for owner, row in rows.items()} == {
        "bob": "0.027777778",
        "ada": "23.971944444",
    }
    assert sum(Decimal(row["BilledCost"]) for row in rows.values()) == Decimal("24.623715")
    assert {row["PricingCategory"] for row in rows.values()} == {"Dynamic"}


def python() -> str:
    """Return a Python that the validator has wheels for; skip the test if there is none."""
    there = [shutil.which("python3.12"), *map(str, Path.home().glob(".pyenv/versions/3.12*/bin/python"))]
    for path in filter(None, there):
        if subprocess.run([path, "-c", "import encodings"], check=False, capture_output=True).returncode == 0:
            return path
    pytest.skip("focus-validator 2.2 needs Python 3.12, or NumPy 1.26 is compiled")


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_the_validator_of_focus_accepts_the_rows(tmp_path):
    there, uv = tmp_path / "there", (sys.executable, "-m", "uv")
    subprocess.run([*uv, "venv", "-q", "--python", python(), there], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", there / "bin/python", *VALIDATOR], check=True)
    (tmp_path / "rows.csv").write_text(text())
    # its reader of CSV takes an account's number for an integer: Parquet has types
    program = (
        "import polars, sys; rows = polars.read_csv(sys.argv[1], infer_schema=False); numbers = sys.argv[3:];"
        "rows.with_columns([polars.col(name).cast(polars.Decimal(38, 9)) for name in numbers])"
        ".write_parquet(sys.argv[2])"
    )
    numbers = [*focus.COSTS, "ConsumedQuantity", "PricingQuantity"]
    files = [tmp_path / "rows.csv", tmp_path / "rows.parquet"]
    subprocess.run([there / "bin/python", "-c", program, *files, *numbers], check=True)

    (packages,) = there.glob("lib/python3*/site-packages")  # it opens its own tables by relative paths
    done = ran([there / "bin/focus-validator", "--data-file", files[1], *OPTIONS], check=True, cwd=packages)

    lines = [line for line in done.stdout.splitlines() if ": FAIL" in line or ": PASS" in line]
    verdicts = [line.split()[1:3] for line in lines]
    failed = {rule.rstrip(":") for rule, verdict in verdicts if verdict == "FAIL"}
    assert failed <= CONTRADICTORY
    assert len(verdicts) > 150, "it has looked at the rows"


def test_a_day_in_progress_ends_with_the_month_and_has_the_hours_that_are_metered():
    day = Day((NOON + timedelta(days=9)).replace(hour=0), {SHARED: Decimal(1)}, seconds=5400)

    (row,) = focus.rows([day], None, POLICY, ACCOUNT, teams={}, jobs={})

    assert row["ChargePeriodEnd"] == row["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"
    assert row["PricingQuantity"] == row["ConsumedQuantity"] == "1.500000000"
