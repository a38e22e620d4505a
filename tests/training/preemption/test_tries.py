"""A run that always fails at one step is tried six times; restarts within one try do not count."""

import json
from pathlib import Path

import pytest

from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.errors import StandstillError
from gpu_fleet.preemption.tries import NOTE, Tries
from gpu_fleet_jobs.submitted.work import TRIES
from tests.training.commands import tried_alone
from tests.training.core.test_exit_codes import UNIT
from tests.training.trainer.test_mistakes import place, table_of
from tests.training.trainer.test_raised import PLACES

__all__ = ["place"]  # a fixture
LIMIT = 6


def begun(directory: Path, step: int) -> Tries:
    """Begin one try, which is then killed."""
    tries = Tries(directory, LIMIT)
    tries.begin(step, None, leads=True)
    return tries


def test_the_seventh_try_from_one_step_fails_for_good_and_whoever_runs_it_again_has_six(tmp_path):
    for _ in range(LIMIT):
        begun(tmp_path, step=4)

    with pytest.raises(StandstillError, match="6 tries in a row have begun at step 4 and none") as end:
        begun(tmp_path, step=4)
    for _ in range(LIMIT):
        begun(tmp_path, step=4)

    assert end.value.exit_status == 65


def test_a_checkpoint_is_progress(tmp_path):
    for step in (0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 16):
        begun(tmp_path, step)


def test_what_torchrun_starts_again_belongs_to_the_same_try(tmp_path, monkeypatch):
    """Each of the five starts of a unit may start its ranks four times."""
    for _ in range(LIMIT):
        monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
        begun(tmp_path, step=4)
        for restart in "123":
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
            begun(tmp_path, step=4)


def test_a_note_that_was_half_written_counts_nothing(tmp_path):
    for content in (b'{"step": 4, "tri', b"[]", b'{"step": 4, "tries": "x"}', b"\xff"):
        (tmp_path / NOTE).write_bytes(content)

        begun(tmp_path, step=4)

        assert json.loads((tmp_path / NOTE).read_text()) == {"step": 4, "tries": 1}


def test_units_and_queue_promise_no_more_tries():
    assert f"StartLimitBurst={LIMIT - 1}\n" in UNIT.read_text()
    assert f"StartLimitBurst={LIMIT - 1}\n" in UNIT.with_name("gpu-run@.service").read_text()
    assert TRIES <= LIMIT


def test_on_new_disks_the_bucket_counts(bucket, tmp_path):
    store = CheckpointStore(f"s3://{bucket}/run")
    for number in range(LIMIT):
        Tries(tmp_path / str(number), LIMIT).begin(4, store, leads=True)

    with pytest.raises(StandstillError, match="6 tries in a row"):
        Tries(tmp_path / "new", LIMIT).begin(4, store, leads=True)


@pytest.mark.parametrize(
    ("error", "statuses"),
    [
        ("OSError(5, 'Input/output error')", [75, 75, 65, 75]),
        ("KeyError('price')", [65, 65, 65, 65]),
    ],
)
def test_a_run_that_fails_at_one_step_is_bounded_and_what_fails_for_good_is_not_counted(
    error, statuses, place
):
    folder = place(PLACES["model"].format(error=error))
    table = table_of(folder, {"run": {"steps": 40}, "checkpoint": {"tries": 2}})

    answers = [tried_alone(table, folder) for _ in statuses]

    assert [status for status, _ in answers] == statuses
    bound = [said.startswith("error: 2 tries in a row have begun at step 0") for _, said in answers]
    assert bound == [status == 65 and statuses[0] == 75 for status in statuses]


@pytest.mark.parametrize(("every_steps", "statuses"), [(2, [75, 75, 75]), (0, [75, 75, 65])])
def test_a_run_that_always_begins_anew_is_counted_until_its_first_checkpoint(every_steps, statuses, place):
    """With checkpoint.resume = false each try begins at step 0, also after hours of good steps."""
    folder = place(PLACES["model"].format(error="OSError(5, 'Input/output error')"))
    keys = {"tries": 2, "resume": False, "every_steps": every_steps, "every_s": 0.0}
    table = table_of(folder, {"run": {"steps": 40}, "checkpoint": keys})

    answers = [tried_alone(table, folder) for _ in statuses]

    assert [status for status, _ in answers] == statuses


def test_a_run_that_finishes_or_stops_leaves_nothing_to_count(place, no_fleet):
    folder = place("")
    (no_fleet / "stop").write_text("idle")
    table = table_of(folder, {"run": {"steps": 40}, "checkpoint": {"tries": 1}})

    stopped = [tried_alone(table, folder)[0] for _ in range(3)]
    (no_fleet / "stop").unlink()
    finished = [tried_alone(table, folder)[0] for _ in range(3)]

    assert (stopped, finished) == ([85] * 3, [0] * 3)
