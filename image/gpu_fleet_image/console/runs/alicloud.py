"""Start of a run on Alibaba Cloud: Cloud Assistant runs the stack's own command as the user's account."""

import json
import os
from collections.abc import Mapping, Sequence

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import Job, parameters
from gpu_fleet_image.providers.alicloud import instances
from gpu_fleet_image.providers.alicloud.connect import credentials
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Clients, clients


def command_name(stack: str) -> str:
    """Return the name of the stack's own command (``stacks/gpu_fleet_stacks/core/naming.py``)."""
    return f"gpu-fleet-{stack}-run"


def request(job: Job) -> Mapping[str, object]:
    """Return the request for all instances of a run; the account runs the command, and is no parameter."""
    given = {key: value for key, value in parameters(job).items() if key != "Account"}
    return {
        "InstanceId": [member.id for member in job.instances],
        "Username": job.account,
        "Parameters": json.dumps(given),
    }


def send(region: str, calls: Calls, job: Job) -> str:
    """Start a run on its instances; return the cloud's id of the command's invocation.

    Raises:
        ConfigurationError: the stack has no such command, or the caller may not use it.
        CloudError: anything else.
    """
    ecs = _clients(region).ecs
    try:
        listed = calls.read(ecs.action("DescribeCommands"), Name=command_name(job.stack))
        commands = [
            command["CommandId"]
            for command in listed.get("Commands", {}).get("Command", [])
            if command.get("Name") == command_name(job.stack)
        ]
        if not commands:
            raise ConfigurationError(
                f"stack {job.stack!r} has no command {command_name(job.stack)}: `gpu-fleet up` creates it "
                "if access.people has users"
            )
        answer = calls.change(ecs.action("InvokeCommand"), CommandId=commands[0], **request(job))
    except CloudError as error:
        if error.code not in DENIED:
            raise
        raise ConfigurationError(
            f"these credentials may not start a run as account {job.account}: the output submit_policies has "
            f"a policy for each account ({error})"
        ) from error
    return str(answer["InvokeId"])


def addresses(region: str, calls: Calls, ids: Sequence[str]) -> Mapping[str, str]:
    """Return instance -> private IPv4, without instances that have none. Raises CloudError."""
    return instances.addresses_of(calls, _clients(region).ecs, ids)


def _clients(region: str) -> Clients:
    return clients(region, credentials(os.environ), os.environ.get(ENDPOINT, ""))
