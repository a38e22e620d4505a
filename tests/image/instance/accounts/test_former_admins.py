"""Processes of former admins: what still carries their rights ends, and nothing else."""

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from gpu_fleet_image.instance.accounts.changes import ADMINS, USERS, LocalAccount, LocalAccounts
from gpu_fleet_image.instance.accounts.rights import NO_LOGIN, Rights, end_former_admins, everything, former

GROUP = 989
ADMIN = LocalAccount("ada", 5001, 5001, "/bin/bash", frozenset({USERS, ADMINS}))
FORMER = LocalAccount("bob", 5002, 5002, "/bin/bash", frozenset({USERS}))
ACCOUNTS = LocalAccounts({"ada": ADMIN, "bob": FORMER}, {ADMINS: GROUP, USERS: 990})


def chosen(*processes):
    return former(processes, ACCOUNTS)


def test_what_a_former_admin_began_as_one_is_chosen_with_root_shells_of_that_log_in():
    shell = Rights(10, 5002, frozenset({GROUP, 990}), 5002)
    root_shell = Rights(11, 0, frozenset(), 5002)

    assert chosen(shell, root_shell) == {10, 11}


@pytest.mark.parametrize(
    "process",
    [
        Rights(10, 5001, frozenset({GROUP}), 5001),
        Rights(10, 5002, frozenset({990}), 5002),
        Rights(10, 0, frozenset({GROUP}), NO_LOGIN),
        Rights(10, 0, frozenset(), 5002),
        Rights(10, 1000, frozenset({GROUP}), 1000),
    ],
    ids=["an admin's", "a user's", "the system's", "sshd for a user", "of no account of ours"],
)
def test_all_else_runs_on(process):
    assert chosen(process) == set()


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
