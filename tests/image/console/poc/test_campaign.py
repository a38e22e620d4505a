"""A POC's stages: what it takes it gives back, whatever ends it, and what it measured it keeps."""

import os
import signal
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.poc import command
from gpu_fleet_image.console.poc.spending import TEARDOWN, CostMeter, cents, planned_cost
from gpu_fleet_image.console.runs import aws
from gpu_fleet_image.core.capacity import Fate
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.runs import OVER, NodeState, Phase, overall
from tests.image.console.poc.played import BEGAN, PlayedCloud, PlayedDesk, campaign


@pytest.fixture(autouse=True, scope="module")
def sends():
    """Systems Manager takes every command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            aws, "addresses", lambda _region, _calls, ids: {each: f"10.0.0.{each[2:]}" for each in ids}
        )
        patch.setattr(aws, "send", lambda *_: "c-1")
        yield


def fail():
    raise CloudError("ec2: RequestLimitExceeded", "RequestLimitExceeded")


def interrupt():
    raise KeyboardInterrupt


def be_terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def test_each_number_of_instances_is_measured_with_those_of_the_one_before():
    cloud = PlayedCloud()
    poc = campaign(cloud)

    ending = poc.run_to_an_end((1, 2, 4))

    assert (ending.outcome, ending.reason) == ("complete", "")
    assert [stage.instances for stage in poc.stages] == [
        ("i-0",),
        ("i-0", "i-1"),
        ("i-0", "i-1", "i-2", "i-3"),
    ]
    assert [row.value for log in poc.logs for row in log.rows] == [90.0, 180.0, 360.0]
    assert len(cloud.there) == 4
    assert cloud.kept == set()


@pytest.mark.parametrize(
    ("event", "outcome"), [(fail, "failed"), (interrupt, "interrupted"), (be_terminated, "interrupted")]
)
@given(at=st.integers(1, 22))
def test_every_instance_is_given_back_whenever_it_ends(event, outcome, at):
    cloud = PlayedCloud(events={at: event})
    poc = campaign(cloud)

    ending = poc.run_to_an_end((1, 2, 4))

    assert ending.outcome == (outcome if cloud.waits >= at else "complete")
    assert cloud.kept == set()
    assert poc.problems == []
    assert all(request.fate is not Fate.OPEN for request in cloud.requests.values())
    assert all(overall(poc.bucket.states(job)) in OVER for job, _ in cloud.jobs.values())


def test_at_the_cap_it_stops_keeps_what_was_measured_and_gives_back():
    cloud = PlayedCloud(lasts=60)
    poc = campaign(cloud, cap="2.5")

    ending = poc.run_to_an_end((1, 2, 4))

    assert ending.outcome == "stopped-at-cap"
    assert ending.reason.startswith("--max-usd 2.5: ")
    assert ending.cost < Decimal("2.6")
    assert [stage.outcome for stage in poc.stages] == ["measured", "stopped", "not begun"]
    assert [row.value for log in poc.logs for row in log.rows] == [90.0, 180.0]
    assert len(cloud.cancelled) == 1
    assert cloud.kept == set()


@given(cap=st.decimals("0.5", "12", places=2), lasts=st.integers(1, 90))
def test_no_poc_costs_more_than_its_cap_but_for_one_wait(cap, lasts):
    cloud = PlayedCloud(lasts=lasts)

    ending = campaign(cloud, cap=str(cap)).run_to_an_end((1, 2, 4))

    one_wait = Decimal("1.026") * 4 / 60
    assert ending.cost <= cap + one_wait


def test_where_the_mover_has_no_room_the_smaller_stages_stay_and_the_reason_is_said():
    cloud = PlayedCloud(room=2)
    poc = campaign(cloud)

    ending = poc.run_to_an_end((1, 2, 4))

    assert ending.outcome == "partial"
    assert ending.reason == "2 more of train: no room in any zone"
    assert [stage.outcome for stage in poc.stages] == ["measured", "measured", "no instances"]
    assert cloud.kept == set()


def test_a_run_that_fails_is_a_partial_poc_and_the_next_number_is_still_tried():
    cloud = PlayedCloud(ends=Phase.FAILED)
    poc = campaign(cloud)

    ending = poc.run_to_an_end((1, 2))

    assert ending.outcome == "partial"
    assert "1 instance: the run poc-20261126-" in ending.reason
    assert "is failed: as played; 2 instances: the run" in ending.reason
    assert len(cloud.there) == 2
    assert cloud.kept == set()


def test_a_run_that_fell_silent_is_not_said_to_run(monkeypatch):
    cloud = PlayedCloud()
    poc = campaign(cloud)
    monkeypatch.setattr(poc.bucket, "states", lambda _: [NodeState(Phase.RUNNING, BEGAN.isoformat())])
    cloud.now += timedelta(hours=1)

    ending = poc.run_to_an_end((1,))

    assert ending.outcome == "partial"
    assert ending.reason.endswith("is running, and reports nothing more")
    assert cloud.kept == set()


def test_what_cannot_be_given_back_is_said(monkeypatch):
    cloud = PlayedCloud()
    poc = campaign(cloud)
    monkeypatch.setattr(cloud, "tag", lambda *_: fail())

    poc.run_to_an_end((1,))

    assert poc.problems == ["could not give back i-0: ec2: RequestLimitExceeded"]


def test_a_defect_while_one_instance_is_given_back_keeps_no_other(monkeypatch):
    cloud = PlayedCloud()
    poc = campaign(cloud)
    tag = cloud.tag
    monkeypatch.setattr(cloud, "tag", lambda ids, tags: tag(ids, tags) if "i-0" not in ids else {}["i-0"])

    poc.run_to_an_end((1, 2))

    assert cloud.kept == {"i-0"}
    assert poc.problems == ["could not give back i-0: 'i-0'"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_request_is_written_leaves_no_request_open(number, monkeypatch):
    cloud = PlayedCloud()
    poc = campaign(cloud)
    real = PlayedDesk.ask

    def asked(*given):
        key = real(*given)
        os.kill(os.getpid(), number)
        return key

    monkeypatch.setattr(PlayedDesk, "ask", asked)

    ending = poc.run_to_an_end((1, 2))

    assert ending.outcome == "interrupted"
    assert [request.fate for request in cloud.requests.values()] == [Fate.FAILED]
    assert cloud.kept == set()


def test_a_closed_terminal_ends_no_note(monkeypatch):
    monkeypatch.setattr(command, "note", lambda _: Path("/nowhere/at/all").read_text())

    command.note_if_open("i-0 is given back")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_no_signal_ends_the_giving_back_of_instances(number, monkeypatch):
    cloud = PlayedCloud()
    poc = campaign(cloud)
    tag = cloud.tag
    monkeypatch.setattr(cloud, "tag", lambda *given: (os.kill(os.getpid(), number), tag(*given)))

    ending = poc.run_to_an_end((1, 2))

    assert ending.outcome == "complete"
    assert "the instances are being given back: wait" in cloud.said
    assert cloud.kept == set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_plan_and_meter_count_every_instance_from_its_request_until_it_is_gone():
    # one for 35 minutes, then two for 20, and both for 20 more: 115 minutes of an instance
    assert planned_cost(Decimal("6.00"), (1, 2)) == Decimal("11.50")
    now = [BEGAN]
    meter = CostMeter(Decimal("6.00"), Decimal(100), lambda: now[0])
    meter.begin("a request", 2)

    now[0] += TEARDOWN

    assert cents(meter.cost()) == Decimal("8.00")
