"""`python -m stacks` as a person at a shell meets it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def stacks(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command with nothing on PATH but what a test puts there."""
    return subprocess.run(
        [sys.executable, "-m", "stacks", *arguments],
        cwd=ROOT,
        env=os.environ | {"PATH": str(path or "/nonexistent")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def recording_cli(tmp_path: Path) -> Path:
    """A folder with a `pulumi` that writes down how it was called."""
    program = tmp_path / "pulumi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def test_check_says_that_a_stack_is_sound_and_what_it_holds():
    done = stacks("check", "aws-dev")

    assert done.returncode == 0
    assert "aws-dev: sound; aws us-east-1, pools dev (up to 3 g5.xlarge)" in done.stdout


def test_a_wrong_name_is_answered_with_the_names_there_are():
    done = stacks("up", "aws-dve")

    assert done.returncode == 1
    assert "no stack 'aws-dve': there are " in done.stderr
    assert "did you mean aws-dev?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["preview", "up"])
def test_without_the_cli_the_command_says_how_to_get_it(command):
    done = stacks(command, "aws-dev")

    assert done.returncode == 1
    assert "https://www.pulumi.com/docs/iac/download-install/" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["preview", "up"])
def test_a_sound_stack_is_handed_to_the_cli(command, recording_cli):
    done = stacks(command, "aws-dev", path=recording_cli)

    assert done.returncode == 0, done.stderr
    assert (recording_cli / "calls").read_text().splitlines() == [
        "stack select --create aws-dev",
        "stack output cost --json --stack aws-dev",
        f"{command} --stack aws-dev",
    ]


@pytest.mark.parametrize(
    ("output", "code", "handed_over"),
    [('{"currency": "USD"}', 0, '{"currency": "USD"}'), ("no output cost", 255, "")],
    ids=["deployed", "not-yet"],
)
def test_the_program_is_told_what_the_deployed_stack_costs(output, code, handed_over, tmp_path):
    program = tmp_path / "pulumi"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
    "stack output"*) echo '{output}'; exit {code};;
    "preview"*) echo "told: $GPU_FLEET_DEPLOYED_COST";;
esac
"""
    )
    program.chmod(0o755)

    done = stacks("preview", "aws-dev", path=tmp_path)

    assert done.returncode == 0
    assert f"told: {handed_over}\n" in done.stdout


def test_a_failure_of_the_cli_is_the_exit_code(tmp_path):
    program = tmp_path / "pulumi"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)

    assert stacks("preview", "aws-dev", path=tmp_path).returncode == 7
