"""The example of the rehearsal's README works, and its table names every module."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "stacks" / "rehearsal"
TEXT = (FOLDER / "README.md").read_text()


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
