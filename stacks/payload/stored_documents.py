"""What a stack keeps as JSON in its records bucket, alike on both clouds."""

from collections.abc import Iterator

from stacks.payload import sweep_archive
from stacks.settings import Stack, people


def stored_documents(stack: Stack, reaper_policy: str) -> Iterator[tuple[str, str, str]]:
    """The end of each resource's name, the object's key, its content.

    Args:
        reaper_policy: the sweep's policy as JSON, which users' commands and instances read.
    """
    yield "reaper-policy", sweep_archive.POLICY_KEY, reaper_policy
    # Also where nobody has an account, so that those who had one are locked. With a directory its function
    # writes it.
    if stack.access.directory is None:
        yield "accounts", sweep_archive.ACCOUNTS_KEY, people.roster_text(stack)
    if stack.notify.anybody:  # whom the sweep reaches where
        yield "reaper-roster", sweep_archive.ROSTER_KEY, sweep_archive.roster_text(stack)
