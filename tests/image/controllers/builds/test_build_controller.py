"""The build controller tries again while there is no room, and promotes what is clean, once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.builds.build_controller import (
    HANGS_AFTER,
    SILENT_AFTER,
    TRIED_FOR,
    BuildFailure,
    BuildsPlan,
    BuildStage,
    Cause,
    PipelineBuild,
    Promoted,
    last_due,
    load,
    reconcile,
    round_of,
)
from gpu_fleet_image.core.reaper_errors import ConfigurationError

BERLIN = ZoneInfo("Europe/Berlin")
SUNDAY = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)  # three in Berlin
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PLAN = BuildsPlan("test", ("home", "other"), "/ami", scan=False, weekly=False)
SCANNED = BuildsPlan("test", ("home", "other"), "/ami", scan=True, weekly=False)
ECS = BuildsPlan("test", ("only",), "", scan=False, weekly=True)


class Cloud:
    """Pipelines of a test; a build that is begun shows in the history."""

    def __init__(self, *builds, causes=None, promoted=("old", SUNDAY - 7 * DAY), unfit=""):
        self.builds, self.causes, self.unfit_for = list(builds), causes or {}, unfit
        self.now_promoted = Promoted(*promoted)
        self.begun, self.clock = [], SUNDAY

    def declared(self):
        return SUNDAY - 30 * DAY

    def history(self):
        return sorted(self.builds, key=lambda build: build.began, reverse=True)

    def failure(self, build):
        cause = self.causes.get(build.id, Cause.TESTING)
        return BuildFailure(cause, f"it was {cause}")

    def start(self, place, after):
        self.begun.append((place, after))
        made = f"build-{len(self.begun)}"
        self.builds.append(PipelineBuild(made, BuildStage.RUNNING, self.clock, place=place))
        return made

    def promoted(self):
        return self.now_promoted

    def promote(self, image_id):
        self.now_promoted = Promoted(image_id, self.clock)

    def unfit(self, build):
        return self.unfit_for


def build(state, began=SUNDAY, **more):
    return PipelineBuild("sunday", state, began, **({"scheduled": True} | more))


def look(cloud, plan=PLAN, now=SUNDAY + HOUR):
    cloud.clock = now
    return reconcile(cloud, plan, BERLIN, now)


def test_a_build_that_runs_is_left_alone_and_for_half_a_day_is_a_problem():
    cloud = Cloud(build(BuildStage.RUNNING))

    assert look(cloud).problem == ""
    hangs = look(cloud, now=SUNDAY + HANGS_AFTER + MINUTE)
    assert hangs.problem == "build sunday runs since 2026-11-22 02:00 UTC"
    assert cloud.begun == []


def fail(cloud, cause):
    """The newest build fails."""
    newest = cloud.history()[0]
    cloud.builds[cloud.builds.index(newest)] = replace(newest, state=BuildStage.FAILED)
    cloud.causes[newest.id] = cause


def test_after_six_hours_without_room_operators_are_notified_and_nothing_begun():
    cloud = Cloud(build(BuildStage.FAILED), causes={"sunday": Cause.NO_ROOM})
    now, reports = SUNDAY, []
    while not reports or not reports[-1].problem:
        now += 10 * MINUTE
        reports.append(look(cloud, now=now))
        newest = cloud.history()[0]
        if newest.state is BuildStage.RUNNING and now - newest.began >= HOUR:
            fail(cloud, Cause.NO_ROOM)

    assert TRIED_FOR <= now - SUNDAY <= TRIED_FOR + HOUR + 10 * MINUTE
    assert [place for place, _ in cloud.begun[:4]] == [1, 0, 1, 0]
    assert reports[-1].problem.endswith("(no instance in 6 hours); nothing is promoted")
    assert look(cloud, now=now + DAY).problem  # until an operator looked, or the next build is begun


def test_the_next_sunday_is_tried_for_six_hours_of_its_own():
    old = PipelineBuild("old", BuildStage.FAILED, SUNDAY - 7 * DAY, scheduled=True)
    cloud = Cloud(old, build(BuildStage.FAILED), causes={"sunday": Cause.NO_ROOM, "old": Cause.NO_ROOM})

    action = look(cloud).action

    assert cloud.begun == [(1, "sunday")]
    assert action == "build sunday failed: it was no room; began build build-1 instead"


def test_a_build_of_the_evening_before_takes_no_time_from_sundays():
    evening = PipelineBuild("evening", BuildStage.FAILED, SUNDAY - 5 * HOUR)
    history = [build(BuildStage.FAILED), evening]

    assert round_of(history, PLAN, BERLIN) == [history[0]]


def test_a_week_without_a_build_is_a_problem_by_the_pipelines_age_where_there_was_none():
    cloud, none = Cloud(build(BuildStage.DONE, image_id="new")), "no build has begun since "

    assert look(cloud, now=SUNDAY + SILENT_AFTER).problem == ""
    assert f"{none}2026-11-22 02:00" in look(cloud, now=SUNDAY + SILENT_AFTER + MINUTE).problem
    assert f"{none}2026-10-23" in look(Cloud()).problem
    assert look(Cloud(), now=SUNDAY - 25 * DAY).problem == ""


def test_what_is_clean_is_promoted_once_where_there_is_a_scan():
    """Without one the pipeline promotes alone."""
    cloud = Cloud(build(BuildStage.DONE, image_id="new"))

    assert look(cloud) == look(cloud)
    assert cloud.now_promoted.image_id == "old"
    assert look(cloud, SCANNED).action == "promoted new instead of old"
    assert look(cloud, SCANNED, SUNDAY + 2 * HOUR).action == ""


def test_what_is_not_clean_stays_unpromoted_and_is_a_problem_until_an_operator_accepted_it():
    cloud = Cloud(build(BuildStage.DONE, image_id="new"), unfit="1 critical vulnerabilities")

    assert look(cloud, SCANNED).problem == "new: 1 critical vulnerabilities; old stays promoted"
    assert cloud.now_promoted.image_id == "old"
    cloud.now_promoted = Promoted("new", SUNDAY + HOUR)
    assert look(cloud, SCANNED).problem == ""


def test_a_rollback_stays():
    """The clean build is the newer one: only the time of the rollback says that it was meant."""
    cloud = Cloud(build(BuildStage.DONE, image_id="new"))
    look(cloud, SCANNED)
    cloud.now_promoted = Promoted("old", SUNDAY + 2 * HOUR)  # gpu-fleet image rollback

    assert {look(cloud, SCANNED, SUNDAY + hours * HOUR).action for hours in range(3, 150)} == {""}
    assert cloud.now_promoted.image_id == "old"


LAST = PipelineBuild("last", BuildStage.DONE, SUNDAY - 7 * DAY)


def test_where_the_cloud_has_no_schedule_one_is_begun_on_sunday_morning():
    cloud = Cloud(LAST)

    assert look(cloud, ECS, SUNDAY - MINUTE).action == ""
    assert look(cloud, ECS, SUNDAY + MINUTE).action == "began build build-1 of the week"
    assert look(cloud, ECS, SUNDAY + 11 * MINUTE).action == ""
    assert len(cloud.begun) == 1


def test_a_pipeline_of_a_wednesday_waits_for_sunday_and_a_build_that_runs_then_is_the_weeks():
    wednesday = Cloud()
    wednesday.declared = lambda: SUNDAY + 3 * DAY
    runs = Cloud(PipelineBuild("mine", BuildStage.RUNNING, SUNDAY - 30 * MINUTE))

    look(wednesday, ECS, SUNDAY + 3 * DAY)
    look(runs, ECS, SUNDAY + 10 * MINUTE)

    assert wednesday.begun == runs.begun == []


def played(cloud, *, minutes, cause):
    """The problems of looks ten minutes apart, between which each build fails for one cause."""
    problems = []
    for passed in range(0, minutes, 10):
        problems.append(look(cloud, ECS, SUNDAY + passed * MINUTE + MINUTE).problem)
        fail(cloud, cause)
    return problems


def test_a_week_without_a_schedule_fails_within_minutes_and_is_begun_once_more_alone():
    cloud = Cloud(LAST)

    problems = played(cloud, minutes=120, cause=Cause.BUILDING)

    assert cloud.begun == [(0, last_due(SUNDAY, BERLIN).isoformat()), (0, "build-1")]
    assert problems[1] == ""
    assert problems[-1] == "build build-2 failed: it was building; nothing is promoted"


def test_a_week_without_a_schedule_and_without_room_is_tried_for_six_hours_from_its_first_try_on():
    cloud = Cloud(LAST)

    problems = played(cloud, minutes=8 * 60, cause=Cause.NO_ROOM)

    tries = [build.began for build in cloud.builds if build.id != "last"]
    assert max(tries) - min(tries) == TRIED_FOR - 10 * MINUTE
    assert problems[-1].endswith("(no instance in 6 hours); nothing is promoted")


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - of the strategy
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Shanghai", "America/New_York"]),
)
def test_the_hour_of_the_week_is_the_last_sunday_at_three(now, name):
    zone = ZoneInfo(name)
    due = last_due(now, zone)

    assert (due.weekday(), due.hour, due.minute) == (6, 3, 0)
    assert due <= now.astimezone(zone)
    assert now - due <= 7 * DAY + HOUR


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pipelines": 3}'])
def test_a_plan_that_is_none_is_named(tmp_path, text):
    file = tmp_path / "builds.json"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=r"builds\.json: no plan of builds"):
        load(file)
