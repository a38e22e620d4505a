"""JSON documents in a stack's records bucket, the same on both clouds."""

from collections.abc import Iterator

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import text_of
from gpu_fleet_image.core.notify.notifier import Roster
from gpu_fleet_image.core.notify.webhooks import Webhook
from gpu_fleet_stacks.settings import Stack, people


def stored_documents(stack: Stack, reaper_policy: str) -> Iterator[tuple[str, str, str]]:
    """Yield the suffix of each resource's name, the object's key, and its content."""
    yield "reaper-policy", keys.stored(keys.POLICY), reaper_policy
    # Also without any account, so that earlier accounts are locked. With a directory, the
    # directory's function writes it.
    if stack.access.directory is None:
        yield "accounts", keys.stored(keys.ACCOUNTS), people.roster_text(stack)
    if stack.notify.anybody:  # addresses of users, for the sweep
        yield "reaper-roster", keys.stored(keys.ROSTER), _roster_text(stack)


def _roster_text(stack: Stack) -> str:
    """Return ``roster.json``: the addresses of users; only the sweep's role may read it."""
    notify = stack.notify
    rooms = tuple(Webhook(str(webhook.kind), webhook.secret) for webhook in notify.webhooks)
    return text_of(Roster(dict(notify.users), tuple(stack.budget.recipients), notify.sender, rooms))
