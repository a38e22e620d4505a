"""``accounts.json``: the accounts on the stack's instances."""

import re
from dataclasses import dataclass
from typing import Any

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.runs import ACCOUNT

_KEY_LINE = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\x00-\x1f]+)?")  # no options, and no second line
NO_TEAM = "no-team"  # team of who has none: in budgets, and as an account of Slurm
UIDS, _TEAM_GIDS = range(2000, 30_000), range(30_000, 50_000)


class RosterError(InstanceError):
    """``accounts.json`` is malformed; nothing of it is applied."""


@dataclass(frozen=True)
class RosterUser:
    """A user's account.

    Attributes:
        uid: also the number of the group of the same name.
        keys: lines of ``authorized_keys``.
        team: an additional group; empty for none.
        team_gid: its number; 0 without a team.
    """

    name: str
    uid: int
    keys: tuple[str, ...] = ()
    team: str = ""
    team_gid: int = 0
    admin: bool = False


def parse(document: dict[str, Any]) -> tuple[RosterUser, ...]:
    """Parse the roster; return all users. The content is checked again, because root acts on it.

    Raises RosterError, which names everything that is wrong.
    """
    if document.get("schema_version") != 1:
        raise RosterError(f"{keys.ACCOUNTS}: schema_version = {document.get('schema_version')!r}; allowed: 1")
    entries = document.get("users")
    if not isinstance(entries, list):
        raise RosterError(f"{keys.ACCOUNTS}: users = {entries!r}; allowed: a list")
    problems = [
        f"{keys.ACCOUNTS}: users[{index}].{problem}"
        for index, entry in enumerate(entries)
        for problem in _problems(entry if isinstance(entry, dict) else {})
    ]
    users = () if problems else tuple(_user(entry) for entry in entries)
    problems += _clashes(users)
    if problems:
        raise RosterError("\n".join(problems))
    return users


def _user(entry: dict[str, Any]) -> RosterUser:
    return RosterUser(
        name=entry["name"],
        uid=entry["uid"],
        keys=tuple(entry["keys"]),
        team=entry["team"],
        team_gid=entry["team_gid"],
        admin=entry["admin"],
    )


def _problems(entry: dict[str, Any]) -> list[str]:
    lines, team = entry.get("keys"), entry.get("team")
    right = {
        "name": isinstance(entry.get("name"), str) and ACCOUNT.fullmatch(entry["name"]) is not None,
        "uid": _within(entry.get("uid"), UIDS),
        "keys": isinstance(lines, list)
        and all(isinstance(key, str) and _KEY_LINE.fullmatch(key) is not None for key in lines),
        "team": isinstance(team, str) and (not team or ACCOUNT.fullmatch(team) is not None),
        "team_gid": _within(entry.get("team_gid"), _TEAM_GIDS) if team else entry.get("team_gid") == 0,
        "admin": isinstance(entry.get("admin"), bool),
    }
    return [f"{key} = {entry.get(key)!r}: not as a stack writes it" for key, ok in right.items() if not ok]


def _within(value: object, numbers: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in numbers


def _clashes(users: tuple[RosterUser, ...]) -> list[str]:
    """Return a problem for each name or number that occurs twice."""
    names = [user.name for user in users]
    uids = [user.uid for user in users]
    twice = sorted({name for name in names if names.count(name) > 1})
    shared = sorted({uid for uid in uids if uids.count(uid) > 1})
    return [f"{keys.ACCOUNTS}: {name!r} is named twice" for name in twice] + [
        f"{keys.ACCOUNTS}: several users have uid {uid}" for uid in shared
    ]
