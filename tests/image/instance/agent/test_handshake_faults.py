"""The handshake with failures half-way: crashes, refusing stores, wrong clocks, two sweeps."""

from datetime import timedelta

import pytest

from gpu_fleet_image.core.model import TAG_REAP_AFTER
from gpu_fleet_image.core.reaper_errors import InstanceError
from tests.image.live import marked_and_due


def sweeps(live, count):
    for _ in range(count):
        live.sweep()
        live.pass_minutes(10)


# Of a sweep that ends one instance of a group: lease, decision, lease, record, detachment, termination, its
# confirmation, lease.
WRITES = 8


class CrashError(BaseException):
    """End of the function in the middle."""


def crash():
    raise CrashError


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_a_sweep_that_crashes_before_any_of_its_writes_is_made_good_by_the_next(live, write, works):
    """A job that begins meanwhile is never killed."""
    (instance,) = marked_and_due(live, group="pool")

    def work_and_crash():
        if works:
            instance.begin_job()
        crash()

    live.on_write(write, work_and_crash)
    with pytest.raises(CrashError):
        live.sweep()
    live.forget_lease()
    live.pass_minutes(10)

    sweeps(live, 2)

    assert works or instance.truth.ended_at is not None
    assert not instance.truth.killed


def test_two_sweeps_at_once_end_an_instance_once(live):
    (instance,) = marked_and_due(live)
    refused = []

    def another():
        with pytest.raises(InstanceError, match="another sweep") as said:
            live.sweep()
        refused.append(said)

    live.on_call("GetMetricData", another)

    assert (len(live.sweep()["acted"]), len(refused)) == (1, 1)
    assert instance.truth.ended_at is not None


@pytest.mark.parametrize("moment", ["before the answer", "after it", "behind the door"])
def test_an_agent_that_restarts_continues_where_it_was(live, moment):
    (instance,) = live.start()
    live.pass_minutes(2)
    live.sweep()
    live.pass_minutes(9 if moment == "before the answer" else 12)
    restart = lambda: instance.start_agent(instance.idle_since)  # noqa: E731 - one act at three moments
    if moment == "behind the door":
        live.on_closed(instance, restart)
    else:
        restart()
        live.pass_minutes(3)

    sweeps(live, 2)

    assert instance.truth.ended_at is not None
    assert not instance.truth.killed


@pytest.mark.parametrize("minutes", [-10, 10])
def test_an_instance_whose_clock_is_ten_minutes_off_loses_no_work(live, minutes):
    """The bucket's time shows the age of its reply; a clock ahead replies early, one behind replies late."""
    idle, busy = marked_and_due(live, 2, skew=timedelta(minutes=minutes))
    busy.begin_job()

    sweeps(live, 3)

    assert busy.truth.ended_at is None
    assert idle.truth.ended_at is not None


@pytest.mark.parametrize("code", ["AccessDenied", "InternalError"])
def test_an_instance_that_cannot_answer_stays(live, code):
    (instance,) = live.start()
    live.pass_minutes(2)
    live.sweep()
    live.agents_refused = code

    sweeps(live, 3)

    assert instance.truth.ended_at is None
    assert not instance.door_is_shut


@pytest.mark.parametrize("operation", ["ListObjectsV2", "PutObject", "GetObject"])
@pytest.mark.parametrize("code", ["AccessDenied", "InternalError"])
def test_a_sweep_that_cannot_hear_or_decide_terminates_nothing_and_says_so(live, operation, code):
    (instance,) = marked_and_due(live)
    live.sweep_refused = (operation, code)

    try:
        report = live.sweep()
    except InstanceError as error:  # without its lease it does not even begin
        report = {"failed": [{"error": str(error)}]}

    assert instance.truth.ended_at is None
    assert any(code in failure["error"] for failure in report["failed"])
    live.sweep_refused = None
    sweeps(live, 2)
    assert instance.truth.ended_at is not None


@pytest.mark.parametrize("is_behind_the_door", [False, True])
def test_a_refusal_that_could_not_be_written_is_written_once_the_records_answer(
    live, caplog, is_behind_the_door
):
    (instance,) = marked_and_due(live)
    if is_behind_the_door:
        live.on_call("TerminateInstances", crash)
        with pytest.raises(CrashError):
            live.sweep()
        assert instance.door_is_shut
    live.agents_refused_words = "refused"
    instance.begin_job(past_the_door=True)
    live.pass_minutes(5)
    assert live.said("refused") == []
    assert not instance.door_is_shut
    instance.truth.jobs.clear()

    live.agents_refused_words = ""
    live.pass_seconds(5)

    assert live.said("refused") == [instance.id]
    assert caplog.text.count("event=refused") == 1
    live.forget_lease()
    live.sweep()
    assert TAG_REAP_AFTER not in live.tags(instance.id)


def test_reads_beside_the_budget_are_few_and_do_not_grow_with_the_fleet(live):
    marked_and_due(live, 12)
    live.calls.clear()

    live.sweep()

    lists, locks = live.calls.count("ListObjectsV2"), live.calls.count("DescribeInstanceAttribute")
    reads = [call for call in live.calls if call.startswith(("Describe", "List", "Get"))]
    assert lists <= 13
    assert locks <= 12
    assert len(reads) - lists - locks <= 16
