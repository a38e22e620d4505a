"""Who is an admin no more has no root any more: processes keep the groups that they began with.

``sudo`` looks the group up anew (``/etc/sudo.conf``), but docker's socket lets in whatever process carries
the group's number, and a root shell stays one. So what a former admin still has open is asked to end, as at a
spot notice (a trainer saves), and killed where it does not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpu_fleet_image.instance.accounts.changes import ADMINS, LocalAccounts

PROC = Path("/proc")
LONGEST_S = 30  # to save in; with the timers before it a leaver's root is over within five minutes
ROUNDS = 3  # what forks meanwhile is caught by the next look
NO_LOGIN = 2**32 - 1  # of what no log-in began (proc_pid_loginuid(5))


@dataclass(frozen=True)
class Rights:
    """What a process may.

    Attributes:
        uid: real number of its user.
        groups: supplementary groups.
        login: as whom its session logged in, also behind ``sudo``.
    """

    pid: int
    uid: int
    groups: frozenset[int]
    login: int = NO_LOGIN


def former(processes: Iterable[Rights], accounts: LocalAccounts) -> set[int]:
    """Pids that carry the admins' group although their user is in it no more, and root's of their log-ins."""
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
    """Ask what a former admin has open to end, kill what does not; name -> how many processes.

    Args:
        look: every process; of this computer by default.
        longest_s: how long they may take.
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
    """SIGTERM to them and to what they began (a root shell below ``sudo``), and SIGKILL to what stays."""
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


def everything(proc: Path = PROC) -> Iterator[Rights]:
    """Every process of this computer; one that ends meanwhile is left out."""
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield _read(folder)


def _read(folder: Path) -> Rights:
    """proc_pid_status(5), proc_pid_loginuid(5)."""
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    login = NO_LOGIN
    with suppress(FileNotFoundError):  # a kernel without audit
        login = int((folder / "loginuid").read_text() or NO_LOGIN)
    uid = int(fields["Uid"].split()[0])
    return Rights(int(folder.name), uid, frozenset(map(int, fields["Groups"].split())), login)
