"""Which modules begin first: a long test that begins last keeps one core busy while the others idle."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# Each took more than 8 s of the run of 2026-11-26 on two cores, the longest first.
LONGEST = (
    "tests/runs/test_submit.py",
    "tests/training/test_user_code.py",
    "tests/stacks/test_first_boot.py",
    "tests/capacity/test_through_the_door.py",
    "tests/reaper/test_handshake.py",
    "tests/stacks/test_plan_check.py",
    "tests/training/test_launch.py",
    "tests/training/test_strategies.py",
    "tests/training/test_own_optimizer.py",
    "tests/training/test_pretrained.py",
    "tests/training/test_any_command.py",
    "tests/reaper/test_mutants.py",
    "tests/training/test_library.py",
    "tests/stacks/test_teardown_aws.py",
    "tests/acceptance/test_runs.py",
    "tests/training/test_resume.py",
    "tests/image/test_cloud_builder.py",
    "tests/training/test_mistakes.py",
    "tests/stacks/test_user_role.py",
    "tests/stacks/test_access.py",
    "tests/reaper/test_handshake_faults.py",
    "tests/training/test_uneven_targets.py",
    "tests/training/test_false_success.py",
    "tests/training/test_lease.py",
    "tests/reaper/test_invariants.py",
    "tests/queue/test_schedules.py",
    "tests/reaper/test_readme.py",
    "tests/image/test_units_under_systemd.py",
    "tests/test_readme.py",
    "tests/training/test_agreement.py",
    "tests/image/test_lock_update.py",
    "tests/rehearsal/test_shipped_stacks.py",
    "tests/training/test_claim.py",
    "tests/stacks/test_existing.py",
    "tests/training/test_raised.py",
    "tests/training/test_optimization.py",
    "tests/reaper/test_agent_process.py",
    "tests/stacks/test_directory.py",
    "tests/training/test_compile.py",
    "tests/training/test_observed_run.py",
    "tests/training/test_run_identity.py",
    "tests/training/test_drawn_data.py",
    "tests/training/test_checkpoint.py",
    "tests/training/test_instances.py",
    "tests/training/test_bucket_data.py",
    "tests/reaper/test_sweep_on_moto.py",
    "tests/image/test_check_image.py",
    "tests/training/test_kills.py",
    "tests/training/test_tries.py",
    "tests/stacks/test_image_follows_builds.py",
    "tests/reaper/test_give_back.py",
)
ROOT = Path(__file__).parents[1]


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The modules of LONGEST before all others; the tests of a module stay in their order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.path, len(places)))
