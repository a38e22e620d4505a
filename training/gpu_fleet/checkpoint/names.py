"""Names of checkpoints: a run's folder on a disk, and its prefix in a bucket, hold the same.

    checkpoints/step-N/state.pt           all tensors, or what belongs to all ranks
    checkpoints/step-N/__RANK_*.distcp    the part of a rank, in a sharded checkpoint
    checkpoints/step-N/manifest.json      written last: with it the checkpoint exists
    checkpoints/step-N.tmp/               a checkpoint that is being written, or removed; on a disk alone
    checkpoints/step-N.damaged/           a checkpoint that no longer counts, and why; on a disk alone
    checkpoints/lock                      held by the process of the run; on a disk alone
    lease/NUMBER, lease/NUMBER.renewed    held by the process of the run; in a bucket alone

In a bucket, `step-N` and `lease` lie directly below the URI of the run.
"""

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"  # folder in the directory of a run
STATE = "state.pt"
MANIFEST = "manifest.json"
LOCK = "lock"
LEASE = "lease"
RENEWAL = ".renewed"  # suffix of an object beside a lease; each renewal writes it
_STEP = re.compile(r"step-([0-9]+)")
LEASE_NAME = "{:012d}"  # of a number, and what _LEASE reads
_LEASE = re.compile(r"([0-9]{12})(\.[0-9a-f]+)?")


def step_name(step: int) -> str:
    return f"step-{step}"


def step_of(name: str) -> int | None:
    """Return the step of a committed checkpoint; None if the name is another's."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def staged(root: Path, step: int) -> Path:
    return root / f"{step_name(step)}.tmp"


def lease_number(name: str) -> int | None:
    """Return the number of a lease; None if the name is another's."""
    match = _LEASE.fullmatch(name)
    return int(match[1]) if match else None


def is_of_rank(name: str, rank: int) -> bool:
    """Return whether a rank writes this file; rank 0 also writes those that belong to all."""
    return name.startswith(f"__{rank}_") or (rank == 0 and not name.startswith("__"))
