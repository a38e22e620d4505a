"""Status for users: owners, idle times, times of termination, costs."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.users.status import ends_if_unused, row
from gpu_fleet_image.core import policy
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_OWNER, TAG_POOL, Decision, Instance, Verdict
from tests.image.fake_aws import fake_aws
from tests.image.moto_fleet import NOW, MotoFleet, write_policy
from tests.image.samples import NOON


@pytest.fixture
def rules(tmp_path):
    return policy.load(write_policy(tmp_path / "policy.json"))


@pytest.fixture
def fleet():
    with fake_aws():
        yield MotoFleet()


def decision(verdict=Verdict.KEEP_BUSY, idle_s=600.0, tags=None, **values):
    tags = {TAG_POOL: "dev", TAG_OWNER: "ada"} | (tags or {})
    instance = Instance("i-1", "g5.xlarge", "running", NOON - timedelta(days=1), tags)
    return replace(Decision(instance, verdict, "why", idle_s=idle_s), **values)


def test_a_row_shows_instance_owner_idle_time_and_price_and_invents_none_that_is_not_known(rules):
    known = row(decision(hourly_price=Decimal("1.006")), rules, NOON)
    unknown = row(decision(idle_s=None, tags={TAG_OWNER: ""}), rules, NOON)

    assert (known.instance, known.owner, known.what) == ("i-1", "ada", "dev g5.xlarge")
    assert (known.idle, known.an_hour) == ("10 min", "1.006 USD")
    assert (unknown.owner, unknown.idle, unknown.ends, unknown.an_hour) == ("nobody", "", "never", "unknown")


SOON = {TAG_KEEP_UNTIL: "2026-11-22T12:00:00+00:00"}
ENDS = [
    (decision(idle_s=3600.0), "in 90 min"),  # 2 h + 30 min - 1 h
    (decision(Verdict.WAIT, reap_after=NOON + timedelta(minutes=12)), "in 12 min"),
    (decision(Verdict.STOP, reap_after=NOON), "with the next sweep"),
    (decision(Verdict.TERMINATE, reap_after=NOON), "with the next sweep"),
    (decision(Verdict.KEEP_UNKNOWN), "not before it is known to be idle"),
    (decision(Verdict.ALERT), "not before it is known to be idle"),
    (decision(Verdict.KEEP_HELD, tags=SOON), "kept until 2026-11-22 12:00"),
]


def test_an_instance_is_terminated_when_idle_time_and_grace_mark_or_hold_say(rules):
    said = [(made, ends_if_unused(made, rules, NOON)) for made, _ in ENDS]

    assert said == ENDS


def test_a_hold_that_cannot_be_read_holds_and_warns(rules):
    made = row(decision(Verdict.KEEP_HELD, tags={TAG_KEEP_UNTIL: "next week"}), rules, NOON)

    assert made.ends == "kept: its tag cannot be read"
    assert "gpu-fleet:keep-until = 'next week'; allowed:" in made.warning


def test_the_table_shows_every_instance_and_what_the_idle_ones_cost(fleet, tmp_path):
    idle, busy = fleet.start(2)
    fleet.heartbeats([idle], idle_hours=2.5)
    fleet.heartbeats([busy], idle_hours=0)
    path = write_policy(tmp_path / "policy.json")

    words = ["status", "--policy", str(path), "--now", NOW.isoformat()]
    result = CliRunner().invoke(main, words)
    sheet = CliRunner().invoke(main, [*words, "-o", "csv"]).output
    document = json.loads(CliRunner().invoke(main, [*words, "-o", "json"]).output)

    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert "MARK" in lines[idle]
    assert "2.5 h" in lines[idle]
    assert "KEEP-busy" in lines[busy]
    assert "1.006 USD" in lines[busy]
    assert "1 of 2 instances idle, at 1.006 USD an hour" in result.output
    assert re.search(r"^images: ami-[0-9a-f]+ \(2\)$", result.output, re.MULTILINE)
    rows = {each["instance"]: each for each in document["instances"]}
    assert (rows[idle]["verdict"], rows[idle]["price_per_hour"]) == ("MARK", "1.006")
    assert rows[idle]["idle_s"] == pytest.approx(9000, abs=300)
    assert document["failures"] == []
    assert {row.split(",")[0] for row in sheet.splitlines()} == {"instance", idle, busy}
    assert fleet.tags(idle) == fleet.tags(busy), "looking changes nothing"
