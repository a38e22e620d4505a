"""Wall time of a run by account: each second is booked once, and repeated steps count as lost."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import boto3
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet import cli
from gpu_fleet.metrics import price
from gpu_fleet.metrics.goodput import BOOKED, Book, Goodput, HourPrice, goodput, process_started_at_s
from gpu_fleet.metrics.records import read_json_lines
from gpu_fleet.metrics.report import time_lines
from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import written
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.payload import instance_file, sweep_policy
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.settings import Market, Size, Stack
from gpu_fleet_stacks.settings.quantities import Level
from tests.stacks.examples import pool, stack
from tests.training.examples import changed, gpt_table, killed_rank, train_on
from tests.training.ranks import run_ranks


def time_record(began: float, at: float, step: int, resumed: int = 0, **seconds: float) -> dict:
    booked = {**dict.fromkeys(BOOKED, 0.0), **seconds}
    times = {"started_at_s": began, "at_s": at}
    return {"kind": "time", "step": step, "resumed_from_step": resumed, **times, **booked}


def accounted(found: Goodput) -> float:
    """Return the part of the wall time that is in one of the accounts."""
    known = found.start_s + found.productive_s + found.stall_s + found.waiting_s + found.lost_s
    return known / found.wall_s if found.wall_s > 0 else 1.0


@given(
    st.lists(st.tuples(st.sampled_from(BOOKED), st.floats(0, 1e4), st.sampled_from(BOOKED), st.floats(0, 1)))
)
def test_every_second_is_booked_once(moves):
    now = [1000.0]
    book = Book(started_at_s=990.0, clock=lambda: now[0])

    for account, seconds, other, part in moves:
        book.switch(account)
        now[0] += seconds
        book.shift(other, part * seconds)

    found = goodput([book.record(5)])
    assert found.wall_s == pytest.approx(now[0] - 990.0)
    assert accounted(found) == pytest.approx(1.0)


def test_what_a_later_try_did_again_and_the_time_between_are_lost():
    first = [
        time_record(0, 10, step=0, start_s=10),
        time_record(0, 110, step=100, start_s=10, productive_s=90, waiting_s=10),
        time_record(0, 210, step=200, start_s=10, productive_s=180, waiting_s=20),
    ]
    second = [
        time_record(300, 320, step=150, resumed=150, start_s=20),
        time_record(300, 400, step=250, resumed=150, start_s=20, productive_s=70, stall_s=10),
    ]

    found = goodput([*first, *second])

    assert (found.wall_s, found.tries) == (400, 2)
    assert found.lost_s == 45 + 90  # fifty steps at 0.9 s, and from 210 to 300
    assert found.productive_s == 90 + 45 + 70
    assert found.ettr == pytest.approx(205 / 400)
    assert accounted(found) == 1.0
    assert found.price_lost(price_per_hour=36.0) == pytest.approx(195 / 100)


@pytest.mark.parametrize(
    ("booted_at_s", "paid_s"),
    [(100, 400), (210, 400), (280, 330), (350, 310)],
    ids=["the same instance", "at once", "later", "a clock that was set"],
)
def test_between_two_tries_only_an_instance_that_is_there_costs(booted_at_s, paid_s):
    first = time_record(0, 210, step=200, productive_s=210)
    second = time_record(300, 400, step=300, resumed=200, productive_s=100) | {"booted_at_s": booted_at_s}

    found = goodput([first, second])

    assert (found.wall_s, found.lost_s) == (400, 90)
    assert found.price_of_all(price_per_hour=3600.0) == paid_s
    assert found.price_lost(price_per_hour=3600.0) == paid_s - 310
    line = time_lines(found, HourPrice(3600.0, "USD"))["cost of unproductive time"]
    assert line.startswith(f"{paid_s - 310:,.2f} of {paid_s:,.2f} USD")
    assert (f"without {400 - paid_s}.0 s before an instance booted" in line) == (paid_s < 400)


def test_samples_and_tokens_are_told_for_the_money_that_all_tries_cost():
    found = goodput([time_record(0, 3600, step=10, productive_s=1800)])
    last = {"samples": 100, "samples_per_s": 2.0, "tokens_per_s": 64.0}

    lines = time_lines(found, HourPrice(10.0, "USD"), last)

    assert (lines["samples per USD"], lines["tokens per USD"]) == ("10.0", "320")
    assert "samples per USD" not in time_lines(found, None, last)


def test_the_start_of_the_process_counts_and_without_a_time_record_there_are_no_sums():
    assert 0 < time.time() - process_started_at_s() < 24 * 3600
    assert goodput([{"kind": "train", "step": 10}]) is None


def test_a_killed_and_resumed_run_accounts_for_its_wall_time(tokens, tmp_path, monkeypatch):
    """On two ranks, the first try dies in its fifth step, and leaves a checkpoint of the third."""
    table = changed(gpt_table(tokens, tmp_path / "run"), checkpoint={"every_steps": 3})
    begin = time.time()
    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 2, table, 2 * 4 + 1)
    train_on(2, table)
    end = time.time()

    found = goodput(read_json_lines(tmp_path / "run" / "metrics.jsonl"))

    assert found.tries == 2
    assert accounted(found) >= 0.99
    assert 0 < found.lost_s < found.wall_s <= end - begin
    shown = CliRunner().invoke(cli.main, ["report", str(tmp_path / "run"), "--price", "98.32"])
    assert f"effective training time ratio (ETTR): {100 * found.ettr:.1f} %" in shown.output
    assert f"cost of unproductive time: {found.price_lost(98.32):,.2f} of " in shown.output


def test_what_a_killed_try_had_saved_is_not_lost_however_seldom_it_logs(tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path), checkpoint={"every_steps": 3}, run={"log_every_steps": 1000})

    with pytest.raises(AssertionError, match="ended without a word"):
        run_ranks(killed_rank, 1, table, 2 * 4 + 1)

    records = read_json_lines(tmp_path / "metrics.jsonl")
    begin, saved = [record for record in records if record["kind"] == "time"]
    assert (begin["step"], saved["step"]) == (0, 3)
    assert saved["productive_s"] > begin["productive_s"]


TYPE, SPOT_USD = "g5.xlarge", "0.25"


@pytest.fixture
def in_a_spot_pool(request, bucket, tmp_path, monkeypatch) -> Iterator[Stack]:
    """Yield the stack of this instance, with policy and metadata: spot, or the market of the parameter."""
    declared = stack(pools=[pool(market="spot", types=[TYPE])])
    text = instance_file.instance_toml(
        declared, declared.pools[0], "", "", records_uri=f"s3://{bucket}/reaper"
    )
    (tmp_path / "instance.toml").write_text(text)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    policy = json.loads(sweep_policy.policy_text(declared))
    policy["budget"]["pools"]["dev"]["spot"][TYPE] = SPOT_USD  # in the catalog both cost the same
    boto3.client("s3").put_object(
        Bucket=bucket, Key=keys.stored(keys.POLICY), Body=json.dumps(policy).encode()
    )
    with metadata_service() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        metadata.answers["/latest/meta-data/instance-type"] = TYPE
        metadata.answers["/latest/meta-data/instance-life-cycle"] = getattr(request, "param", "spot")
        yield declared


@pytest.mark.parametrize("in_a_spot_pool", ["spot", "on-demand"], indirect=True)
def test_on_an_instance_the_stack_s_own_policy_says_what_the_lost_time_cost(
    request, in_a_spot_pool, tokens, tmp_path
):
    """The price is that of the market of this very instance."""
    train_on(2, gpt_table(tokens, tmp_path / "run", steps=2))

    one = Size(min=0, desired=1, max=1)
    usual = replace(in_a_spot_pool.pools[0], market=Market.ON_DEMAND, size=one)
    priced = estimate(replace(in_a_spot_pool, pools=(usual,)))
    on_demand = float(priced.hour(Level.NOW, priced.of_pool("dev")).expected.amount)
    pool_prices = written(sweep_policy.policy(in_a_spot_pool))["budget"]["pools"]["dev"]
    spot = float(SPOT_USD) + float(pool_prices["disk_per_hour"])
    hour = on_demand if "on-demand" in request.node.name else spot
    assert on_demand > 2 * spot
    found = goodput(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    assert found.price == HourPrice(pytest.approx(hour, abs=1e-4), "USD")
    shown = CliRunner().invoke(cli.main, ["report", str(tmp_path / "run")]).output
    assert f"cost of unproductive time: {found.price_lost(hour):,.2f} of " in shown
    assert f"at {hour:,.2f} USD an hour" in shown


def test_without_a_policy_a_run_trains_without_a_price(in_a_spot_pool, bucket, caplog):
    boto3.client("s3").delete_object(Bucket=bucket, Key=keys.stored(keys.POLICY))

    assert price.of_this_instance() is None
    assert "event=price-unknown" in caplog.text
    assert "policy.json: is missing" in caplog.text


def test_spot_counts_at_its_own_price_and_a_job_at_that_of_all_its_instances(in_a_spot_pool):
    policy = written(sweep_policy.policy(in_a_spot_pool))
    policy["budget"]["pools"]["dev"]["spot"][TYPE] = "0.5"
    policy["budget"]["pools"]["dev"]["disk_per_hour"] = "0.25"

    spot = price.listed(policy, "dev", TYPE, spot=True)

    assert spot == HourPrice(0.75, "USD")
    assert price.of_all([spot, spot]) == HourPrice(1.5, "USD")
    assert price.of_all([spot, None]) is None
