"""What makes an account, an image or a key usable, whichever cloud it is of. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stacks.calls.errors import CannotCheckError
from stacks.preflight.findings import Finding, Rating
from stacks.settings import Stack

ARCHITECTURE = "x86_64"


def so(*said: tuple[str, bool]) -> list[str]:
    """The sentences that are true."""
    return [sentence for sentence, is_so in said if is_so]


def account(stack: Stack, who: str, of: str, remedy: str) -> Finding:
    """Whose credentials these are, and whether that account is the stack's; an emulator has its own."""
    if of == stack.account_id or stack.emulated:
        return Finding("account", Rating.FINE, f"{who} of {of}")
    says = f"the credentials are of {of}, the stack belongs to {stack.account_id}"
    return Finding("account", Rating.PROBLEM, says, remedy)


def unless_missing(ask: Callable[[], dict[str, Any]], code: str) -> dict[str, Any]:
    """An answer, or an empty one where the cloud refuses with this code: it knows of no such thing.

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
    """An image that was found, and what is wrong with it.

    Args:
        named: its id and name, and how instances come to agent and gate with it.
    """
    if not wrong:
        return Finding("image", Rating.FINE, named)
    return Finding("image", Rating.PROBLEM, f"{named} {', '.join(wrong)}", f"name another, or {build}")


def how_booted(stack: Stack, *, is_built: bool) -> str:
    """How instances of an image come to agent, gate and trainer.

    Args:
        is_built: the stack's own pipeline made the image.
    """
    if stack.image.follows_builds and not is_built:
        return f"bootstrapped until the first build has ended: `gpu-fleet image build {stack.name}`"
    return stack.image.mode.in_words


def no_image(stack: Stack, identifier: str, build: str) -> Finding:
    """An image that is not there, for this account at least."""
    return Finding("image", Rating.PROBLEM, f"{identifier} is not in {stack.region}", build)


def misfits(stack: Stack, architecture: object, size_gib: int) -> Iterable[str]:
    """What keeps any cloud's image from the stack's instances."""
    smallest = min(pool.volume_gib for pool in stack.pools)
    return so(
        (f"is {architecture}", architecture != ARCHITECTURE),
        (f"has {size_gib} GiB, more than a pool's volume_gib of {smallest}", size_gib > smallest),
    )


def key(alias: str, answer: dict[str, Any], *, enable: str, cancel_deletion: str) -> Finding:
    """The stack's key: a first ``up`` makes it, a later one needs it enabled.

    Args:
        answer: of DescribeKey; empty where there is none yet.
        cancel_deletion: the command that takes a scheduled deletion back.
    """
    if not answer:
        return Finding("key", Rating.FINE, f"{alias} does not exist yet: an up makes it")
    state = answer["KeyMetadata"]["KeyState"]
    if state == "Enabled":
        return Finding("key", Rating.FINE, f"{alias} is enabled")
    remedy = f"{cancel_deletion} && {enable}" if state == "PendingDeletion" else enable
    return Finding("key", Rating.PROBLEM, f"{alias} is {state}: what it encrypts stays shut", remedy)
