"""Rules of either cloud for a usable account, image or key. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight.findings import Finding, Rating
from gpu_fleet_stacks.settings import Stack

ARCHITECTURE = "x86_64"


def so(*said: tuple[str, bool]) -> list[str]:
    """Return the sentences whose condition is true."""
    return [sentence for sentence, is_so in said if is_so]


def account(stack: Stack, who: str, of: str, remedy: str) -> Finding:
    """Check that the credentials' account is the stack's; an emulator has its own account."""
    if of == stack.account_id or stack.emulated:
        return Finding("account", Rating.FINE, f"{who} of {of}")
    says = f"the credentials are of {of}, the stack belongs to {stack.account_id}"
    return Finding("account", Rating.PROBLEM, says, remedy)


def unless_missing(ask: Callable[[], dict[str, Any]], code: str) -> dict[str, Any]:
    """Return the answer, or an empty one where the cloud's code says that no such resource exists.

    Raises:
        CannotCheckError: refused for any other reason.
    """
    try:
        return ask()
    except CannotCheckError as error:
        if code not in str(error):
            raise
        return {}


def image(named: str, wrong: Sequence[str], build: str) -> Finding:
    """Return the finding of an image that exists.

    Args:
        wrong: what is wrong with it; empty for nothing.
    """
    if not wrong:
        return Finding("image", Rating.FINE, named)
    return Finding("image", Rating.PROBLEM, f"{named} {', '.join(wrong)}", f"name another, or {build}")


def instances(
    stack: Stack, started: Mapping[str, tuple[str, datetime]], roles: Callable[[], Mapping[str, datetime]]
) -> Finding:
    """Check that no instance is older than its pool's user role: its users could not save their work.

    Args:
        started: instance -> its pool and its first start.
        roles: returns pool -> creation time of its user role; pools without a role are left out.
    """
    made = roles() if started else {}
    old = sorted(each for each, (pool, at) in started.items() if pool not in made or at < made[pool])
    if not old:
        return Finding("instances", Rating.FINE, f"{len(started)}, none older than its users' role")
    says = f"{', '.join(old)}: older than the user role of their pool, so that users there can save nothing"
    remedy = f"replace them: size 0 until they are gone, or gpu-fleet give-back ID --stack {stack.name}"
    return Finding("instances", Rating.PROBLEM, says, remedy)


def how_booted(stack: Stack, *, is_built: bool) -> str:
    """Describe how instances of an image get agent, gate and trainer."""
    if stack.image.follows_builds and not is_built:
        return f"bootstrapped until the first build has ended: `gpu-fleet image build {stack.name}`"
    return stack.image.mode.in_words


def no_image(stack: Stack, identifier: str, build: str) -> Finding:
    """Return the finding of an image that does not exist for this account."""
    return Finding("image", Rating.PROBLEM, f"{identifier} is not in {stack.region}", build)


def misfits(stack: Stack, architecture: object, size_gib: int) -> Iterable[str]:
    """Return why an image of any cloud does not fit the stack's instances."""
    smallest = min(pool.volume_gib for pool in stack.pools)
    return so(
        (f"is {architecture}", architecture != ARCHITECTURE),
        (f"has {size_gib} GiB, more than a pool's volume_gib of {smallest}", size_gib > smallest),
    )


def key(alias: str, answer: dict[str, Any], *, enable: str, cancel_deletion: str) -> Finding:
    """Check the stack's key: the first ``up`` creates it, a later one needs it enabled.

    Args:
        answer: answer of DescribeKey; empty where there is no key yet.
        cancel_deletion: the command that cancels a scheduled deletion.
    """
    if not answer:
        return Finding("key", Rating.FINE, f"{alias} does not exist yet: an up makes it")
    state = answer["KeyMetadata"]["KeyState"]
    if state == "Enabled":
        return Finding("key", Rating.FINE, f"{alias} is enabled")
    remedy = f"{cancel_deletion} && {enable}" if state == "PendingDeletion" else enable
    return Finding("key", Rating.PROBLEM, f"{alias} is {state}: what it encrypts stays shut", remedy)
