"""A month of the ledger: what it saved, counted once, and the page that shows it."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser

import boto3
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from image.console.cli import main
from image.reaper.errors import CloudError, ConfigurationError
from image.reaper.people.ledger_records import end_of
from image.reaper.people.monthly_page import page
from image.reaper.people.monthly_savings import month_of, parse_month, summarise
from tests.reaper.fake_aws import fake_aws
from tests.reaper.moto_fleet import write_policy

NOVEMBER = parse_month("2026-11")
LATER = datetime(2026, 12, 24, tzinfo=UTC)


def record(at="2026-11-21T12:00:00+00:00", **changes):
    """A record as ``ledger.record_of`` writes it."""
    return {
        "schema_version": 1,
        "at": at,
        "stack": "test",
        "region": "us-east-1",
        "action": "terminate",
        "instance_id": "i-1",
        "instance_type": "g5.xlarge",
        "pool": "dev",
        "owner": "ada",
        "group": None,
        "launched_at": "2026-11-01T00:00:00+00:00",
        "reason": "idle for 1.0 d",
        "idle_s": 86400,
        "idle_since": "2026-11-20T12:00:00+00:00",
        "reap_after": "2026-11-21T12:00:00+00:00",
        "currency": "USD",
        "price_per_hour": "2.00",
        "saved_per_month": "1460.00",
    } | changes


def end(at="2026-11-21T12:00:00+00:00", **changes):
    return end_of(record(at, **changes), "key")


def total(*ends, now=LATER):
    return summarise(ends, NOVEMBER, now).total


def test_a_termination_saves_its_price_until_the_month_ends():
    assert total(end("2026-11-30T14:00:00+00:00")) == Decimal("20.00")


def test_nothing_is_saved_ahead_of_the_present():
    assert total(end(), now=datetime(2026, 11, 21, 15, tzinfo=UTC)) == Decimal("6.00")


def test_ends_of_other_months_are_left_out():
    assert total(end("2026-10-31T23:59:59+00:00"), end("2026-12-01T00:00:00+00:00")) == 0


def test_an_instance_stopped_and_later_terminated_counts_once():
    stopped = end("2026-11-10T00:00:00+00:00", action="stop")
    terminated = end("2026-11-20T00:00:00+00:00")

    assert total(stopped, terminated) == Decimal("2.00") * 24 * 21


def test_a_stopped_instance_that_was_started_again_saved_until_then():
    stopped = end("2026-11-10T00:00:00+00:00", action="stop")
    again = end("2026-11-20T00:00:00+00:00", launched_at="2026-11-12T00:00:00+00:00")

    assert total(stopped, again) == Decimal("2.00") * 24 * (2 + 11)


@pytest.mark.parametrize(
    ("later", "hours"),
    [([], 48), ([end("2026-11-20T00:00:00+00:00", launched_at="2026-11-12T00:00:00+00:00")], 48 + 24 * 11)],
    ids=["it works to the end of the month", "it is terminated later"],
)
def test_a_stop_saves_until_the_start_that_a_sweep_saw(later, hours):
    started_at = datetime(2026, 11, 12, tzinfo=UTC)
    stopped = replace(end("2026-11-10T00:00:00+00:00", action="stop"), started_at=started_at)

    assert total(stopped, *later) == Decimal("2.00") * hours


def test_an_unknown_price_saves_nothing_and_is_reported():
    summary = summarise([end(price_per_hour=None)], NOVEMBER, LATER)

    assert (summary.total, summary.unpriced) == (0, 1)


def test_a_month_with_an_unknown_price_says_at_least():
    known, unknown = end("2026-11-30T23:00:00+00:00"), end(instance_id="i-2", price_per_hour=None)

    assert "At least 2.00 USD saved" in page(summarise([known, unknown], NOVEMBER, LATER), "aws-dev")
    assert "At least" not in page(summarise([known], NOVEMBER, LATER), "aws-dev")


def test_pools_and_owners_are_distinguished_largest_first():
    ends = [
        end("2026-11-30T23:00:00+00:00", instance_id="i-1", pool="dev", owner="ada"),
        end("2026-11-30T20:00:00+00:00", instance_id="i-2", pool="train", owner="bob"),
        end("2026-11-30T22:00:00+00:00", instance_id="i-3", pool="dev", owner=""),
    ]

    summary = summarise(ends, NOVEMBER, LATER)

    assert summary.by_pool == {"train": Decimal("8.00"), "dev": Decimal("6.00")}
    assert list(summary.by_owner) == ["bob", "nobody", "ada"]


def test_two_currencies_are_refused():
    with pytest.raises(CloudError, match="mixes currencies: CNY, USD"):
        summarise([end(), end(instance_id="i-2", currency="CNY")], NOVEMBER, LATER)


@pytest.mark.parametrize("key", ["at", "price_per_hour", "owner"])
def test_a_damaged_record_is_named(key):
    damaged = {name: value for name, value in record().items() if name != key}

    with pytest.raises(CloudError, match=r"ledger record a/b\.json: KeyError"):
        end_of(damaged, "a/b.json")


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "november", "2026-11-01", "0001-01", "9999-12"])
def test_what_is_no_month_is_refused(text):
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
def test_no_instance_saves_more_than_it_would_have_cost_in_the_month(ends):
    summary = summarise(ends, NOVEMBER, LATER)

    assert all(saving.amount is None or saving.amount >= 0 for saving in summary.savings)
    instances = len({saving.end.instance_id for saving in summary.savings})
    assert summary.total <= instances * Decimal("32.77") * 720 + len(ends)
    assert sum(summary.by_pool.values()) == sum(summary.by_owner.values()) == summary.total


@given(ENDS)
def test_savings_only_grow_from_day_to_day_and_reach_the_total(ends):
    summary = summarise(ends, NOVEMBER, LATER)

    assert list(summary.by_day) == sorted(summary.by_day)
    assert len(summary.by_day) == 30
    assert abs(summary.by_day[-1] - summary.total) <= Decimal("0.01")


class Page(HTMLParser):
    """Collects the text of a page, and complains about tags that do not close."""

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


def test_the_page_has_total_plots_and_every_end():
    text = page(summarise([end("2026-11-30T14:00:00+00:00")], NOVEMBER, LATER), "aws-dev")

    shown = Page(text)
    assert "20.00 USD saved" in shown.texts
    assert {"i-1", "g5.xlarge", "ada", "terminate", "24.0 h", "20.00"} <= set(shown.texts)
    assert not shown.open
    plots = [f"<svg{part.partition('</svg>')[0]}</svg>" for part in text.split("<svg")[1:]]
    assert len(plots) == 3
    assert all(ET.fromstring(plot).tag.endswith("svg") for plot in plots)


def test_names_from_tags_cannot_break_the_page():
    text = page(summarise([end(owner="<script>alert(1)</script>")], NOVEMBER, LATER), "aws-dev")

    assert "<script>" not in text


@pytest.mark.parametrize("owner", ["a$_$b", "$ada", "ada$", "$", "a\\$b$"])
def test_a_name_with_dollars_is_no_formula(owner):
    text = page(summarise([end(owner=owner)], NOVEMBER, LATER), "aws-dev")

    assert text.count(owner) == 2  # in the plot and in the table


def test_a_month_without_terminations_says_so():
    text = page(summarise([], NOVEMBER, LATER), "aws-dev")

    assert "Nothing saved" in Page(text).texts
    assert "<svg" not in text


def test_many_owners_are_summed_up_in_the_plot():
    ends = [end(instance_id=f"i-{n}", owner=f"owner{n:02}") for n in range(20)]

    assert "8 others" in page(summarise(ends, NOVEMBER, LATER), "aws-dev")


@pytest.fixture(scope="module")
def s3():
    with fake_aws():
        made = boto3.client("s3", "us-east-1")
        made.create_bucket(Bucket="records")
        yield made


@pytest.fixture
def ledger(s3, monkeypatch, request):
    """Writes records below a prefix of the test's own."""
    prefix = request.node.name
    monkeypatch.setenv("GPU_FLEET_LEDGER_URI", f"s3://records/{prefix}")
    return lambda key, content: s3.put_object(
        Bucket="records", Key=f"{prefix}/ledger/{key}", Body=json.dumps(content)
    )


@pytest.fixture
def report(tmp_path):
    def run(*arguments):
        output, rules = tmp_path / "page.html", write_policy(tmp_path / "policy.json")
        arguments_of_report = [
            "report",
            "--month",
            "2020-11",
            "--output",
            str(output),
            "--policy",
            str(rules),
            *arguments,
        ]
        return CliRunner().invoke(main, arguments_of_report), output

    return run


def old(day, hour=0, **changes):
    return record(
        f"2020-11-{day:02}T{hour:02}:00:00+00:00", launched_at="2020-10-01T00:00:00+00:00", **changes
    )


def test_the_month_s_records_make_a_page(ledger, report):
    ledger("2020/11/30/i-1-x-terminate.json", old(30, 14))
    ledger("2020/10/31/i-2-x-terminate.json", old(30, 23, instance_id="i-2"))
    ledger("2020/12/01/i-3-x-terminate.json", old(30, 23, instance_id="i-3"))

    result, output = report()

    assert result.exit_code == 0, result.output
    assert f"22.00 USD saved by 2 terminations and stops in 2020-11: {output}" in result.output
    assert "i-2" in output.read_text()


def test_an_end_that_failed_saves_nothing(ledger, report):
    ledger("2020/11/30/i-1-x-terminate.json", old(30, 14))
    ledger("2020/11/30/i-1-x-terminate.failed.json", {"schema_version": 1, "error": "no"})

    result, _ = report()

    assert "0 - saved by 0 terminations" in result.output


def test_an_end_that_came_about_in_a_later_try_saves_from_then_on(ledger, report):
    ledger("2020/11/30/i-1-x-terminate.json", old(30, 14))
    ledger("2020/11/30/i-1-x-terminate.failed.json", {"schema_version": 1, "error": "no"})
    ledger("2020/11/30/i-1-x-terminate.ended.json", {"schema_version": 1, "at": "2020-11-30T20:00:00+00:00"})

    result, _ = report()

    assert "8.00 USD saved by 1 terminations" in result.output


def test_a_stop_whose_instance_was_started_again_saves_until_then(s3, ledger, report, request):
    ledger("2020/11/30/i-1-x-stop.json", old(30, 14, action="stop") | {"schema_version": 2})
    ledger("2020/11/30/i-1-x-stop.ended.json", {"schema_version": 1, "at": "2020-11-30T14:00:00+00:00"})
    key = f"{request.node.name}/started/2020/11/30/i-1-x-stop.json"
    s3.put_object(Bucket="records", Key=key, Body=json.dumps({"at": "2020-11-30T15:30:00+00:00"}))

    result, _ = report()

    assert "3.00 USD saved by 1 terminations" in result.output


def test_an_unconfirmed_intent_saves_nothing(ledger, report):
    ledger("2020/11/30/i-1-x-terminate.json", old(30, 14) | {"schema_version": 2})

    result, _ = report()

    assert "0 - saved by 0 terminations" in result.output


def test_freezes_of_the_month_stand_on_its_page(s3, ledger, report, request):
    freeze = {
        "at": "2020-11-20T12:00:00+00:00",
        "action": "freeze",
        "stage": "closed",
        "spent": "1000.50",
        "by": "sweep",
        "reason": "by the budget's thresholds",
    }
    key = f"{request.node.name}/budget/2020/11/20/20201120T120000Z-closed.json"
    s3.put_object(Bucket="records", Key=key, Body=json.dumps(freeze))

    result, output = report()

    assert result.exit_code == 0, result.output
    shown = Page(output.read_text()).texts
    assert {"2020-11-20 12:00", "freeze", "closed", "1,000.50", "sweep"} <= set(shown)


def test_a_damaged_record_stops_the_report_and_is_named(ledger, report):
    ledger("2020/11/30/i-1-x-terminate.json", {"schema_version": 1})

    result, output = report()

    assert result.exit_code == 1
    assert "/ledger/2020/11/30/i-1-x-terminate.json: KeyError('price_per_hour')" in result.output
    assert not output.exists()


@pytest.mark.parametrize("uri", ["", "bucket", "s3://"])
def test_a_ledger_that_is_none_is_refused(ledger, report, uri, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_LEDGER_URI", uri)

    result, _ = report()

    assert result.exit_code == 1
    assert "allowed: s3://BUCKET/PREFIX" in result.output


def test_a_bucket_that_is_not_there_is_named(ledger, report):
    result, _ = report("--ledger", "s3://gone/reaper")

    assert result.exit_code == 1
    assert "error: ledger s3://gone/reaper/: " in result.output


def test_every_plot_of_the_page_is_as_large_as_the_others():
    """A plot that is alone in its row must not grow to the row's width, as flex items do."""
    text = page(summarise([end()], NOVEMBER, LATER), "aws-dev")
    boxes = re.findall(r'<svg [^>]*viewBox="([^"]*)"', text)
    plots, figure = (re.search(rf"  {name} {{ (.*) }}", text)[1] for name in (r"\.plots", "figure"))

    assert len(boxes) == 3
    assert len(set(boxes)) == 1
    assert "display: grid" in plots
    assert "auto-fill" in plots
    assert figure == "margin: 0"


def test_an_instance_without_a_package_for_plots_is_shown_what_to_do(ledger, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "image.reaper.people.monthly_page")
    monkeypatch.delattr("image.reaper.people.monthly_page")

    result, output = report()

    assert result.exit_code == 1
    assert "drawn by matplotlib, which is not installed here" in result.output
    assert not output.exists()
