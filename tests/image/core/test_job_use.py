"""The time of the queue's jobs on instances: never more than the clock's, whatever users call their jobs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.job_use import DayUse, RunningJob
from gpu_fleet_image.core.reaper_errors import CloudError

DAY = "2026-11-26"
NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
JOBS = st.builds(
    RunningJob,
    st.builds("{}/{}".format, st.sampled_from(["ada", "bob"]), NAMES),
    st.lists(st.sampled_from(["i-1", "i-2", "i-3"]), max_size=3, unique=True).map(tuple),
    st.integers(0, 8),
)


def test_jobs_that_share_an_instance_share_its_time_by_their_gpus():
    jobs = [RunningJob("ada/big", ("i-1", "i-2"), 6), RunningJob("bob/small", ("i-1",), 2)]

    use = job_use.after(job_use.after(DayUse(DAY), jobs, 80), jobs[:1], 20)

    assert use.used == {"i-1": {"ada/big": 80, "bob/small": 20}, "i-2": {"ada/big": 100}}


@given(st.lists(st.tuples(st.lists(JOBS, max_size=4), st.floats(0, 60)), max_size=5))
def test_the_jobs_of_an_instance_have_at_most_the_time_that_passed(polls):
    use = DayUse(DAY)
    for jobs, seconds in polls:
        use = job_use.after(use, jobs, seconds)

    passed = sum(seconds for _, seconds in polls)
    assert all(sum(spent.values()) <= passed + 0.1 for spent in use.used.values())
    assert DayUse.from_json(json.loads(json.dumps(use.to_json())), "use") == use


def test_whoever_names_each_job_anew_is_counted_under_their_account_in_the_end():
    jobs = [RunningJob(f"ada/{number}", ("i-1",), 1) for number in range(job_use.MOST_NAMES + 5)]

    use = job_use.after(DayUse(DAY), [*jobs, RunningJob("bob/one", ("i-1",), 1)], 2006)

    assert len(use.used["i-1"]) == job_use.MOST_NAMES + 2
    assert use.used["i-1"]["ada/(other jobs)"] == 5
    assert use.used["i-1"]["bob/(other jobs)"] == 1


@pytest.mark.parametrize(("letter", "width"), [("\U0001f600", 1), ("x", 30)], ids=["emoji", "wide"])
def test_no_names_of_jobs_make_the_record_longer_than_its_readers_take(letter, width):
    on = tuple(f"i-{number:017x}" for number in range(width))
    jobs = [RunningJob(f"eve/{number:04}".ljust(200, letter), on, 1) for number in range(job_use.MOST_NAMES)]

    use = job_use.after(DayUse(DAY), [*jobs, RunningJob("ada/one", on, 1)], 2001)

    assert len(json.dumps(use.to_json(), indent=1)) < job_use.LONGEST
    assert {account_seconds(spent, "ada") for spent in use.used.values()} == {1}
    assert {account_seconds(spent, "eve") for spent in use.used.values()} == {2000}


def account_seconds(spent, account):
    return sum(seconds for name, seconds in spent.items() if job_use.account_of(name) == account)


@pytest.mark.parametrize(
    "damage",
    [
        {"schema_version": 2},
        {"instances": None},
        {"instances": {"i-1": {"ada/x": "soon"}}},
        {"instances": {"i-1": {"ada/x": -1}}},
        {"instances": {"i-1": {"ada/x": 1e9}}},
        {"instances": {"i-1": {"ada/x": float("nan")}}},
        {"instances": {"i-1": {"/x": 1}}},
        {"instances": {"i-1": {"ada/x": 10**400}}},
        {"seen_s": 86_401},
        {"day": "soon"},
    ],
)
def test_a_damaged_record_is_refused(damage):
    with pytest.raises(CloudError, match="queue/use"):
        DayUse.from_json({**DayUse(DAY).to_json(), **damage}, "queue/use")
