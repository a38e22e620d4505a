"""Members of a directory's groups as accounts: name, number and team. Pure.

A directory has ids, which are permanent, and names, which change and are reused. An account's number follows
from the id and is recorded for good, with its first name: files on the shared homes stay their owner's, and
become nobody else's.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_fleet_image.core.document import Record, checked
from gpu_fleet_image.core.errors import ConfigurationError
from gpu_fleet_image.core.roster import UIDS
from gpu_fleet_image.core.runs import ACCOUNT

# Numbers of members: the upper part of the accounts' range; the lower part is for access.people.
NUMBERS = range(20_000, UIDS.stop)
_TAKEN_BEGINNINGS = ("gpu-fleet", "systemd-")


@dataclass(frozen=True)
class TeamGroup:
    """A group of the directory.

    Attributes:
        name: of the team, and of its group on instances.
        gid: its number there.
        group: the directory's id or name of it.
        admin: its members may become root.
    """

    name: str
    gid: int
    group: str
    admin: bool


@dataclass(frozen=True)
class Directory:
    """The stack's settings of accounts: ``directory.json`` beside the function's policy.

    Attributes:
        named: entries of ``accounts.json`` that the stack names itself; they take precedence over members of
            a group.
        teams: in order of precedence: a member's first team becomes theirs.
        keys: login name -> lines of ``authorized_keys``, which no directory has.
        taken: the system's names, which no member gets.
        identity_store, region, role, login: of IAM Identity Center; see ``access.directory``.
        queue_teams: team -> its limits in the queue, which ``accounts.json`` contains too.
    """

    named: tuple[dict[str, Any], ...]
    teams: tuple[TeamGroup, ...]
    keys: Mapping[str, tuple[str, ...]]
    taken: frozenset[str]
    identity_store: str = ""
    region: str = ""
    role: str = ""
    login: str = "UserName"
    queue_teams: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemberAccount:
    """Permanent record of a member.

    Attributes:
        name: the login name of the number's first assignment.
        uid: the number.
        now: the name at the directory's last answer.
    """

    name: str
    uid: int
    now: str
    enabled: bool = True


@dataclass(frozen=True)
class Registry(Record):
    """Every member ever seen: the directory's id -> record."""

    accounts: dict[str, MemberAccount]


@dataclass(frozen=True)
class MemberProfile:
    """Member in the directory: their name, and whether they may log in."""

    name: str
    enabled: bool = True


@dataclass
class MergedAccounts:
    """Accounts of the stack's users.

    Attributes:
        users: entries of ``accounts.json``.
        registry: every member ever seen.
        left_out: name -> why they get no account.
    """

    users: list[dict[str, Any]]
    registry: dict[str, MemberAccount]
    left_out: dict[str, str]


def parse(document: Mapping[str, Any]) -> Directory:
    """Parse the stack's settings. Raises ConfigurationError."""
    wrong = "directory.json is not as a stack writes it"
    return checked(Directory, document, lambda said: ConfigurationError(f"{wrong}: {'; '.join(said)}"))


def parse_registry(document: Mapping[str, Any]) -> dict[str, MemberAccount]:
    """Parse id -> record. Raises ConfigurationError: no number is assigned with a damaged book."""
    wrong = "the UID registry is damaged"
    accounts = checked(
        Registry, document, lambda said: ConfigurationError(f"{wrong}: {'; '.join(said)}")
    ).accounts
    numbers = [account.uid for account in accounts.values()]
    if len(set(numbers)) != len(numbers) or not all(number in NUMBERS for number in numbers):
        raise ConfigurationError("the UID registry is damaged: a number twice, or none of a member's")
    return accounts


def merge(
    directory: Directory,
    members: Mapping[str, Collection[str]],
    profiles: Mapping[str, MemberProfile],
    registry: Mapping[str, MemberAccount],
) -> MergedAccounts:
    """Return everybody's accounts.

    Args:
        members: name of a team -> ids of its members.
        profiles: id -> what the directory said just now; of who is not in it the registry's last word holds.
        registry: id -> what is written down.
    """
    outcome = MergedAccounts([], dict(registry), {})
    for entry in directory.named:
        if why := _against_registry(entry, registry):
            outcome.left_out[str(entry["name"])] = why
        else:
            outcome.users.append(entry)
    named = {str(entry["name"]) for entry in outcome.users}
    used = {int(entry["uid"]) for entry in outcome.users}
    for member, teams in sorted(_teams_of(directory.teams, members).items()):
        profile = profiles.get(member) or _written(registry, member)
        if profile is None or not profile.enabled:
            _note(outcome, member, profile)
            continue
        account = outcome.registry.get(member)
        if profile.name in named and (account is None or account.name == profile.name):
            continue  # the stack itself names this user
        why = _refused(directory, outcome.registry, member, profile.name)
        number = account.uid if account else _number(member, used | _numbers(outcome.registry))
        if why or number is None:
            outcome.left_out[profile.name] = why or "no number is left"
            continue
        name = account.name if account else profile.name
        outcome.registry[member] = MemberAccount(name, number, profile.name)
        if name != profile.name:
            outcome.left_out[profile.name] = f"is {name!r} here, the owner of their files; log in as that"
        outcome.users.append(_entry(directory, name, number, teams))
    outcome.users.sort(key=lambda entry: str(entry["name"]))
    return outcome


def _against_registry(entry: Mapping[str, Any], registry: Mapping[str, MemberAccount]) -> str:
    """Return why the stack's account conflicts with the book: another's number, or not the user's."""
    for account in registry.values():
        if account.uid == entry["uid"] and account.name != entry["name"]:
            return f"uid {account.uid} belongs to {account.name!r}, a member of a group: choose another"
        if account.name == entry["name"] and account.uid != entry["uid"]:
            return f"has the number {account.uid} as a member of a group: set uid to it"
    return ""


def _teams_of(
    teams: Sequence[TeamGroup], members: Mapping[str, Collection[str]]
) -> dict[str, list[TeamGroup]]:
    """Return id -> teams, in the stack's order."""
    chosen: dict[str, list[TeamGroup]] = {}
    for team in teams:
        for member in members[team.name]:
            chosen.setdefault(member, []).append(team)
    return chosen


def _written(registry: Mapping[str, MemberAccount], member: str) -> MemberProfile | None:
    account = registry.get(member)
    return MemberProfile(account.now, account.enabled) if account else None


def _note(outcome: MergedAccounts, member: str, profile: MemberProfile | None) -> None:
    """Record a member whom the directory disabled, until it enables them again."""
    account = outcome.registry.get(member)
    if account is not None:
        now = profile.name if profile else account.now
        outcome.registry[member] = replace(account, now=now, enabled=False)


def _refused(directory: Directory, registry: Mapping[str, MemberAccount], member: str, name: str) -> str:
    """Return why a member gets no account with this name; empty if they do."""
    if member in registry:
        return ""
    if ACCOUNT.fullmatch(name) is None:
        return f"is not a login name; allowed: {ACCOUNT.pattern}"
    if name in directory.taken or name.startswith(_TAKEN_BEGINNINGS):
        return "is an account or group of the system, or a team"
    if any(account.name == name for other, account in registry.items() if other != member):
        return "was the name of another member, who owns its files: choose another name"
    return ""


def _numbers(registry: Mapping[str, MemberAccount]) -> set[int]:
    return {account.uid for account in registry.values()}


def _number(member: str, used: Collection[int]) -> int | None:
    """Return the first free number, probing from the id's hash.

    It is stable, except for collisions, if the registry is lost.
    """
    start = int.from_bytes(hashlib.sha256(member.encode()).digest()[:8], "big")
    numbers: Iterator[int] = (NUMBERS[(start + step) % len(NUMBERS)] for step in range(len(NUMBERS)))
    return next((number for number in numbers if number not in used), None)


def _entry(directory: Directory, name: str, number: int, teams: Sequence[TeamGroup]) -> dict[str, Any]:
    return {
        "name": name,
        "uid": number,
        "keys": list(directory.keys.get(name, ())),
        "team": teams[0].name,
        "team_gid": teams[0].gid,
        "admin": any(team.admin for team in teams),
    }
