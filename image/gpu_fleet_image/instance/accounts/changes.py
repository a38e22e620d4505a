"""Changes that bring an instance's accounts in line with the roster. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_fleet_image.core.roster import RosterUser

USERS, ADMINS = "gpu-fleet-users", "gpu-fleet-admins"  # groups of sysusers.d
SHELL, NO_SHELL = "/bin/bash", "/usr/sbin/nologin"
NEVER_EXPIRES, EXPIRED_DAY = -1, 1  # days since 1970, as /etc/shadow has them


@dataclass(frozen=True)
class LocalAccount:
    """An account on the instance.

    Attributes:
        groups: names of its other groups.
        expires: day from which log-in is refused; NEVER_EXPIRES for none.
    """

    name: str
    uid: int
    gid: int
    shell: str
    groups: frozenset[str] = frozenset()
    expires: int = NEVER_EXPIRES

    @property
    def is_ours(self) -> bool:
        """True if it was made from a roster."""
        return USERS in self.groups

    @property
    def is_locked(self) -> bool:
        """True if nobody can log in."""
        return self.expires == EXPIRED_DAY


@dataclass(frozen=True)
class LocalAccounts:
    """Accounts and groups of the instance.

    Attributes:
        accounts: name -> account.
        groups: name -> number.
        keys: name -> content of its key file; only accounts that have one.
        homes: name below /home -> number of its owner; -1 if it is not a folder.
    """

    accounts: Mapping[str, LocalAccount] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunProgram:
    """A call of a program of package passwd."""

    command: tuple[str, ...]


@dataclass(frozen=True)
class WriteKeys:
    """A key file to write; empty content removes it."""

    name: str
    content: str


@dataclass(frozen=True)
class MakeHome:
    """A home to make."""

    name: str
    uid: int


@dataclass(frozen=True)
class EndSessions:
    """The open sessions of a user who left."""

    name: str
    uid: int


@dataclass(frozen=True)
class Refusal:
    """A user whose account was not changed, and the reason."""

    name: str
    why: str


Change = RunProgram | WriteKeys | MakeHome | EndSessions | Refusal


def changes(users: Sequence[RosterUser], accounts_now: LocalAccounts) -> list[Change]:
    """Return the changes in order of execution: users who left come first."""
    named = {user.name for user in users}
    ordered: list[Change] = []
    for account in accounts_now.accounts.values():
        if account.is_ours and account.name not in named:
            ordered += _leave(account, accounts_now)
    groups = dict(accounts_now.groups)
    for user in users:
        why = _refused(user, accounts_now.accounts, groups) or _home_refused(user, accounts_now.homes)
        if why:
            ordered.append(Refusal(user.name, why))
            continue
        ordered += _groups(user, groups)
        ordered += _account(user, accounts_now.accounts.get(user.name))
        ordered += _keys_and_home(user, accounts_now)
    return ordered


def _refused(user: RosterUser, accounts: Mapping[str, LocalAccount], groups: Mapping[str, int]) -> str:
    """Return why this account cannot be made or kept; empty if it can."""
    account = accounts.get(user.name)
    if account is not None and not account.is_ours:
        return f"the system has an account {user.name!r} of its own (uid {account.uid})"
    if account is not None and account.uid != user.uid:
        return f"keep uid {account.uid}: with {user.uid} its files would lose their owner"
    others = [
        account.name for account in accounts.values() if account.uid == user.uid and account.name != user.name
    ]
    if others:
        return f"uid {user.uid} is that of {others[0]!r}"
    for name, gid in _wanted_groups(user):
        others = [other for other, number in groups.items() if number == gid and other != name]
        if others:
            return f"group number {gid} of {name!r} is that of group {others[0]!r}"
        if groups.get(name, gid) != gid:
            return f"group {name!r} has number {groups[name]} here, not {gid}"
    return ""


def _home_refused(user: RosterUser, homes: Mapping[str, int]) -> str:
    others = [name for name, number in homes.items() if number == user.uid and name != user.name]
    if others and user.name not in homes:
        return f"uid {user.uid} owns /home/{others[0]}, whose files would become theirs; choose another uid"
    owner = homes.get(user.name, user.uid)
    if owner == user.uid:
        return ""
    whose = "is no folder" if owner < 0 else f"belongs to uid {owner}"
    return f"/home/{user.name} {whose}: an administrator must move it away"


def _wanted_groups(user: RosterUser) -> Iterator[tuple[str, int]]:
    yield user.name, user.uid
    if user.team:
        yield user.team, user.team_gid


def _groups(user: RosterUser, groups: dict[str, int]) -> Iterator[RunProgram]:
    for name, gid in _wanted_groups(user):
        if name not in groups:
            groups[name] = gid
            yield RunProgram(("groupadd", "--gid", str(gid), name))


def _account(user: RosterUser, account: LocalAccount | None) -> Iterator[Change]:
    own = frozenset({USERS, *filter(None, [user.team]), *([ADMINS] if user.admin else [])})
    listed = ",".join(sorted(own))
    if account is None:
        # "*" is no password's hash: no password works, keys still do
        fresh = (
            "--no-create-home",
            "--home-dir",
            f"/home/{user.name}",
            "--shell",
            SHELL,
            "--password",
            "*",
        )
        numbers = ("--uid", str(user.uid), "--gid", str(user.uid), "--groups", listed)
        yield RunProgram(("useradd", *numbers, *fresh, user.name))
        return
    if account.is_locked:
        yield RunProgram(("usermod", "--expiredate", "", "--shell", SHELL, user.name))
    if account.groups != own:
        yield RunProgram(("usermod", "--groups", listed, user.name))


def _keys_and_home(user: RosterUser, accounts_now: LocalAccounts) -> Iterator[Change]:
    content = "".join(f"{key}\n" for key in user.keys)
    if accounts_now.keys.get(user.name, "") != content:
        yield WriteKeys(user.name, content)
    if user.name not in accounts_now.homes:
        yield MakeHome(user.name, user.uid)


def _leave(account: LocalAccount, accounts_now: LocalAccounts) -> Iterator[Change]:
    """Lock the account against every log-in and root access; files and running jobs stay."""
    if accounts_now.keys.get(account.name):
        yield WriteKeys(account.name, "")
    if account.groups != {USERS}:
        yield RunProgram(("usermod", "--groups", USERS, account.name))
    if not account.is_locked or account.shell != NO_SHELL:
        yield RunProgram(("usermod", "--expiredate", str(EXPIRED_DAY), "--shell", NO_SHELL, account.name))
    yield EndSessions(account.name, account.uid)
