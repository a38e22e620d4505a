"""Which modules begin first: a long test that begins last keeps one core busy while the others idle."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# Each took more than 20 s of the run of 2026-11-23 on two cores, the longest first.
LONGEST = (
    "tests/acceptance/test_on_moto.py",
    "tests/test_readme.py",
    "tests/runs/test_submit.py",
    "tests/training/test_pretrained.py",
    "tests/training/test_checkpoint_kill.py",
    "tests/stacks/test_first_boot.py",
    "tests/stacks/test_teardown_aws.py",
    "tests/training/test_digits_run.py",
    "tests/training/test_kubernetes_run.py",
    "tests/training/test_compile.py",
    "tests/rehearsal/test_play.py",
    "tests/training/test_strategies.py",
    "tests/stacks/test_aws_provider.py",
    "tests/training/test_launch.py",
    "tests/training/test_own_code.py",
    "tests/reaper/test_handshake.py",
    "tests/capacity/test_through_the_door.py",
    "tests/training/test_any_command.py",
    "tests/reaper/test_agent_process.py",
)
ROOT = Path(__file__).parents[1]


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The modules of LONGEST before all others; the tests of a module stay in their order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.path, len(places)))
