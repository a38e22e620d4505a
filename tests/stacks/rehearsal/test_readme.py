"""The example of the rehearsal's README works."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "stacks" / "gpu_fleet_stacks" / "rehearsal"
TEXT = (FOLDER / "README.md").read_text()


def test_the_example_prints_what_it_created(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

    exec(example, {})

    created, recorded, vpc_id = capsys.readouterr().out.split()[-3:]
    assert int(created) > int(recorded)
    assert vpc_id.startswith("vpc-")
