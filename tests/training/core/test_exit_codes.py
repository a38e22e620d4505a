"""One table of exit statuses, which trainer, unit and page share."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpu_fleet.core import errors, exit_codes, outcome
from gpu_fleet.core.errors import TrainingError
from gpu_fleet.core.lazy_groups import LazyGroup
from tests.training.commands import tried, tried_alone
from tests.training.examples import changed, gpt_table

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "image/gpu_fleet_image/recipe/rootfs/etc/systemd/system/trainer@.service"


def all_errors(kind: type[TrainingError] = TrainingError) -> list[type[TrainingError]]:
    return [found for child in kind.__subclasses__() for found in (child, *all_errors(child))]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_of_the_table(kind):
    stopped = (exit_codes.STOPPED,) if kind is errors.StoppedError else ()

    assert kind("why").exit_status in (stopped or (exit_codes.FAILED_FOR_GOOD, exit_codes.FAILED_PERHAPS))


def test_what_can_pass_may_be_tried_again():
    again = exit_codes.FAILED_PERHAPS
    hopeful = {kind for kind in all_errors() if kind("why").exit_status == again}

    silent = {errors.SilentSourceError, errors.SilentStoreError, errors.PassingCodeError}
    passing = {errors.CheckpointError, *silent, errors.RunLeaseError, errors.PeerError, errors.LaunchError}
    assert hopeful == passing
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
    assert (tmp_path / "run" / outcome.FAILURE).exists()


def test_every_rank_ends_with_the_status_of_the_error(tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path / "run"), model={"name": "gtp"})

    answers = tried(2, table, tmp_path)

    assert [status for status, _ in answers] == [65, 65]


def test_ctrl_c_ends_a_command_that_saves_nothing_with_130():
    def interrupted() -> None:
        raise KeyboardInterrupt

    group = LazyGroup("train", commands={"prepare": click.Command("prepare", callback=interrupted)})

    done = CliRunner().invoke(group, ["prepare"])

    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


def test_the_group_itself_answers_h_and_reports_a_wrong_option_as_its_commands_do():
    group = LazyGroup("train", commands={"prepare": click.Command("prepare")})

    assert CliRunner().invoke(group, ["-h"]).output.startswith("Usage: train")
    assert "\nerror: No such option '--bogus'" in CliRunner().invoke(group, ["--bogus"]).stderr


def test_an_unknown_command_is_answered_with_those_that_help_shows():
    group = LazyGroup(
        "train", commands={"start": click.Command("start"), "work": click.Command("work", hidden=True)}
    )

    assert CliRunner().invoke(group, ["bogus"]).stderr.endswith("no such command: bogus; known: start\n")
