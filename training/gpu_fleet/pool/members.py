"""Which members of a group may take work now, and in which order they stand."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_fleet.errors import LaunchError
from gpu_fleet.metadata import ThisInstance

IN_SERVICE = "InService"
TAKES_WORK = {IN_SERVICE, "Protected"}  # the second: in service and kept from scale-in, on Alibaba Cloud
COMING = "Pending"  # the start of the states on the way in


def members_in_service(members: Sequence[Mapping[str, Any]], instance: ThisInstance) -> list[str]:
    """Instance ids of those of `members` that may take work: each has InstanceId and LifecycleState.

    Raises LaunchError when one is still on its way in, or `instance` is not one of them.
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
    """The addresses by number, not by text: 10.0.0.9 before 10.0.0.10. Raises LaunchError on a wrong one."""
    try:
        return sorted(set(addresses), key=ipaddress.ip_address)
    except ValueError as error:
        raise LaunchError(f"--peers: {error}; write private addresses with commas between") from error
