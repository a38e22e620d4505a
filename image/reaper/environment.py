"""From a policy and environment variables to a cloud that a sweep can use."""

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from image.reaper.aws import Machines
from image.reaper.aws_leftovers import Leftovers
from image.reaper.aws_metrics import Heartbeats
from image.reaper.aws_session import Clients, clients
from image.reaper.calls import Calls
from image.reaper.errors import ConfigurationError
from image.reaper.notify import Notifier
from image.reaper.policy import Policy
from image.reaper.store import Store
from image.reaper.sweep import Cloud

LEDGER_URI = "GPU_FLEET_LEDGER_URI"
TOPIC_ARN = "GPU_FLEET_TOPIC_ARN"
POLICY_FILE = "GPU_FLEET_POLICY_FILE"
# policy.json lies beside the package: at the root of the Lambda archive.
BESIDE_PACKAGE = Path(__file__).resolve().parents[2] / "policy.json"


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
    made: Clients | None = None,
) -> Cloud:
    """The stack's cloud.

    Args:
        policy: of the stack.
        clock: the time now.
        deadline: no call is made after it.
        read_only: no call changes anything.
        environ: where ledger and topic are named.
        made: clients to use instead of new ones.

    Raises:
        ConfigurationError: a variable is malformed, or the cloud is not built yet.
    """
    if policy.cloud != "aws":
        raise ConfigurationError(f"cloud = {policy.cloud!r}; this version sweeps aws")
    aws = made or clients(policy.region)
    calls = Calls(clock, deadline, read_only=read_only)
    topic, ledger = environ.get(TOPIC_ARN), environ.get(LEDGER_URI)
    return Cloud(
        calls=calls,
        machines=Machines(aws, calls, policy.stack),
        heartbeats=Heartbeats(aws.cloudwatch, calls, policy.metric_namespace),
        leftovers=Leftovers(aws.ec2, calls, policy.stack),
        notifier=Notifier(aws.sns, calls, topic) if topic else None,
        store=Store(aws.s3, calls, ledger) if ledger else None,
    )
