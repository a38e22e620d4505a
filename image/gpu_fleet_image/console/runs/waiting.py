"""Reasons why jobs of the queue wait for instances, from the mover's latest state. Pure."""

from collections.abc import Iterable, Iterator

from gpu_fleet_image.console.users.take import help_for
from gpu_fleet_image.core.capacity import MoverState
from gpu_fleet_image.core.policy import Policy


def why_none_comes(state: MoverState, policy: Policy, pools: Iterable[str]) -> Iterator[str]:
    """Yield a line for each pool that gets no instance: the obstacle, or the groups without capacity."""
    for pool in sorted(set(pools)):
        if why := state.held.get(pool):
            yield f"pool {pool} gets no instance: {why}"
            continue
        tried = [
            f"{group.removeprefix(f'gpu-fleet-{policy.stack}-')}: {trouble.why}"
            for group, trouble in sorted(state.trouble.items())
            if _may_be_of(group, pool, policy)
        ]
        if tried:
            reason = "; ".join(tried)
            yield f"pool {pool}: no room in {reason}. What may help: {help_for(reason)}"


def _may_be_of(group: str, pool: str, policy: Policy) -> bool:
    """Return whether a group belongs to a pool, by its name on AWS; Alibaba Cloud's ids show nothing."""
    prefix = f"gpu-fleet-{policy.stack}-"
    if not group.startswith(prefix):
        return True
    capacity = policy.pools[pool].capacity if pool in policy.pools else None
    label = group.removeprefix(prefix)
    # as in mover.py: Pulumi appends letters to a name
    return any(label == own or label.startswith(f"{own}-") for own in (capacity.groups if capacity else ()))
