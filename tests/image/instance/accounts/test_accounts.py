"""Accounts of the stack's people: what changes, for whom nothing is done, and what outlives a bad roster."""

import json
import os
import signal
import stat
import subprocess
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.roster import RosterError, RosterUser, parse
from gpu_fleet_image.instance.accounts.changes import (
    ADMINS,
    EXPIRED_DAY,
    NEVER_EXPIRES,
    NO_SHELL,
    SHELL,
    USERS,
    EndSessions,
    LocalAccount,
    LocalAccounts,
    MakeHome,
    Refusal,
    RunProgram,
    WriteKeys,
    changes,
)
from gpu_fleet_image.instance.accounts.command import carried_out, roster
from gpu_fleet_image.instance.accounts.rights import NO_LOGIN, Rights, end_former_admins, everything, former
from gpu_fleet_image.instance.accounts.system import NotDoneError, System, _ending, local_accounts
from gpu_fleet_stacks.settings import people
from tests.stacks.examples import stack

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
ADA, BOB = RosterUser("ada", 5001, (KEY,), "vision", 31_000, admin=True), RosterUser("bob", 5002)
SYSTEM = {
    "root": LocalAccount("root", 0, 0, SHELL),
    "ubuntu": LocalAccount("ubuntu", 1000, 1000, SHELL, frozenset({"sudo"})),
}
GROUPS = {"root": 0, "sudo": 27, "ubuntu": 1000, USERS: 990, ADMINS: 989}
EMPTY = LocalAccounts(SYSTEM, GROUPS)


def applied(state: LocalAccounts, made: list) -> LocalAccounts:
    """What passwd's programs, the key files and /home would be after these changes."""
    accounts, groups = dict(state.accounts), dict(state.groups)
    keys, homes = dict(state.keys), dict(state.homes)
    for change in made:
        match change:
            case RunProgram(("groupadd", "--gid", gid, name)):
                assert name not in groups
                assert int(gid) not in groups.values()
                groups[name] = int(gid)
            case RunProgram(("useradd", *options, name)):
                said = dict(zip(options[::2], options[1::2], strict=False))
                assert name not in accounts
                member = frozenset(options[options.index("--groups") + 1].split(","))
                assert member <= groups.keys()
                accounts[name] = LocalAccount(name, int(said["--uid"]), int(said["--gid"]), SHELL, member)
            case RunProgram(("usermod", "--groups", listed, name)):
                accounts[name] = replace(accounts[name], groups=frozenset(listed.split(",")))
            case RunProgram(("usermod", "--expiredate", day, "--shell", shell, name)):
                expires = int(day) if day else NEVER_EXPIRES
                accounts[name] = replace(accounts[name], expires=expires, shell=shell)
            case WriteKeys(name, content):
                keys = {**keys, name: content} if content else {k: v for k, v in keys.items() if k != name}
            case MakeHome(name, uid):
                homes[name] = uid
            case EndSessions() | Refusal():
                pass
            case _:
                raise AssertionError(change)
    return LocalAccounts(accounts, groups, keys, homes)


UIDS, TEAMS = (
    {"ada": 5000, "bob": 5001, "eve": 5002, "kai": 5003},
    {"": 0, "vision": 31_000, "speech": 31_001},
)
persons = st.builds(
    lambda name, keys, team, admin: RosterUser(name, UIDS[name], (KEY,) * keys, team, TEAMS[team], admin),
    *(st.sampled_from([*UIDS]), st.integers(0, 1), st.sampled_from([*TEAMS]), st.booleans()),
)
rosters = st.lists(persons, unique_by=lambda person: person.name, max_size=4)


@given(st.lists(rosters, min_size=1, max_size=5))
def test_after_any_history_accounts_are_those_of_the_last_roster_and_a_second_run_changes_nothing(history):
    state = EMPTY
    for present in history:
        state = applied(state, changes(present, state))

    present = {person.name: person for person in history[-1]}
    for name, account in state.accounts.items():
        if name in SYSTEM:
            assert account == SYSTEM[name]
        elif name not in present:
            assert (account.is_locked, account.shell, account.groups) == (True, NO_SHELL, {USERS})
            assert name not in state.keys
        else:
            person = present[name]
            groups = {USERS, person.team or USERS, ADMINS if person.admin else USERS}
            assert (account.is_locked, account.shell, account.groups) == (False, SHELL, groups)
            assert state.keys.get(name, "").splitlines() == list(person.keys)
    assert present.keys() <= state.accounts.keys() & state.homes.keys()
    # it looks for sessions of leavers alone
    assert all(isinstance(change, EndSessions) for change in changes(history[-1], state))


REFUSED = {
    "an account of the system": (RosterUser("ubuntu", 5001), "has an account 'ubuntu' of its own (uid 1000)"),
    "another's number": (RosterUser("eve", 5002), "uid 5002 is that of 'bob'"),
    "a number of its own that changed": (RosterUser("bob", 5003), "keep uid 5002: with 5003"),
    "a group of another number": (
        RosterUser("kai", 5009, team="vision", team_gid=31_009),
        "group 'vision' has number 31000 here, not 31009",
    ),
    "a number of another group": (
        RosterUser("kai", 5009, team="speech", team_gid=31_000),
        "group number 31000 of 'speech' is that of group 'vision'",
    ),
    "a home that is a link": (RosterUser("mallory", 5010), "/home/mallory is no folder"),
    "somebody else's home": (RosterUser("carol", 5011), "/home/carol belongs to uid 5002"),
    "the number of who left": (
        RosterUser("zoe", 5012),
        "uid 5012 owns /home/yann, whose files would become theirs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_done_for_whom_something_is_in_the_way_and_all_is_done_for_others(case):
    person, why = REFUSED[case]
    state = applied(EMPTY, changes([ADA, BOB], EMPTY))
    state = replace(state, homes={**state.homes, "mallory": -1, "carol": 5002, "yann": 5012})
    others = [item for item in (ADA, BOB, RosterUser("dan", 5020)) if item.name != person.name]

    made = changes([person, *others], state)

    (refusal,) = [change for change in made if isinstance(change, Refusal)]
    assert refusal.name == person.name
    assert why in refusal.why
    assert MakeHome("dan", 5020) in made
    assert person.name not in [change.command[-1] for change in made if isinstance(change, RunProgram)]


def test_a_leaver_loses_log_in_root_and_keys_but_neither_files_nor_number():
    state = applied(EMPTY, changes([ADA], EMPTY))

    made = changes([], state)

    after = applied(state, made)
    assert after.accounts["ada"].expires == EXPIRED_DAY
    assert after.accounts["ada"].groups == {USERS}
    assert after.keys == {}
    assert (after.accounts["ada"].uid, after.homes["ada"]) == (5001, 5001)
    assert EndSessions("ada", 5001) in made


def test_what_a_stack_writes_is_what_an_instance_reads():
    named = {
        "ada": {"uid": 5001, "keys": [KEY], "team": "vision", "admin": True},
        "bob": {"uid": 5002},
    }

    read = parse(json.loads(people.roster_text(stack(access={"people": named}))))

    assert read == (replace(ADA, team_gid=people.team_number("vision")), BOB)


def roster_of(*names):
    named = {name: {"uid": 5001 + index} for index, name in enumerate(names)}
    return json.loads(people.roster_text(stack(access={"people": named})))


WRONG = {
    "root's number": {"uid": 0},
    "a number that is a truth value": {"uid": True},
    "a name that is an option": {"name": "-o"},
    "a name with a line break": {"name": "ada\nroot"},
    "a key with options": {"keys": ['command="sh" ssh-ed25519 AAAA']},
    "two keys in one": {"keys": ["ssh-ed25519 AAAA\nssh-ed25519 BBBB"]},
    "a team of root's number": {"team": "vision", "team_gid": 0},
    "a word for a truth value": {"admin": "no"},
}


def test_root_acts_on_no_roster_that_a_stack_would_not_write():
    (ada,) = roster_of("ada")["users"]

    for wrong in WRONG.values():
        with pytest.raises(RosterError, match=r"users\[0\]\."):
            parse({"schema_version": 1, "users": [ada | wrong]})
    with pytest.raises(RosterError, match="several users have uid 5001"):
        parse({"schema_version": 1, "users": [ada, ada | {"name": "bob"}]})


def unreadable():
    raise CloudError("the bucket does not answer")


@pytest.mark.parametrize(
    "read",
    [unreadable, lambda: None, lambda: {"schema_version": 2}, lambda: {"schema_version": 1, "users": {}}],
    ids=["no answer", "deleted", "of another version", "damaged"],
)
def test_an_unreadable_roster_locks_no_account_and_says_so(read, tmp_path):
    last_good = tmp_path / "state" / "accounts.json"
    assert roster(read, last_good)[0] is None, "without any roster ever"
    roster(lambda: roster_of("ada", "bob"), last_good)

    present, problem = roster(read, last_good)

    assert [person.name for person in present] == ["ada", "bob"]
    assert "event=roster-not-read" in problem
    assert "the bucket does not answer" in roster(unreadable, last_good)[1]
    assert carried_out(None, System(lambda: True, pytest.fail)) == [], "nothing is touched"


@pytest.fixture
def system(tmp_path):
    for name in ("home", "keys"):
        (tmp_path / name).mkdir()
    return System(lambda: True, lambda command: None, tmp_path / "home", tmp_path / "keys")


def test_a_change_that_fails_is_named_and_the_next_is_made(system, monkeypatch):
    def failing(command):
        if command[-1] == "ada":
            raise subprocess.CalledProcessError(9, command, stderr=b"useradd: cannot lock /etc/passwd")

    monkeypatch.setattr("gpu_fleet_image.instance.accounts.command.system.local_accounts", lambda **_: EMPTY)
    owned = set()
    monkeypatch.setattr("os.chown", lambda path, uid, gid, **_: owned.add((path.name, uid, gid)))

    problems = carried_out((ADA, BOB), replace(system, run=failing))

    assert any("cannot lock /etc/passwd" in problem for problem in problems)
    assert stat.S_IMODE((system.homes / "bob").stat().st_mode) == 0o700, "a home is private to its user"
    assert {(uid, gid) for _, uid, gid in owned} == {(5001, 5001), (5002, 5002)}
    assert (system.keys / "ada").read_text() == f"{KEY}\n"


def test_no_home_is_made_while_the_shared_homes_are_not_mounted(system):
    with pytest.raises(NotDoneError, match="not mounted yet"):
        replace(system, homes_there=lambda: False).carry_out(MakeHome("ada", 5001))

    assert list(system.homes.iterdir()) == []


def test_a_leavers_timers_start_at_no_further_boot(system, tmp_path):
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / "bob").touch()
    (tmp_path / "linger" / "ada").touch()

    replace(system, linger=tmp_path / "linger").carry_out(EndSessions("bob", 2**31))

    assert [path.name for path in (tmp_path / "linger").iterdir()] == ["ada"]


def test_of_a_leavers_processes_their_service_manager_ends_and_a_job_runs_on():
    """By what root began: both are children of a root process and have no terminal."""

    def ending(name, terminal=None, by=0):
        parent = SimpleNamespace(uids=lambda: SimpleNamespace(real=by))
        return _ending(SimpleNamespace(info={"name": name, "terminal": terminal}, parent=lambda: parent))

    assert ending("systemd") is ending("sshd") is signal.SIGTERM
    assert ending("bash", "/dev/pts/1") is signal.SIGHUP
    assert ending("python") is ending("systemd", by=5002) is None


def test_accounts_are_read_as_the_instance_has_them(tmp_path):
    etc, homes = tmp_path / "etc", tmp_path / "home"
    etc.mkdir(), homes.mkdir(), (homes / "ada").mkdir(), (homes / "eve").symlink_to("/etc")
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\nada:x:5001:5001::/home/ada:/bin/bash\n")
    (etc / "group").write_text(f"root:x:0:\n{USERS}:x:990:ada,bob\nvision:x:31000:ada\n")
    (etc / "shadow").write_text("root:*:20000:0:99999:7:::\nada:*:20000:0:99999:7::1:\n")

    seen = local_accounts(etc, tmp_path / "none", homes)

    assert seen.accounts["ada"].groups == {USERS, "vision"}
    assert seen.accounts["ada"].is_locked
    assert not seen.accounts["root"].is_locked
    assert seen.homes["eve"] == -1


# what still carries a former admin's rights ends, and nothing else

GROUP = 989
ADMIN = LocalAccount("ada", 5001, 5001, "/bin/bash", frozenset({USERS, ADMINS}))
FORMER = LocalAccount("bob", 5002, 5002, "/bin/bash", frozenset({USERS}))
ACCOUNTS = LocalAccounts({"ada": ADMIN, "bob": FORMER}, {ADMINS: GROUP, USERS: 990})


def test_what_a_former_admin_began_as_one_is_chosen_with_root_shells_of_that_log_in_and_nothing_else():
    shell = Rights(10, 5002, frozenset({GROUP, 990}), 5002)
    root_shell = Rights(11, 0, frozenset(), 5002)
    others = {
        "an admin's": Rights(12, 5001, frozenset({GROUP}), 5001),
        "a user's": Rights(13, 5002, frozenset({990}), 5002),
        "the system's": Rights(14, 0, frozenset({GROUP}), NO_LOGIN),
        "of no account of ours": Rights(15, 1000, frozenset({GROUP}), 1000),
    }
    sshd_of_a_user = [Rights(16, 0, frozenset(), 5002)]

    assert former([shell, root_shell, *others.values()], ACCOUNTS) == {10, 11}
    assert former(sshd_of_a_user, ACCOUNTS) == set()


def test_a_process_that_ignores_the_signal_is_killed_with_what_it_began():
    # what follows the first `wait`: the shell does not end by itself where its child is killed first
    script = "trap '' TERM; sleep 600 & echo begun; exec >/dev/null; wait; sleep 600"
    process = subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"  # it ignores the signal, and so does its child
    looks = iter([[Rights(process.pid, 5002, frozenset({GROUP}))], []])

    said = end_former_admins(ACCOUNTS, lambda: next(looks), longest_s=0.2)

    status = process.wait(timeout=30)
    process.stdout.read()  # ends with the child, which alone has the other end
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert said == {"bob": 1}
    assert status == -signal.SIGKILL


def test_this_process_is_read_with_its_own_rights():
    (own,) = [each for each in everything() if each.pid == os.getpid()]

    assert own.uid == os.getuid()
    assert own.groups == frozenset(os.getgroups())
