"""One pass over a directory: write the present members of the stack's groups to ``accounts.json``.

Nothing is written unless every group was read: a failed read locks no account.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from gpu_fleet_image.controllers.directory.directory import (
    Directory,
    MemberAccount,
    MemberProfile,
    MergedAccounts,
    Registry,
    merge,
    parse_registry,
)
from gpu_fleet_image.core import keys, roster
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.store import Store

REGISTRY = keys.ACCOUNT_NUMBERS
# Of known members so many are asked for by themselves in one pass, those of large groups in turns: Identity
# Center answers 20 calls a second to the whole organization
# (docs.aws.amazon.com/singlesignon/latest/userguide/limits.html).
AT_ONCE = 50
_PASS_S = 60


class DirectoryGroups(Protocol):
    """A directory. Every method raises CloudError."""

    def members(self, group: str) -> Mapping[str, MemberProfile | None]:
        """Return id -> profile from the group's list; None if the list has no profiles."""

    def profile(self, member: str) -> MemberProfile | None:
        """Return one member's profile; None if they are gone."""


def refresh(
    directory: Directory, groups: DirectoryGroups, store: Store, clock: Callable[[], datetime]
) -> dict[str, Any]:
    """Read every group, and write the accounts if they have changed.

    Returns:
        Number of accounts, whether they were written, and users without an account with the reason.

    Raises:
        CloudError: a group, the registry or the roster could not be read or written; no account is locked.
        ConfigurationError: the registry is damaged.
        RosterError: the new roster would be malformed.
    """
    stored = store.get(REGISTRY)
    registry = parse_registry(stored.content) if stored else {}
    listed = {team.name: dict(groups.members(team.group)) for team in directory.teams}
    profiles = _profiles(groups, listed.values(), registry, clock())
    outcome = merge(directory, listed, profiles, registry)
    document = _document(directory, outcome)
    roster.parse(document)
    if outcome.registry != registry:
        content = Registry(outcome.registry).to_json()
        if store.move_on(REGISTRY, content, stored.version if stored else None) is None:
            raise CloudError(f"{REGISTRY}: another pass wrote it at the same time; the next pass continues")
    written = _differs(store, document)
    if written:
        store.put(keys.ACCOUNTS, document)
    return {"users": len(outcome.users), "written": written, "left_out": outcome.left_out}


def log(result: dict[str, Any]) -> dict[str, Any]:
    """Write the result as one JSON object in a line; return it."""
    sys.stdout.write(json.dumps({"event": "people", **result}) + "\n")
    return result


def _profiles(
    groups: DirectoryGroups,
    listed: Iterable[Mapping[str, MemberProfile | None]],
    registry: Mapping[str, MemberAccount],
    now: datetime,
) -> dict[str, MemberProfile]:
    """Return id -> present profile: from the list, or looked up; known members take turns."""
    everybody: dict[str, MemberProfile | None] = {}
    for members in listed:
        everybody |= members
    said = {member: profile for member, profile in everybody.items() if profile is not None}
    silent = sorted(everybody.keys() - said.keys())
    turns = max(1, -(-len(silent) // AT_ONCE))
    turn = int(now.timestamp()) // _PASS_S % turns
    for place, member in enumerate(silent):
        if member not in registry or place % turns == turn:
            # a user who is gone but still listed may no longer log in
            said[member] = groups.profile(member) or MemberProfile("", enabled=False)
    return said


def _document(directory: Directory, outcome: MergedAccounts) -> dict[str, Any]:
    teams = {"teams": dict(directory.queue_teams)} if directory.queue_teams else {}
    return {"schema_version": 1, "users": outcome.users, "left_out": outcome.left_out, **teams}


def _differs(store: Store, document: dict[str, Any]) -> bool:
    """Return whether the bucket holds another roster, a damaged one or none."""
    try:
        newest = store.newest(keys.ACCOUNTS)
    except CloudError as error:
        if error.code != "Malformed":
            raise
        return True
    return newest is None or newest.content != document
