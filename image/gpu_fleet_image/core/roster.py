"""``accounts.json``: the accounts on the stack's instances."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import Contradictory, Record, matching, one_of, read, whole
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.runs import ACCOUNT

_KEY_LINE = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\x00-\x1f]+)?")  # no options, and no second line
NO_TEAM = "no-team"  # team of who has none: in budgets, and as an account of Slurm
_AS_WRITTEN = "a name of small letters, digits, - and _"
UIDS, _TEAM_GIDS = range(2000, 30_000), range(30_000, 50_000)


class RosterError(InstanceError):
    """``accounts.json`` is malformed; nothing of it is applied."""


@dataclass(frozen=True)
class RosterUser(Record, Contradictory):
    """A user's account.

    Attributes:
        uid: also the number of the group of the same name.
        keys: lines of ``authorized_keys``.
        team: an additional group; empty for none.
        team_gid: its number; 0 without a team.
    """

    name: Annotated[str, matching(ACCOUNT, _AS_WRITTEN)]
    uid: Annotated[int, whole(UIDS.start, UIDS.stop - 1)]
    keys: tuple[Annotated[str, matching(_KEY_LINE, "a public key")], ...] = ()
    team: Annotated[str, matching(re.compile(f"({ACCOUNT.pattern})?"), _AS_WRITTEN)] = ""
    team_gid: int = 0
    admin: bool = False

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Refuse a team without a number of its own, and a number without a team."""
        if self.team and self.team_gid not in _TEAM_GIDS:
            yield (
                "team_gid",
                self.team_gid,
                f"a whole number from {_TEAM_GIDS.start} to {_TEAM_GIDS.stop - 1}",
            )
        if not self.team and self.team_gid != 0:
            yield "team_gid", self.team_gid, "0, because there is no team"


@dataclass(frozen=True)
class _Roster(Record):
    users: tuple[RosterUser, ...]
    schema_version: Annotated[int, one_of(1)]


def parse(document: dict[str, Any]) -> tuple[RosterUser, ...]:
    """Parse the roster; return all users. The content is checked again, because root acts on it.

    Raises RosterError, which names everything that is wrong.
    """
    problems: list[str] = []
    roster = read(_Roster, document, "", problems)
    users = roster.users if roster and not problems else ()
    problems += _clashes(users)
    if problems:
        raise RosterError("\n".join(f"{keys.ACCOUNTS}: {problem}" for problem in problems))
    return users


def _clashes(users: tuple[RosterUser, ...]) -> list[str]:
    """Return a problem for each name or number that occurs twice."""
    names = [user.name for user in users]
    uids = [user.uid for user in users]
    twice = sorted({name for name in names if names.count(name) > 1})
    shared = sorted({uid for uid in uids if uids.count(uid) > 1})
    return [f"{name!r} is named twice" for name in twice] + [
        f"several users have uid {uid}" for uid in shared
    ]
