"""The commands and the example of the rehearsal's README work, and its table names every module."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "stacks" / "rehearsal"
TEXT = (FOLDER / "README.md").read_text()
COMMANDS = [line.split() for line in TEXT.splitlines() if line.startswith("    gpu-fleet ")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_ends_well(command, tmp_path):
    arguments = [sys.executable, "-m", "image.console", *command[1:], "--folder", str(tmp_path)]

    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert "created in moto" in done.stdout


def test_the_example_prints_what_it_created(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

    exec(example, {})

    created, recorded, vpc_id = capsys.readouterr().out.split()[-3:]
    assert int(created) > int(recorded)
    assert vpc_id.startswith("vpc-")


def test_the_files_of_the_table_are_there():
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]

    assert [name for name in named if not list(FOLDER.glob(name.rstrip("/")))] == []
