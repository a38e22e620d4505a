"""Check that no two stacks of an account share a physical name. Pure.

A name is ``gpu-fleet-<stack>-<pool>...``. So stack ``aws`` with pool ``dev-dev`` and stack ``aws-dev`` with
pool ``dev`` have groups, alarms and rules of the same names. Deployed names must not change, so such a pair
is refused. Resources that a stack has once (buckets, budget, dashboard, the scaling role) are named by the
stack alone. Only a stack of the same name in another region could share those, and ``preflight`` looks for
it.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.draft import NotParsedError
from gpu_fleet_stacks.settings.pools import group_plans

# The second number of the networks that are proposed, 10.N.0.0/16.
FIRST_NETWORK, LAST_NETWORK = 20, 255


def group_labels(stack: Stack, pool: Pool) -> tuple[str, ...]:
    """Return the labels of the pool's scaling groups; all begin with its name."""
    return tuple(plan.label for plan in group_plans(stack, pool))


def one_group_each(stack: Stack) -> Iterator[Problem]:
    """Refuse two pools of a stack with a group of the same name."""
    owners: dict[str, str] = {}
    for pool in stack.pools:
        with suppress(NotParsedError):
            for label in group_labels(stack, pool):
                other = owners.setdefault(label, pool.name)
                if other != pool.name:
                    yield Problem("pools", pool.name, f"pool {other} has a group of the name {label}, too")


def clashes(stack: Stack, others: Iterable[Stack]) -> Iterator[Problem]:
    """Yield a problem for each pool whose group has a name of another stack in the account and region.

    Args:
        stack: the stack to check.
        others: the stacks beside it, of any account.
    """
    own = {naming.prefixed(stack.name, label): pool.name for pool, label in _groups(stack)}
    for other in others:
        place = (other.cloud, other.account_id, other.region)
        if other.name == stack.name or place != (stack.cloud, stack.account_id, stack.region):
            continue
        for pool, label in _groups(other):
            name = naming.prefixed(other.name, label)
            if name in own:
                theirs = f"pool {pool.name!r} of stack {other.name!r} would be named {name} as well"
                yield Problem("pools", own[name], f"{theirs}; rename the one that is not deployed yet")


def shared_networks(stack: Stack, others: Iterable[Stack]) -> Iterator[str]:
    """Yield a warning for each stack of the account whose own network overlaps this stack's.

    The cloud takes both. They could never be connected by a peering or a transit gateway, and nobody may
    change the network of a deployed stack without losing what is in it.
    """
    own, known = stack.network.cidr, list(others)
    taken = [each.network.cidr for each in (stack, *known) if each.network.cidr]
    for other in known:
        account, theirs = (other.cloud, other.account_id), other.network.cidr
        if own is None or theirs is None or account != (stack.cloud, stack.account_id):
            continue
        if own.overlaps(theirs):
            how = "is also that of" if own == theirs else f"overlaps {theirs} of"
            yield (
                f"network.cidr {own} {how} stack {other.name!r}: the two can never be connected; "
                f"{free_network(taken)} is free here"
            )


def free_network(taken: Iterable[IPv4Network]) -> IPv4Network:
    """Return the first network of 10/8 from ``FIRST_NETWORK`` on that overlaps none of these.

    If each has a part that is taken, it is the first of all.
    """
    known = list(taken)
    numbers = (*range(FIRST_NETWORK, LAST_NETWORK + 1), *range(FIRST_NETWORK))
    candidates = (IPv4Network(f"10.{number}.0.0/16") for number in numbers)
    fallback = IPv4Network(f"10.{FIRST_NETWORK}.0.0/16")
    return next((each for each in candidates if not any(each.overlaps(other) for other in known)), fallback)


def _groups(stack: Stack) -> Iterator[tuple[Pool, str]]:
    return ((pool, label) for pool in stack.pools for label in group_labels(stack, pool))
