"""activity.json: written as a whole, and checked by a restarted agent."""

import json
from datetime import timedelta

import pytest

from gpu_fleet_image.instance.agent import activity_file
from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Minute
from tests.image.samples import NOON, judgement


@pytest.fixture
def path(tmp_path):
    return tmp_path / "activity.json"


def restored(path, after=timedelta(seconds=60), instance_id="i-1"):
    return activity_file.restore(path, NOON + after, instance_id)


def test_users_find_state_reasons_and_times_in_it(path):
    outcome = judgement(Minute.ACTIVE, idle_s=0.0, reasons=("cpu: 1.00 cores",), active_fraction=0.25)

    activity_file.write(path, outcome, "i-1", "the whole instance")

    content = json.loads(path.read_text())
    assert content["state"] == "active"
    assert content["reasons"] == ["cpu: 1.00 cores"]
    assert content["last_active_at"] == "2026-11-21T12:00:00+00:00"
    assert content["active_fraction"] == 0.25


def test_a_quick_restart_continues_the_count_and_after_a_gap_or_the_future_it_begins_anew(path):
    for _ in range(2):
        activity_file.write(path, judgement(idle_s=7200.0), "i-1", "the whole instance")

    assert restored(path) == JudgeMemory(NOON - timedelta(hours=2))
    for after in (timedelta(minutes=3), timedelta(seconds=-30)):
        assert restored(path, after) == JudgeMemory(NOON + after)
    assert [entry.name for entry in path.parent.iterdir()] == ["activity.json"], "nothing else is left behind"


def test_another_instance_s_file_a_damaged_one_or_none_says_nothing(path):
    anew = JudgeMemory(NOON + timedelta(seconds=60))
    missing = restored(path)
    activity_file.write(path, judgement(idle_s=7200.0), "i-2", "the whole instance")
    found = [missing, restored(path)]

    for text in ("", "[]", "{", '{"at": 5}', '{"at": "2026-11-21", "last_active_at": "x"}'):
        path.write_text(text)
        found.append(restored(path))

    assert found == [anew] * 7
