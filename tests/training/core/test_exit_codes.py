"""One table of exit statuses, which trainer, unit and page share."""

import json
import re
import sys
from pathlib import Path

import click
from click.testing import CliRunner, Result

from gpu_fleet.core import errors, exit_codes, outcome
from gpu_fleet.core.errors import TrainingError
from gpu_fleet.core.lazy_groups import LazyGroup
from tests.ran import ran
from tests.training.commands import tried_alone
from tests.training.examples import changed, gpt_table

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "image/gpu_fleet_image/recipe/rootfs/etc/systemd/system/trainer@.service"


def all_errors(kind: type[TrainingError] = TrainingError) -> list[type[TrainingError]]:
    return [found for child in kind.__subclasses__() for found in (child, *all_errors(child))]


def test_every_error_has_a_status_of_the_table_and_what_can_pass_may_be_tried_again():
    statuses = {kind: kind("why").exit_status for kind in all_errors()}

    silent = {errors.SilentSourceError, errors.SilentStoreError, errors.PassingCodeError}
    passing = {errors.CheckpointError, *silent, errors.RunLeaseError, errors.PeerError, errors.LaunchError}
    again = exit_codes.FAILED_PERHAPS
    assert {kind for kind, status in statuses.items() if status == again} == passing
    assert [kind for kind, status in statuses.items() if status == exit_codes.STOPPED] == [
        errors.StoppedError
    ]
    assert set(statuses.values()) <= {again, exit_codes.STOPPED, exit_codes.FAILED_FOR_GOOD}
    assert errors.StoreError("SlowDown", passing=True).exit_status == again


def test_the_unit_obeys_the_table():
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))

    assert unit["Restart"] == "on-failure"
    assert unit["SuccessExitStatus"].split() == [str(exit_codes.STOPPED)]
    assert unit["RestartPreventExitStatus"].split() == [
        str(exit_codes.USAGE),
        str(exit_codes.FAILED_FOR_GOOD),
    ]
    assert (unit["StartLimitIntervalSec"], unit["StartLimitBurst"]) == ("1d", "5")  # failures after hours too


def test_the_page_shows_every_status():
    shown = (ROOT / "docs/reference/exit-codes.md").read_text()

    for status in (exit_codes.FINISHED, exit_codes.STOPPED, exit_codes.FAILED_FOR_GOOD):
        assert re.search(rf"^\| .*\b{status}\b.* \|", shown, re.MULTILINE)


def test_a_restarted_rank_does_not_try_what_failed_for_good(tokens, tmp_path, monkeypatch):
    table = changed(gpt_table(tokens, tmp_path / "run"), model={"name": "gtp"})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this run")
    first, _ = tried_alone(table, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    mended = changed(table, model={"name": "gpt"})
    second, said = tried_alone(mended, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    anew, _ = tried_alone(mended, tmp_path)

    assert (first, second, anew) == (65, 65, 0)
    assert "'gtp'" in said
    assert outcome.failed_before(tmp_path / "run") is None


def test_a_restarted_rank_does_not_wait_again_for_a_run_that_another_process_holds(
    tokens, tmp_path, monkeypatch
):
    """`launch` then ends torchrun; a restart that has begun by then ends at once, and may be made later."""
    monkeypatch.setenv(outcome.REFUSED, str(tmp_path / "refused"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this run")
    table = gpt_table(tokens, tmp_path / "run")

    def refused(*_: object) -> None:
        raise errors.RunLeaseError("in use by process 1 on elsewhere")

    with monkeypatch.context() as held:
        held.setattr("gpu_fleet.checkpoint.local.lock", refused)
        first, _ = tried_alone(table, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second, said = tried_alone(table, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    later, _ = tried_alone(table, tmp_path)

    assert (first, second, later) == (75, 75, 0)
    assert said.endswith("error: in use by process 1 on elsewhere\n")
    assert not (tmp_path / "run" / outcome.FAILURE).exists()


def test_without_torchrun_a_run_that_stopped_says_that_it_wants_to_be_run_again(
    tokens, tmp_path, no_fleet, monkeypatch
):
    """torchrun restarts ranks that end with another status than 0 at once."""
    table = gpt_table(tokens, tmp_path / "run")
    (no_fleet / "stop").write_text("spot")
    stopped, _ = tried_alone(table, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this run")
    of_torchrun, _ = tried_alone(table, tmp_path)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    (no_fleet / "stop").unlink()

    finished, _ = tried_alone(table, tmp_path)

    assert (stopped, of_torchrun, finished) == (85, 0, 0)


def test_data_that_are_not_there_fail_for_good_before_there_is_a_run_directory(tmp_path):
    """Without failure.json torchrun would try again, and `launch` would report a passing failure."""
    status, _ = tried_alone(gpt_table(tmp_path / "nowhere", tmp_path / "run"), tmp_path)

    assert status == 65
    assert json.loads((tmp_path / "run" / outcome.FAILURE).read_text())["rank"] == 0


SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
raise ImportError("cannot load module more than once per process")
"""


def test_a_library_that_swallows_ctrl_c_does_not_keep_a_command_from_ending(tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    imports = "from gpu_fleet.core import lazy_groups; lazy_groups.imported('swallows')"

    done = ran([sys.executable, "-c", imports], cwd=tmp_path)

    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_group_answers_h_wrong_words_and_ctrl_c_as_its_commands_do():
    def interrupted() -> None:
        raise KeyboardInterrupt

    commands = {
        "prepare": click.Command("prepare", callback=interrupted),  # which saves nothing
        "work": click.Command("work", hidden=True),
    }

    def said(word: str) -> Result:
        return CliRunner().invoke(LazyGroup("train", commands=commands), [word])

    assert (said("prepare").exit_code, said("prepare").stderr) == (130, "interrupted\n")
    assert said("-h").output.startswith("Usage: train")
    assert "\nerror: No such option '--bogus'" in said("--bogus").stderr
    assert said("bogus").stderr.endswith("no such command: bogus; known: prepare\n")
