"""Processes of former admins: what still carries their rights ends, and nothing else."""

import os
import signal
import subprocess
from contextlib import suppress

from gpu_fleet_image.instance.accounts.changes import ADMINS, USERS, LocalAccount, LocalAccounts
from gpu_fleet_image.instance.accounts.rights import NO_LOGIN, Rights, end_former_admins, everything, former

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
