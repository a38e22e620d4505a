"""A month of the ledger: its savings, counted once, and the page that shows them."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from itertools import count

import boto3
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.operators.monthly_page import page
from gpu_fleet_image.console.operators.monthly_savings import month_of, parse_month, summarise
from gpu_fleet_image.console.users.ledger_records import End
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from tests.image.fake_aws import fake_aws
from tests.image.moto_fleet import write_policy

NOVEMBER = parse_month("2026-11")
LATER = datetime(2026, 12, 24, tzinfo=UTC)


INSTANCE = {"stack": "test", "region": "us-east-1", "pool": "dev", "owner": "ada", "group": None}
INSTANCE |= {"instance_id": "i-1", "instance_type": "g5.xlarge", "launched_at": "2026-11-01T00:00:00+00:00"}
IDLE = {"reason": "idle for 1.0 d", "idle_s": 86400, "idle_since": "2026-11-20T12:00:00+00:00"}
IDLE |= {"reap_after": "2026-11-21T12:00:00+00:00"}
PRICE = {"currency": "USD", "price_per_hour": "2.00", "saved_per_month": "1460.00"}


def record(at="2026-11-21T12:00:00+00:00", **changes):
    """Return a record as ``ledger.record_of`` writes it."""
    return {"schema_version": 1, "at": at, "action": "terminate"} | INSTANCE | IDLE | PRICE | changes


def end(at="2026-11-21T12:00:00+00:00", **changes):
    return End.from_json(record(at, **changes), "key")


STOPPED = end("2026-11-10T00:00:00+00:00", action="stop")
STARTED = replace(STOPPED, started_at=datetime(2026, 11, 12, tzinfo=UTC))
AGAIN = end("2026-11-20T00:00:00+00:00", launched_at="2026-11-12T00:00:00+00:00")
OTHER_MONTHS = (end("2026-10-31T23:59:59+00:00"), end("2026-12-01T00:00:00+00:00"))
AT_THREE = datetime(2026, 11, 21, 15, tzinfo=UTC)
# (ends, the present, hours at 2 USD)
SAVED = {
    "a termination, until the month ends": ([end("2026-11-30T14:00:00+00:00")], LATER, 10),
    "nothing ahead of the present": ([end()], AT_THREE, 3),
    "nothing of other months": (OTHER_MONTHS, LATER, 0),
    "stopped and later terminated, once": ([STOPPED, end("2026-11-20T00:00:00+00:00")], LATER, 24 * 21),
    "stopped until it was started again, as its end shows": ([STOPPED, AGAIN], LATER, 24 * (2 + 11)),
    "stopped until a sweep saw it start": ([STARTED], LATER, 48),
    "so, and terminated later": ([STARTED, AGAIN], LATER, 48 + 24 * 11),
}


def test_an_instance_saves_its_price_while_it_does_not_run_for_its_end_counted_once():
    totals = {name: summarise(ends, NOVEMBER, now).total for name, (ends, now, _) in SAVED.items()}

    assert totals == {name: Decimal("2.00") * hours for name, (_, _, hours) in SAVED.items()}


def test_an_unknown_price_saves_nothing_is_reported_and_makes_the_month_one_of_at_least_so_much():
    known, unknown = end("2026-11-30T23:00:00+00:00"), end(instance_id="i-2", price_per_hour=None)
    summary = summarise([known, unknown], NOVEMBER, LATER)

    assert (summary.total, summary.unpriced) == (2, 1)
    assert "At least 2.00 USD saved" in page(summary, "aws-dev")
    assert "At least" not in page(summarise([known], NOVEMBER, LATER), "aws-dev")


def test_pools_and_owners_are_distinguished_largest_first():
    last = ((23, "dev", "ada"), (20, "train", "bob"), (22, "dev", ""))  # hour of the 30th, pool, owner
    ends = [
        end(f"2026-11-30T{hour}:00:00+00:00", instance_id=f"i-{hour}", pool=pool, owner=owner)
        for hour, pool, owner in last
    ]

    summary = summarise(ends, NOVEMBER, LATER)

    assert summary.by_pool == {"train": Decimal("8.00"), "dev": Decimal("6.00")}
    assert list(summary.by_owner) == ["bob", "nobody", "ada"]


def test_two_currencies_are_refused_and_a_damaged_record_is_named():
    with pytest.raises(CloudError, match="mixes currencies: CNY, USD"):
        summarise([end(), end(instance_id="i-2", currency="CNY")], NOVEMBER, LATER)
    for key in ("at", "price_per_hour", "owner"):
        damaged = {name: value for name, value in record().items() if name != key}

        with pytest.raises(CloudError, match=r"ledger record a/b\.json: .*is missing"):
            End.from_json(damaged, "ledger record a/b.json")


def test_what_is_no_month_is_refused():
    for text in ("", "2026", "2026-13", "november", "2026-11-01", "0001-01", "9999-12"):
        with pytest.raises(ConfigurationError, match="allowed: YEAR-MONTH, say 2026-11"):
            parse_month(text)


@given(st.datetimes(datetime(2000, 2, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - zone given
def test_a_month_holds_its_moments_and_follows_the_one_before(moment):
    month = month_of(moment)

    assert month.start <= moment < month.end
    assert 28 <= month.days <= 31
    assert month.before().end == month.start


ENDS = st.lists(
    st.builds(
        lambda hours, instance, started, price: end(
            (NOVEMBER.start + timedelta(hours=hours)).isoformat(),
            instance_id=f"i-{instance}",
            launched_at=(NOVEMBER.start + timedelta(hours=min(started, hours))).isoformat(),
            price_per_hour=price,
        ),
        st.integers(0, 719),
        st.integers(0, 3),
        st.integers(-100, 719),
        st.sampled_from(["1.006", "32.77", None]),
    ),
    max_size=8,
)


@given(ENDS)
def test_no_instance_saves_more_than_the_month_would_have_cost_and_savings_only_grow_to_the_total(ends):
    summary = summarise(ends, NOVEMBER, LATER)

    assert all(saving.amount is None or saving.amount >= 0 for saving in summary.savings)
    instances = len({saving.end.instance_id for saving in summary.savings})
    assert summary.total <= instances * Decimal("32.77") * 720 + len(ends)
    assert sum(summary.by_pool.values()) == sum(summary.by_owner.values()) == summary.total
    assert list(summary.by_day) == sorted(summary.by_day)
    assert len(summary.by_day) == 30
    assert abs(summary.by_day[-1] - summary.total) <= Decimal("0.01")


class Page(HTMLParser):
    """Parser that collects the text of a page, and fails for unclosed tags."""

    def __init__(self, text):
        super().__init__()
        self.texts = []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, _attributes):
        if tag not in {"meta", "html", "path", "use", "line", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.texts.append(data.strip())


def shown(*ends):
    return page(summarise(ends, NOVEMBER, LATER), "aws-dev")


def test_the_page_has_the_total_every_end_and_plots_that_are_as_large_as_one_another():
    """A single plot in its row must not grow to the row's width, as flex items do."""
    text = shown(end("2026-11-30T14:00:00+00:00"))

    read = Page(text)
    plots = [ET.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>") for part in text.split("<svg")[1:]]
    grid, figure = (
        re.search(rf"^{name} {{ (.*?) }}", text, re.MULTILINE)[1] for name in (r"\.plots", "figure")
    )
    assert "20.00 USD saved" in read.texts
    assert {"i-1", "g5.xlarge", "ada", "terminate", "24.0 h", "20.00"} <= set(read.texts)
    assert not read.open
    assert (len(plots), len({plot.get("viewBox") for plot in plots})) == (3, 1)
    assert "display: grid" in grid
    assert "auto-fill" in grid
    assert figure == "margin: 0; max-width: 40rem"


def test_names_from_tags_cannot_break_the_page_and_dollars_are_no_formula():
    owners = ["a$_$b", "$ada", "ada$", "$", "a\\$b$"]

    assert "<script>" not in shown(end(owner="<script>alert(1)</script>"))
    # in the plot and in the table
    assert [owner for owner in owners if shown(end(owner=owner)).count(owner) != 2] == []


def test_many_owners_are_summed_up_in_the_plot_and_a_month_without_terminations_has_none():
    assert "8 others" in shown(*(end(instance_id=f"i-{n}", owner=f"owner{n:02}") for n in range(20)))
    assert "Nothing saved" in Page(shown()).texts
    assert "<svg" not in shown()


@pytest.fixture(scope="module")
def s3():
    with fake_aws():
        made = boto3.client("s3", "us-east-1")
        made.create_bucket(Bucket="records")
        yield made


PLACES = count()


@pytest.fixture
def report(s3, tmp_path, monkeypatch):
    """Return a function to the report of a month with these records, and its page."""

    def run(records=(), *arguments, uri=None):
        prefix, output = str(next(PLACES)), tmp_path / "page.html"
        monkeypatch.setenv("GPU_FLEET_LEDGER_URI", f"s3://records/{prefix}" if uri is None else uri)
        for key, content in dict(records).items():
            s3.put_object(Bucket="records", Key=f"{prefix}/{key}", Body=json.dumps(content))
        words = ["report", "--month", "2020-11", "--to", output]
        words += ["--policy", write_policy(tmp_path / "policy.json"), *arguments]
        return CliRunner().invoke(main, [*map(str, words)]), output

    return run


def old(day, hour=0, **changes):
    return record(
        f"2020-11-{day:02}T{hour:02}:00:00+00:00", launched_at="2020-10-01T00:00:00+00:00", **changes
    )


def test_a_months_rows_for_programs_add_up_to_what_is_saved(report):
    records = confirmed(TERMINATED, old(30, 14)) | confirmed(STOP, old(29))

    result, output = report(records, "-o", "json")

    document = json.loads(output.read_text())
    assert result.exit_code == 0, result.output
    assert sum(Decimal(row["saved"]) for row in document["rows"]) == Decimal(document["saved"]) > 0


TERMINATED = "ledger/2020/11/30/i-1-x-terminate"
STOP = "ledger/2020/11/30/i-1-x-stop"
FAILED = {"schema_version": 1, "error": "no"}


def confirmed(stem, content, at=None):
    """Return a record, and its confirmation at the record's own time or another."""
    return {f"{stem}.json": content, f"{stem}.ended.json": {"schema_version": 1, "at": at or content["at"]}}


REPORTED = {
    "the month's records and no others": (
        confirmed(TERMINATED, old(30, 14))
        | confirmed("ledger/2020/10/31/i-2-x-terminate", old(30, 23, instance_id="i-2"))
        | confirmed("ledger/2020/12/01/i-3-x-terminate", old(30, 23, instance_id="i-3")),
        "22.00 USD saved by 2 terminations and stops in 2020-11: ",
    ),
    "an end that failed saves nothing": (
        {f"{TERMINATED}.json": old(30, 14), f"{TERMINATED}.failed.json": FAILED},
        "0 - saved by 0 terminations",
    ),
    "one that came about in a later try saves from then on": (
        confirmed(TERMINATED, old(30, 14), "2020-11-30T20:00:00+00:00")
        | {f"{TERMINATED}.failed.json": FAILED},
        "8.00 USD saved by 1 terminations",
    ),
    "a stop saves until its instance was started again": (
        confirmed(STOP, old(30, 14, action="stop"))
        | {STOP.replace("ledger", "started") + ".json": {"at": "2020-11-30T15:30:00+00:00"}},
        "3.00 USD saved by 1 terminations",
    ),
    "an intent that nothing confirmed saves nothing": (
        {f"{TERMINATED}.json": old(30, 14)},
        "0 - saved by 0 terminations",
    ),
}


def test_a_month_is_reported_as_its_records_say(report):
    outputs = {name: report(records)[0].output for name, (records, _) in REPORTED.items()}

    assert {name: text for name, text in outputs.items() if REPORTED[name][1] not in text} == {}


def test_ends_and_freezes_of_the_month_stand_on_its_page(report):
    freeze = {"at": "2020-11-20T12:00:00+00:00", "action": "freeze", "stage": "closed", "spent": "1000.50"}
    freeze |= {"by": "sweep", "reason": "by the budget's thresholds"}
    freezes = {"budget/2020/11/20/20201120T120000Z-closed.json": freeze}

    result, output = report(freezes | confirmed(TERMINATED, old(30, 14, instance_id="i-2")))

    assert result.exit_code == 0, result.output
    assert str(output) in result.output
    texts = Page(output.read_text()).texts
    assert {"i-2", "2020-11-20 12:00", "freeze", "closed", "1,000.50", "sweep"} <= set(texts)


def test_a_damaged_record_stops_the_report_and_is_named(report):
    result, output = report(confirmed(TERMINATED, {"schema_version": 1}, "2020-11-30T14:00:00+00:00"))

    assert result.exit_code == 1
    assert "/ledger/2020/11/30/i-1-x-terminate.json: at is missing" in result.output
    assert not output.exists()


def test_a_ledger_that_is_none_or_not_there_is_named(report):
    said = [report(uri=uri)[0] for uri in ("", "bucket", "s3://")]
    gone, _ = report((), "--ledger", "s3://gone/reaper")

    assert [result.exit_code for result in (*said, gone)] == [1] * 4
    assert all("allowed: s3://BUCKET/PREFIX" in result.output for result in said)
    assert "error: ledger s3://gone/reaper/: " in gone.output


def test_an_instance_without_a_package_for_plots_is_shown_what_to_do(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gpu_fleet_image.console.operators.monthly_page")
    monkeypatch.delattr("gpu_fleet_image.console.operators.monthly_page")

    result, output = report()

    assert result.exit_code == 1
    assert "needs matplotlib, which is not installed here" in result.output
    assert not output.exists()
