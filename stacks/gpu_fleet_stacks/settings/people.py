"""The accounts of ``access.people`` in the form that instances read."""

import hashlib
import json
from collections.abc import Iterable

from gpu_fleet_stacks.settings.schema import DirectorySettings, LoginName, Stack

# The spelling of API DescribeUser of the identity store.
ATTRIBUTES = {LoginName.USER_NAME: "UserName", LoginName.NICK_NAME: "NickName"}
FIRST_TEAM, TEAM_NUMBERS = 30_000, 20_000  # away from users' numbers, below those that Debian assigns itself


def team_number(team: str) -> int:
    """Return a team's group number, the same on every instance and in every stack, whatever teams exist."""
    number = int.from_bytes(hashlib.sha256(team.encode()).digest()[:4], "big")
    return FIRST_TEAM + number % TEAM_NUMBERS


def roster_text(stack: Stack) -> str:
    """Return ``accounts.json`` of the records bucket; without users it locks earlier accounts."""
    teams = _queue_teams(stack)
    document = {"schema_version": 1, "users": _users(stack), **({"teams": teams} if teams else {})}
    return json.dumps(document, indent=1, sort_keys=True)


def directory_text(stack: Stack, directory: DirectorySettings, taken: Iterable[str]) -> str:
    """Return ``directory.json`` for the function that reads a directory.

    See ``image/gpu_fleet_image/controllers/directory/directory.py``.
    """
    names = {person.team for person in stack.access.people.values() if person.team} | directory.teams.keys()
    content = {
        "named": _users(stack),
        "teams": [
            {"name": name, "gid": team_number(name), "group": team.group, "admin": team.admin}
            for name, team in sorted(directory.teams.items())
        ],
        "queue_teams": _queue_teams(stack),
        "keys": {name: list(keys) for name, keys in directory.keys.items()},
        "taken": sorted({*taken, *names}),
        "identity_store": directory.identity_store or "",
        "region": directory.region or "",
        "role": directory.role or "",
        "login": ATTRIBUTES[directory.login],
    }
    return json.dumps(content, indent=1, sort_keys=True)


def _users(stack: Stack) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "uid": person.uid,
            "keys": list(person.keys),
            "team": person.team or "",
            "team_gid": team_number(person.team) if person.team else 0,
            "admin": person.admin,
        }
        for name, person in sorted(stack.access.people.items())
    ]


def _queue_teams(stack: Stack) -> dict[str, dict[str, int | None]]:
    """Return each team's share of the queue (``image/gpu_fleet_image/slurm/accounting.py``)."""
    return {
        name: {"share": team.share, "max_gpus": team.max_gpus} for name, team in sorted(stack.teams.items())
    }
