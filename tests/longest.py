"""Which modules begin first: a long test that begins last keeps one core busy while the others idle."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# Each took more than 8 s of the run of 2026-11-26 on two cores, the longest first.
LONGEST = (
    "tests/image/console/runs/test_submit.py",
    "tests/training/data/test_user_code.py",
    "tests/stacks/payload/test_first_boot.py",
    "tests/image/controllers/mover/test_through_the_door.py",
    "tests/image/instance/agent/test_handshake.py",
    "tests/stacks/plan_check/test_plan_check.py",
    "tests/training/launch/test_launch.py",
    "tests/training/step/test_strategies.py",
    "tests/training/step/test_own_optimizer.py",
    "tests/training/models/test_pretrained.py",
    "tests/training/integrations/test_any_command.py",
    "tests/image/controllers/sweep/test_mutants.py",
    "tests/training/integrations/test_library.py",
    "tests/stacks/teardown/test_teardown_aws.py",
    "tests/stacks/acceptance/test_runs.py",
    "tests/training/trainer/test_resume.py",
    "tests/image/recipe/test_cloud_builder.py",
    "tests/training/trainer/test_mistakes.py",
    "tests/stacks/test_user_role.py",
    "tests/stacks/test_access.py",
    "tests/image/instance/agent/test_handshake_faults.py",
    "tests/training/step/test_uneven_targets.py",
    "tests/training/trainer/test_false_success.py",
    "tests/training/checkpoint/test_lease.py",
    "tests/image/controllers/sweep/test_invariants.py",
    "tests/image/slurm/test_schedules.py",
    "tests/image/controllers/sweep/test_readme.py",
    "tests/image/recipe/test_units_under_systemd.py",
    "tests/test_readme.py",
    "tests/training/core/test_agreement.py",
    "tests/image/recipe/test_lock_update.py",
    "tests/stacks/rehearsal/test_shipped_stacks.py",
    "tests/training/checkpoint/test_claim.py",
    "tests/stacks/test_existing.py",
    "tests/training/trainer/test_raised.py",
    "tests/training/step/test_optimization.py",
    "tests/image/instance/agent/test_agent_process.py",
    "tests/stacks/test_directory.py",
    "tests/training/step/test_compile.py",
    "tests/training/trainer/test_observed_run.py",
    "tests/training/checkpoint/test_run_identity.py",
    "tests/training/data/test_drawn_data.py",
    "tests/training/checkpoint/test_checkpoint.py",
    "tests/training/core/test_instances.py",
    "tests/training/data/test_bucket_data.py",
    "tests/image/controllers/sweep/test_sweep_on_moto.py",
    "tests/image/instance/gate/test_check_image.py",
    "tests/training/trainer/test_kills.py",
    "tests/training/preemption/test_tries.py",
    "tests/stacks/test_image_follows_builds.py",
    "tests/image/controllers/sweep/test_give_back.py",
)
ROOT = Path(__file__).parents[1]


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The modules of LONGEST before all others; the tests of a module stay in their order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.path, len(places)))
