"""The controller's record of jobs' time: over midnight, over controllers, over a bucket that fails."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.job_use import DayUse
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.slurm import controller
from gpu_fleet_image.slurm.answers import Job, ListedJob
from gpu_fleet_image.slurm.sizes import JobRequest
from gpu_fleet_image.slurm.use_record import UseRecord
from tests.image.world import World
from tests.image.world_clients import _S3

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
DAY, KEY = "2026-11-26", "queue/use/2026-11-26.json"
POLL = timedelta(seconds=15)
NODES = ("i-1", "i-2", "i-3")
RUNNING = ListedJob(
    Job("7", "digits", "ada", "train", 2, "RUNNING", "", "i-[1-2]", 0, "", ""), JobRequest(), gpus=16
)


class Bucket:
    """What controllers have written, and whether the bucket answers."""

    def __init__(self):
        world = World()
        self.calls, self.faults = Calls(world.clock), world.faults
        self.store = Store(_S3(world), self.calls, "s3://records/reaper")

    def controller(self):
        return UseRecord(lambda day: controller.kept_use(self.store, day), self.store.put)

    def day(self, day=DAY):
        return job_use.load(self.store, day)

    def used(self, day=DAY):
        return self.day(day).used


@pytest.fixture
def bucket():
    return Bucket()


def polled(record, jobs, begin, times):
    for number in range(times):
        record.note(jobs, NODES, begin + number * POLL)


def changed(**changes):
    return replace(RUNNING, uid=4711, job=replace(RUNNING.job, **changes))


@pytest.mark.parametrize(
    ("job", "used"),
    [
        (RUNNING, {"ada/digits": 300}),
        (changed(state="PENDING"), {}),
        (changed(state="COMPLETED"), {}),
        (changed(account=""), {"uid-4711/digits": 300}),
    ],
    ids=["runs", "waits", "has ended", "of a user without a name"],
)
def test_a_job_has_the_time_of_its_instances_while_it_runs_and_all_instances_are_on_record(bucket, job, used):
    polled(bucket.controller(), [job], NOON, 21)

    assert bucket.used() == {"i-1": used, "i-2": used, "i-3": {}}


def test_a_bucket_is_written_every_five_minutes_only(bucket):
    polled(bucket.controller(), [RUNNING], NOON, 4 * 60)

    assert bucket.calls.writes == 12


@pytest.mark.parametrize(("second", "polls", "before", "after"), [(0, 25, 60, 240), (50, 21, 10, 290)])
def test_the_time_of_a_poll_across_midnight_is_divided_there(bucket, second, polls, before, after):
    polled(bucket.controller(), [RUNNING], NOON.replace(hour=23, minute=59, second=second), polls)

    days = [bucket.used(day)["i-1"] for day in (DAY, "2026-11-27")]
    assert days == [{"ada/digits": before}, {"ada/digits": after}]


@pytest.mark.parametrize("back", [timedelta(), timedelta(hours=1)], ids=["as it is", "set back at noon"])
def test_a_job_of_the_whole_day_leaves_a_readable_record_whatever_the_clock_does(bucket, back):
    record, midnight = bucket.controller(), NOON.replace(hour=0)

    polled(record, [RUNNING], midnight + timedelta(seconds=2), 12 * 60 * 4)
    polled(record, [RUNNING], NOON + timedelta(seconds=10) - back, 13 * 60 * 4 + 1)

    assert 86_380 < bucket.used()["i-1"]["ada/digits"] <= 86_400


@pytest.mark.parametrize("gap", [timedelta(hours=1), timedelta(minutes=-3)], ids=["away", "clock set back"])
def test_a_time_that_was_not_seen_is_not_guessed(bucket, gap):
    record = bucket.controller()

    record.note([RUNNING], NODES, NOON)
    record.note([RUNNING], NODES, NOON + gap)

    assert bucket.day() == DayUse(DAY)


def test_the_seconds_that_no_controller_saw_are_known(bucket):
    midnight = NOON.replace(hour=0)
    polled(bucket.controller(), [RUNNING], midnight, 21)
    polled(bucket.controller(), [RUNNING], midnight + timedelta(minutes=30), 21)

    unseen = [bucket.day().unseen_s(midnight + timedelta(minutes=m)) for m in (5, 45, 60, 9999)]

    assert unseen == [0, 25 * 60, 40 * 60, 86_400 - 10 * 60]


def test_what_could_not_be_written_is_written_later_also_of_the_day_before(bucket):
    record, evening = bucket.controller(), NOON.replace(hour=23, minute=59)
    bucket.faults.throttled = 1.0
    for number in range(4 * 60):
        with pytest.raises(CloudError):
            record.note([RUNNING], NODES, evening + number * POLL)
    bucket.faults.throttled = 0.0
    earlier = DayUse("2026-11-27", {"i-1": {"bob/old": 7}}, 7)
    bucket.store.put(job_use.key_of(earlier.day), earlier.to_json())

    record.note([RUNNING], NODES, evening + 4 * 60 * POLL)

    assert bucket.used()["i-1"] == {"ada/digits": 60}
    assert bucket.used("2026-11-27")["i-1"] == {"bob/old": 7, "ada/digits": 59 * 60}
    assert bucket.day("2026-11-27").seen_s == 59 * 60 + 7


def test_a_damaged_record_stays_and_the_next_day_is_counted(bucket):
    bucket.store.put(KEY, {"schema_version": 1, "day": DAY, "instances": None})

    polled(bucket.controller(), [RUNNING], NOON.replace(hour=23, minute=50), 20 * 4 + 1)

    with pytest.raises(CloudError, match="queue/use"):
        bucket.day()
    assert bucket.used("2026-11-27")["i-1"]["ada/digits"] >= 300


def test_another_controller_goes_on_from_the_bucket(bucket):
    for begin in (NOON, NOON + timedelta(hours=1)):
        polled(bucket.controller(), [RUNNING], begin, 21)

    assert bucket.used()["i-1"] == {"ada/digits": 600}
