"""The accounts of ``access.people`` as instances read them."""

import hashlib
import json

from stacks.settings.schema import Stack

FIRST_TEAM, TEAM_NUMBERS = 30_000, 20_000  # beside the users' own, below what Debian gives away by itself


def team_number(team: str) -> int:
    """A team's group number: the same on every instance and in every stack, whoever else is there."""
    number = int.from_bytes(hashlib.sha256(team.encode()).digest()[:4], "big")
    return FIRST_TEAM + number % TEAM_NUMBERS


def roster_text(stack: Stack) -> str:
    """``accounts.json`` of the records bucket; that of a stack without users locks those it had."""
    users = [
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
    return json.dumps({"schema_version": 1, "users": users}, indent=1, sort_keys=True)
