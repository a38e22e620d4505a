"""What `check` and every preview say of a stack whose instances run nothing of ours."""

import pulumi

from stacks.settings import Stack


def warning(stack: Stack) -> str:
    """One sentence; empty where agent and gate come up. Pure."""
    if stack.image.managed:
        return ""
    return (
        "image.mode = 'none': nothing is reaped here: instances run no agent, gate or trainer, carry no "
        "gpu-fleet:managed, and cost money until somebody terminates them; bootstrap brings all of it"
    )


def announce(stack: Stack) -> None:
    """Say it in the preview and the update, before anything is declared."""
    if said := warning(stack):
        pulumi.log.warn(said)
