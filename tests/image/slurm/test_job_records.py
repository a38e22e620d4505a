"""Job records of the controller: the run time of each job, and the end of jobs that Slurm has forgotten."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.slurm import job_records
from gpu_fleet_image.slurm.answers import Job

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
LOOK = timedelta(seconds=15)
RUNNING = Job("7", "digits", "ada", "train", 2, "RUNNING", "", "i-[1-2]", 0, "/home/ada/d.log", "gpu-fleet")


def looked(*looks: list[Job], every: timedelta = LOOK) -> job_records.JobRecords:
    kept = None
    for number, jobs in enumerate(looks):
        kept = job_records.after(kept, jobs, NOW + number * every)
    return kept


WAITS, FAILED, OTHER = (
    replace(RUNNING, state="PENDING"),
    replace(RUNNING, state="FAILED"),
    replace(RUNNING, name="b"),
)


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        ([RUNNING, RUNNING, WAITS, WAITS, RUNNING, RUNNING], ("digits", "RUNNING", False, 45, 90)),
        ([RUNNING, FAILED, None], ("digits", "FAILED", True, 15, 30)),
        ([RUNNING, None], ("digits", "UNSEEN", True, 0, 0)),
        ([RUNNING, RUNNING, OTHER], ("b", "RUNNING", False, 0, 0)),
    ],
    ids=["all tries count, on each instance", "forgotten", "an end that nobody saw", "its number again"],
)
def test_a_record_has_a_jobs_last_state_and_the_time_of_its_tries(jobs, found):
    (entry,) = looked(*([job] if job else [] for job in jobs)).entries

    assert (entry.job.name, entry.job.state, entry.is_over, entry.run_s, entry.instance_s) == found


def test_what_ran_while_the_controller_was_away_is_not_guessed():
    (entry,) = looked([RUNNING], [RUNNING], every=timedelta(hours=1)).entries

    assert entry.run_s == 0


def test_jobs_that_are_over_are_kept_up_to_a_number_and_living_ones_all():
    ended = [
        replace(RUNNING, id=str(number), state="COMPLETED") for number in range(job_records.MOST_ENDED + 5)
    ]
    living = [replace(RUNNING, id=f"1{number:04}") for number in range(300)]

    entries = looked([*ended, *living]).entries

    assert sum(entry.is_over for entry in entries) == job_records.MOST_ENDED
    assert sum(not entry.is_over for entry in entries) == 300


def test_what_is_written_is_never_more_than_its_readers_take_and_lacks_the_longest():
    plain = [replace(RUNNING, id=str(number)) for number in range(100)]
    long = [replace(RUNNING, id=f"9{number:04}", log="/" + "\u00e9" * 4000) for number in range(300)]

    written = job_records.to_json(looked([*long, *plain]))

    assert len(json.dumps(written, indent=1, sort_keys=True)) < job_records.LONGEST
    kept = [item["job"]["id"] for item in written["jobs"]]
    assert kept[-100:] == [job.id for job in plain]
    assert 100 < len(kept) < 400


def test_records_of_ordinary_size_are_not_written_out_to_be_measured(monkeypatch):
    """It would happen four times a minute for some hundred entries."""
    kept = looked([replace(RUNNING, id=str(number)) for number in range(500)])
    monkeypatch.delattr(job_records.json, "dumps")

    assert len(job_records.to_json(kept)["jobs"]) == 500


@given(st.text(max_size=200))
def test_no_letter_is_longer_than_is_counted(text):
    entry = job_records.to_json(looked([replace(RUNNING, name=text)]))["jobs"][0]

    letters = sum(len(word) for word in entry["job"].values() if isinstance(word, str))
    written = len(json.dumps(entry, indent=job_records.INDENT))
    assert written <= job_records.BESIDE_TEXTS + job_records.LONGEST_LETTER * letters


def test_the_next_controller_reads_what_the_last_one_wrote():
    kept = looked([RUNNING], [RUNNING])

    assert job_records.JobRecords.from_json(job_records.to_json(kept), "jobs.json") == kept


@pytest.mark.parametrize(
    "raw", [{}, {"at": "noon", "jobs": []}, {"at": "2026-11-23T10:00:00Z", "jobs": [{}]}]
)
def test_damaged_books_are_named(raw):
    with pytest.raises(CloudError, match=r"queue/jobs\.json"):
        job_records.JobRecords.from_json(raw, job_records.JOBS)
