"""Which modules begin first: a long test that begins last keeps one core busy while the others idle."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# Each took more than 8 s of the run of 2026-11-27 on two cores, the longest first.
LONGEST = (
    "tests/image/console/runs/test_submit.py",
    "tests/training/step/test_strategies.py",
    "tests/stacks/payload/test_first_boot.py",
    "tests/image/instance/agent/test_handshake.py",
    "tests/stacks/plan_check/test_plan_check.py",
    "tests/image/controllers/mover/test_through_the_door.py",
    "tests/training/data/test_user_code.py",
    "tests/training/models/test_pretrained.py",
    "tests/training/launch/test_launch.py",
    "tests/training/checkpoint/test_lease.py",
    "tests/stacks/test_user_role.py",
    "tests/image/controllers/sweep/test_mutants.py",
    "tests/image/instance/agent/test_handshake_faults.py",
    "tests/training/trainer/test_resume.py",
    "tests/stacks/teardown/test_teardown_aws.py",
    "tests/stacks/acceptance/test_runs.py",
    "tests/training/trainer/test_mistakes.py",
    "tests/training/checkpoint/test_claim.py",
    "tests/training/step/test_own_optimizer.py",
    "tests/test_readme.py",
    "tests/image/recipe/test_cloud_builder.py",
    "tests/training/integrations/test_any_command.py",
    "tests/image/controllers/sweep/test_readme.py",
    "tests/training/integrations/test_library.py",
    "tests/image/controllers/sweep/test_invariants.py",
    "tests/training/step/test_uneven_targets.py",
    "tests/training/trainer/test_false_success.py",
    "tests/training/preemption/test_tries.py",
    "tests/training/step/test_optimization.py",
    "tests/image/slurm/test_schedules.py",
    "tests/stacks/test_fleet.py",
    "tests/stacks/test_existing.py",
    "tests/training/test_preloaded.py",
    "tests/training/trainer/test_raised.py",
    "tests/image/instance/agent/test_agent_process.py",
    "tests/stacks/rehearsal/test_shipped_stacks.py",
    "tests/image/console/data/test_data.py",
    "tests/image/recipe/test_lock_update.py",
    "tests/image/recipe/test_units_under_systemd.py",
    "tests/stacks/preflight/test_preflight_alicloud.py",
    "tests/stacks/test_directory.py",
    "tests/training/core/test_instances.py",
    "tests/training/data/test_bucket_data.py",
    "tests/training/core/test_agreement.py",
    "tests/stacks/deployer/test_deployer.py",
    "tests/stacks/alicloud/test_alicloud_fleet.py",
    "tests/training/data/test_drawn_data.py",
    "tests/stacks/acceptance/test_alicloud.py",
    "tests/image/controllers/sweep/test_sweep_on_moto.py",
    "tests/image/console/data/test_restore.py",
    "tests/test_wheel.py",
    "tests/stacks/test_instance_logs.py",
    "tests/training/trainer/test_observed_run.py",
    "tests/training/trainer/test_kills.py",
    "tests/image/console/test_credentials.py",
    "tests/stacks/aws/test_aws_image.py",
    "tests/stacks/test_queue.py",
    "tests/image/controllers/sweep/test_give_back.py",
    "tests/training/step/test_compile.py",
    "tests/image/controllers/sweep/test_breaker.py",
    "tests/stacks/alicloud/test_first_pass.py",
    "tests/stacks/aws/test_aws_destroy.py",
    "tests/training/data/test_resumable.py",
    "tests/image/controllers/sweep/test_faults.py",
)
ROOT = Path(__file__).parents[1]


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The modules of LONGEST before all others; the tests of a module stay in their order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.path, len(places)))
