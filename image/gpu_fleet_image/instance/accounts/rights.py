"""Removal of a former admin's root access: processes keep the groups that they started with.

``sudo`` looks the group up each time (``/etc/sudo.conf``). But docker's socket admits any process with the
group's number, and a root shell stays one. So a former admin's open processes get SIGTERM, as at a spot
notice (a trainer saves), and SIGKILL if they do not end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpu_fleet_image.instance.accounts.changes import ADMINS, LocalAccounts

_PROC = Path("/proc")
LONGEST_S = 30  # to save in; with the timers before it, a leaver's root access ends within five minutes
ROUNDS = 3  # the next round catches processes that were forked meanwhile
NO_LOGIN = 2**32 - 1  # of processes that no log-in started (proc_pid_loginuid(5))


@dataclass(frozen=True)
class Rights:
    """Rights of a process.

    Attributes:
        uid: real number of its user.
        groups: supplementary groups.
        login: user of its log-in session, also behind ``sudo``.
    """

    pid: int
    uid: int
    groups: frozenset[int]
    login: int = NO_LOGIN


def former(processes: Iterable[Rights], accounts: LocalAccounts) -> set[int]:
    """Return pids with the admins' group whose user has left it, and of root processes of their log-ins."""
    listed = list(processes)
    group = accounts.groups.get(ADMINS)
    ours = {each.uid for each in accounts.accounts.values() if each.is_ours and ADMINS not in each.groups}
    holders = {each.pid: each.uid for each in listed if each.uid in ours and group in each.groups}
    users = set(holders.values())
    return {each.pid for each in listed if each.pid in holders or (each.uid == 0 and each.login in users)}


def end_former_admins(
    accounts: LocalAccounts,
    look: Callable[[], Iterable[Rights]] | None = None,
    longest_s: float = LONGEST_S,
) -> Mapping[str, int]:
    """Terminate a former admin's processes, kill those that stay; return name -> number of processes.

    Args:
        look: returns every process; by default of this computer.
        longest_s: seconds that they may take.
    """
    names = {each.uid: name for name, each in accounts.accounts.items()}
    ended: dict[str, int] = {}
    for turn in range(ROUNDS):
        listed = list(look() if look else everything())
        chosen = former(listed, accounts)
        if not chosen:
            break
        if turn == 0:
            for each in listed:
                if each.pid in chosen and each.uid in names and each.uid:
                    ended[names[each.uid]] = ended.get(names[each.uid], 0) + 1
        _end(chosen, longest_s if turn == 0 else 0)
    return ended


def _end(pids: Iterable[int], longest_s: float) -> None:
    """Send SIGTERM to them and their descendants (a root shell below ``sudo``), then SIGKILL to the rest."""
    processes: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            processes |= {each.pid: each for each in (process, *process.children(recursive=True))}
    for process in processes.values():
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(list(processes.values()), timeout=longest_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def everything() -> Iterator[Rights]:
    """Yield every process of this computer, without those that end meanwhile."""
    for folder in _PROC.iterdir():
        if folder.name.isascii() and folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield _read(folder)


def _read(folder: Path) -> Rights:
    """Read the rights of a process: proc_pid_status(5), proc_pid_loginuid(5)."""
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    login = NO_LOGIN
    with suppress(FileNotFoundError):  # a kernel without audit
        login = int((folder / "loginuid").read_text() or NO_LOGIN)
    uid = int(fields["Uid"].split()[0])
    return Rights(int(folder.name), uid, frozenset(map(int, fields["Groups"].split())), login)
