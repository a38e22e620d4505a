"""``python -m tests.bench.bench_plan_check``: edits of a stack file alone and in pairs, under the plan check.

Some twenty minutes on one core: `make prove` runs it. `make test` runs some of the pairs, each edit that
loses data alone, and the others in groups.
"""

import contextlib
import json
import sys
from typing import Any

from rich.console import Console

from tests.bench.entries import entry
from tests.stacks.edits import BOTH, edits
from tests.stacks.plan_check.test_plan_check import is_sound, lost_as_expected, pairs

COMMAND = "python -m tests.bench.bench_plan_check"


def measure() -> dict[str, Any]:
    """All entries of this bench."""
    say = Console(stderr=True).print
    found = {}
    for cloud in BOTH:
        alone = [(edit,) for edit in edits(cloud)]
        sound = [*alone, *(chosen for chosen in pairs(cloud) if is_sound(cloud, chosen))]
        say(f"{len(alone)} edits and {len(sound) - len(alone)} pairs on {cloud}")
        with contextlib.redirect_stdout(sys.stderr):
            wrong = [chosen for chosen in sound if not lost_as_expected(cloud, chosen)]
        for chosen in wrong:
            say(f"wrong: {' and '.join(str(edit) for edit in chosen)}")
        unit = f"of {len(sound)} edits and pairs of edits"
        found[f"guard_pairs_wrong_{cloud}"] = entry(len(wrong), unit, None, "0", command=COMMAND)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201 - the result is what the command is for
