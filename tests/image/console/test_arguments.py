"""What is wrong with a command line is said before any cloud is asked."""

import shutil
from pathlib import Path

import pytest
from botocore.client import BaseClient
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main

SHIPPED_FILES = Path(__file__).parents[3] / "stacks"
STACK = ("--stack", "aws-dev")
NO_POOL = "no such pool; stack aws-dev has"
REFUSED = {
    ("report", "--month", "2026-13"): "--month '2026-13'; allowed: YEAR-MONTH",
    ("report", "--day", "2026-02-30"): "--day '2026-02-30'; allowed: YEAR-MONTH-DAY",
    ("report", "--month", "2026-11", "--day", "2026-11-20"): "allowed: one of them",
    ("take", "train2"): f"POOL 'train2': {NO_POOL}",
    ("submit", "--pool", "nope", "x.toml"): f"--pool 'nope': {NO_POOL}",
    ("submit", "--pool", "dev", "gone.toml"): "CONFIG 'gone.toml': there is no such file",
    ("submit", "--pool", "dev", "--include", "gone", "x"): "--include 'gone': there is no such file",
    ("submit", "--pool", "dev", "--branch", "", "x"): "Invalid value for '--branch': is empty",
    ("submit", "--pool", "dev", "--checkpoints", "", "x"): "Invalid value for '--checkpoints': is empty",
    ("report", "--bill", __file__): "no bill that is known here; allowed: a file with the columns of",
    ("report", "--to", "/gone/x"): "'/gone/x': /gone is no folder in which you may write",
    ("sweep", "--report", "/gone/x"): "'/gone/x': /gone is no folder in which you may write",
    ("connect", "--pool", "nope"): f"--pool 'nope': {NO_POOL}",
    ("explain",): "name an instance; only on an instance is its own the default",
    ("keep", "soon", "--reason", "x"): "duration 'soon'; allowed: a number and m, h or d",
    ("unfreeze", "--reason", " "): "--reason is empty",
    ("sweep", "--live", "--now", "2026-11-01T00:00:00+00:00"): "--now with --live",
}


@pytest.fixture
def silent(monkeypatch):
    """A computer on which whoever asks AWS fails the test."""

    def asked(self, operation, about):
        raise AssertionError(f"{operation} was asked for, of {about}")

    monkeypatch.setattr(BaseClient, "_make_api_call", asked)
    monkeypatch.delenv("GPU_FLEET_POLICY_FILE", raising=False)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", "/nowhere.toml")


@pytest.mark.parametrize(("words", "says"), REFUSED.items())
def test_a_wrong_argument_is_named_before_a_cloud_is_asked(silent, words, says):
    said = CliRunner().invoke(main, [*words, *STACK])

    assert said.exit_code != 0
    assert says in said.output


def test_a_hold_that_is_too_long_is_said_to_be_shortened_before_a_cloud_is_asked(silent):
    said = CliRunner().invoke(main, ["keep", "99d", "--reason", "x", "--instance", "i-0", *STACK])

    assert "warning: 99d is longer than 14 days; shortened to that" in said.output.splitlines()[0]


PATH = "files/Pulumi.lab.yaml"


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Work beside a folder of stack files, whose only stack is lab."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    shutil.copy(SHIPPED_FILES / "Pulumi.aws-dev.yaml", tmp_path / PATH)


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("status", PATH), ""),
        (("sweep", PATH, "-s", "lab"), ""),
        (("logs", "run", "-s", PATH), ""),
        (("explain", "i-0abc"), PATH),
        (("report", PATH), "files/Pulumi.absent.yaml"),
    ],
)
def test_a_stack_is_named_by_the_path_of_its_file_as_well(silent, beside, monkeypatch, words, variable):
    monkeypatch.setenv("GPU_FLEET_STACK", variable)

    said = CliRunner().invoke(main, [*words])

    assert "gpu-fleet-lab-records-" in f"{said.exception} {said.output}"


def test_a_path_without_a_stack_file_is_refused_by_its_flag(silent, beside):
    said = CliRunner().invoke(main, ["status", "-s", "files/Pulumi.absent.yaml"])

    assert "Invalid value for '-s' / '--stack'" in said.output
    assert "'files/Pulumi.absent.yaml': there is no such file" in said.output


def test_flags_that_say_where_a_stack_is_may_mean_another_than_its_file(silent):
    said = CliRunner().invoke(main, ["take", "nope", *STACK, "--region", "eu-west-1", "--account", "1" * 12])

    assert "no such pool" not in said.output
    assert "was asked for" in str(said.output)
