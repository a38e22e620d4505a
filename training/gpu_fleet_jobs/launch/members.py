"""Members of a group that may take work now, and their order."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_fleet.core.errors import LaunchError
from gpu_fleet.core.metadata import ThisInstance

IN_SERVICE = "InService"
TAKES_WORK = {IN_SERVICE, "Protected"}  # Protected: in service, with scale-in protection, on Alibaba Cloud
COMING = "Pending"  # states that begin with this are on the way into service


def members_in_service(members: Sequence[Mapping[str, Any]], instance: ThisInstance) -> list[str]:
    """Return the instance ids of the members that may take work.

    Each member has InstanceId and LifecycleState. Raises LaunchError if a member is still starting, or if
    `instance` itself may not take work.
    """
    states = {member["InstanceId"]: member["LifecycleState"] for member in members}
    mine = states.get(instance.instance_id)
    if mine not in TAKES_WORK:
        raise LaunchError(
            f"{instance.instance_id} is {mine} in its group, not {IN_SERVICE}: nothing is started"
        )
    ready = [instance_id for instance_id, state in states.items() if state in TAKES_WORK]
    coming = [instance_id for instance_id, state in states.items() if state.startswith(COMING)]
    if coming:
        raise LaunchError(
            f"{len(ready)} of {len(ready) + len(coming)} instances are {IN_SERVICE}; wait for "
            f"{', '.join(coming)}, or name the instances to use: --peers ADDRESS,ADDRESS"
        )
    return ready


def in_order(addresses: Sequence[str]) -> list[str]:
    """Sort addresses by number, not as text: 10.0.0.9 before 10.0.0.10. Raises LaunchError for a bad one."""
    try:
        return sorted(set(addresses), key=ipaddress.ip_address)
    except ValueError as error:
        raise LaunchError(f"--peers: {error}; write private addresses, separated by commas") from error
