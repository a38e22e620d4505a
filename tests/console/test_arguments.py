"""What is wrong with a command line is said before any cloud is asked."""

from datetime import UTC, datetime

import pytest
from botocore.client import BaseClient
from click.testing import CliRunner

from image.console.cli import main

STACK = ("--stack", "aws-dev")
REFUSED = {
    "a month that is none": (("report", "--month", "2026-13"), "--month '2026-13'; allowed: YEAR-MONTH"),
    "a day that is none": (("report", "--day", "2026-02-30"), "--day '2026-02-30'; allowed: YEAR-MONTH-DAY"),
    "a month and a day": (("report", "--month", "2026-11", "--day", "2026-11-20"), "allowed: one of them"),
    "a pool that is not in the file": (("take", "train2"), "POOL 'train2': no such pool; stack aws-dev has"),
    "a pool of a run": (
        ("submit", "--pool", "nope", "x.toml"),
        "--pool 'nope': no such pool; stack aws-dev has",
    ),
    "a pool to connect to": (("connect", "--pool", "nope"), "--pool 'nope': no such pool; stack aws-dev has"),
    "a span that is none": (
        ("keep", "soon", "--reason", "x"),
        "duration 'soon'; allowed: a number and m, h or d",
    ),
    "no reason": (("unfreeze", "--reason", " "), "--reason is empty"),
    "a live sweep of another time": (
        ("sweep", "--live", "--now", datetime(2026, 11, 1, tzinfo=UTC).isoformat()),
        "--now with --live",
    ),
}


@pytest.fixture
def silent(monkeypatch):
    """A computer on which whoever asks AWS fails the test."""

    def asked(self, operation, _):
        raise AssertionError(f"{operation} was asked for")

    monkeypatch.setattr(BaseClient, "_make_api_call", asked)
    monkeypatch.delenv("GPU_FLEET_POLICY_FILE", raising=False)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", "/nowhere.toml")


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_argument_is_named_before_a_cloud_is_asked(silent, words, says):
    said = CliRunner().invoke(main, [*words, *STACK])

    assert said.exit_code != 0
    assert says in said.output


def test_a_hold_that_is_too_long_is_said_to_be_shortened_before_a_cloud_is_asked(silent):
    said = CliRunner().invoke(main, ["keep", "99d", "--reason", "x", "--instance", "i-0", *STACK])

    assert "warning: 99d is longer than 14 days; shortened to that" in said.output.splitlines()[0]


def test_flags_that_say_where_a_stack_is_may_mean_another_than_its_file(silent):
    said = CliRunner().invoke(main, ["take", "nope", *STACK, "--region", "eu-west-1", "--account", "1" * 12])

    assert "no such pool" not in said.output
    assert "was asked for" in str(said.output)
