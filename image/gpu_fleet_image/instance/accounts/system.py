"""The instance's accounts: read from /etc, changed by the programs of package passwd."""

import os
import shutil
import signal
import stat
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.instance.accounts import rights
from gpu_fleet_image.instance.accounts.changes import (
    NEVER_EXPIRES,
    Change,
    EndSessions,
    LocalAccount,
    LocalAccounts,
    MakeHome,
    Refusal,
    RunProgram,
    WriteKeys,
)

_ETC, HOMES, _SKELETON = Path("/etc"), Path("/home"), Path("/etc/skel")
_LINGER = Path("/var/lib/systemd/linger")
_KEY_FILES = Path("/etc/ssh/authorized_keys.d")
PRIVATE = 0o700
LONGEST_CALL_S = 60
_SSHD = ("sshd", "sshd-session")
_MANAGER = "systemd"  # a user's own service manager, which starts their timers, sockets and services


class NotDoneError(Exception):
    """One change failed; the others are still tried."""


def local_accounts(etc: Path = _ETC, keys: Path = _KEY_FILES, homes: Path = HOMES) -> LocalAccounts:
    """Read accounts, groups, key files and homes. Raises OSError."""
    groups, members = _groups(etc)
    expires = dict(_expiry(etc))
    accounts = {}
    for name, _, uid, gid, _, _, shell in _rows(etc / "passwd", 7):
        accounts[name] = LocalAccount(
            name,
            int(uid),
            int(gid),
            shell,
            frozenset(members[name]),
            expires.get(name, NEVER_EXPIRES),
        )
    files = {path.name: path.read_text(encoding="utf-8") for path in _files(keys)}
    return LocalAccounts(accounts, groups, files, dict(_owners(homes)))


def _owners(homes: Path) -> Iterator[tuple[str, int]]:
    """Yield (name, owner) of each home; the owner is -1 if it is not a folder, say a link."""
    for path in homes.iterdir():
        with suppress(FileNotFoundError):  # removed since it was listed
            status = path.lstat()
            yield path.name, status.st_uid if stat.S_ISDIR(status.st_mode) else -1


def _groups(etc: Path) -> tuple[dict[str, int], defaultdict[str, set[str]]]:
    """Return name -> number, and account -> groups besides its own."""
    numbers: dict[str, int] = {}
    members: defaultdict[str, set[str]] = defaultdict(set)
    for name, _, gid, listed in _rows(etc / "group", 4):
        numbers[name] = int(gid)
        for member in filter(None, listed.split(",")):
            members[member].add(name)
    return numbers, members


def _expiry(etc: Path) -> Iterator[tuple[str, int]]:
    """Yield (account, day of its expiry), the eighth field of shadow(5)."""
    for row in _rows(etc / "shadow", 9):
        if row[7]:
            yield row[0], int(row[7])


def _rows(path: Path, columns: int) -> Iterator[list[str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split(":")
        if len(fields) == columns:
            yield fields


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


@dataclass(frozen=True)
class System:
    """Executor of changes, as root.

    Attributes:
        homes_there: returns whether the homes' file system is mounted, if the stack has one.
        run: runs a program to its end; raises CalledProcessError.
    """

    homes_there: Callable[[], bool]
    run: Callable[[tuple[str, ...]], object]
    homes: Path = HOMES
    keys: Path = _KEY_FILES
    linger: Path = _LINGER

    def end_former_admins(self) -> Mapping[str, int]:
        """Terminate former admins' processes; return name -> their number. Raises OSError."""
        return rights.end_former_admins(local_accounts(keys=self.keys, homes=self.homes))

    def carry_out(self, change: Change) -> str:
        """Apply one change; return a line for the log, empty if there was nothing to do.

        Raises NotDoneError, which names what failed.
        """
        try:
            match change:
                case Refusal(name, why):
                    raise NotDoneError(f"account={name} reason={why!r}")
                case RunProgram(command):
                    self.run(command)
                    return f"event=account-changed command={' '.join(command)!r}"
                case WriteKeys(name, content):
                    return self._write_keys(name, content)
                case MakeHome(name, uid):
                    return self._make_home(name, uid)
                case EndSessions(name, uid):
                    # a lingering service manager would start their timers and sockets at each boot
                    (self.linger / name).unlink(missing_ok=True)
                    return _ended_sessions(name, uid)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip()
            raise NotDoneError(f"command={' '.join(error.cmd)!r} reason={said!r}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotDoneError(f"change={type(change).__name__} reason={str(error)!r}") from error

    def _write_keys(self, name: str, content: str) -> str:
        """Write keys below a folder of root's, where a user cannot add keys that the roster does not have."""
        self.keys.mkdir(mode=0o755, exist_ok=True)
        if content:
            replace_text(self.keys / name, content)
        else:
            (self.keys / name).unlink(missing_ok=True)
        return f"event=keys account={name} count={content.count(chr(10))}"

    def _make_home(self, name: str, uid: int) -> str:
        """Make a private home from the skeleton; it gets its name only after it belongs to the user."""
        if not self.homes_there():
            raise NotDoneError(f"account={name} reason='the shared homes are not mounted yet'")
        unfinished = self.homes / f".{name}.{os.getpid()}"
        shutil.copytree(_SKELETON, unfinished, symlinks=True) if _SKELETON.is_dir() else unfinished.mkdir()
        try:
            for path in [*unfinished.rglob("*"), unfinished]:
                os.chown(path, uid, uid, follow_symlinks=False)
            unfinished.chmod(PRIVATE)
            unfinished.rename(self.homes / name)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            if _is_home_of(self.homes / name, uid):  # another instance of the stack was first
                return ""
            raise
        return f"event=home account={name}"


def _is_home_of(path: Path, uid: int) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


def _ended_sessions(name: str, uid: int) -> str:
    """Close a leaver's sessions of SSH or a session manager, and their own service manager.

    Processes without a terminal keep running.
    """
    closed = 0
    left = 0
    for process in psutil.process_iter(["uids", "name", "terminal", "ppid"]):
        if process.info["uids"] is None or process.info["uids"].real != uid:
            continue
        with suppress(psutil.Error):
            how = _ending(process)
            if how is None:
                left += 1
            else:
                process.send_signal(how)
                closed += 1
    return f"event=leaver account={name} sessions_closed={closed} processes_left={left}" if closed else ""


def _ending(process: psutil.Process) -> signal.Signals | None:
    """Return the signal for a user's process that root started: sshd's own, the manager, a shell.

    Else None.
    """
    parent = process.parent()
    if parent is None or parent.uids().real != 0:
        return None
    if process.info["name"] in (*_SSHD, _MANAGER):
        return signal.SIGTERM
    return signal.SIGHUP if process.info["terminal"] else None


def run(command: tuple[str, ...]) -> None:
    """Run a program to its end. Raises CalledProcessError, TimeoutExpired."""
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST_CALL_S)
