"""From a policy and environment variables to a cloud that a sweep can use."""

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from image.reaper.calls import Calls
from image.reaper.policy import Policy
from image.reaper.sweep import cloud as clouds
from image.reaper.sweep.cloud import Cloud

LEDGER_URI = "GPU_FLEET_LEDGER_URI"
TOPIC_ARN = "GPU_FLEET_TOPIC_ARN"
POLICY_FILE = "GPU_FLEET_POLICY_FILE"
# policy.json lies beside the package: at the root of the function's archive.
BESIDE_PACKAGE = Path(__file__).resolve().parents[3] / "policy.json"


def policy_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the policy lies unless a flag says otherwise."""
    return Path(environ.get(POLICY_FILE) or BESIDE_PACKAGE)


def connect(
    policy: Policy,
    clock: Callable[[], datetime],
    *,
    deadline: datetime | None = None,
    read_only: bool = False,
    environ: Mapping[str, str] = os.environ,
    made: Any = None,
) -> Cloud:
    """The stack's cloud.

    Args:
        policy: of the stack.
        clock: the time now.
        deadline: no call is made after it.
        read_only: no call changes anything.
        environ: where the ledger, and what tells people, are named.
        made: the cloud's ``Clients`` to use instead of new ones.

    Raises:
        ConfigurationError: a variable is malformed.
    """
    calls = Calls(clock, deadline, read_only=read_only)
    connected: Cloud = clouds.module(policy.cloud).connect(policy, calls, environ, made)
    return connected
