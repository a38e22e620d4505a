"""Who is logged in, from the process table. Pure.

utmp alone is not enough: newer systems write none, and neither a session without a terminal (scp, an editor's
remote session) nor AWS Session Manager is in it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from image.reaper.agent.sample import Session

# OpenSSH names its process "sshd: bob@pts/3" or "sshd: bob@notty"; from 9.8 on "sshd-session: ...".
SSHD = re.compile(r"sshd(?:-session)?: (?P<user>[^@\s]+)@(?P<terminal>pts/\d+|notty)")
SESSION_MANAGER = "ssm-session-worker"  # one for each open session (AWS Systems Manager agent)


@dataclass(frozen=True)
class Process:
    """One line of the process table.

    Attributes:
        pid: its id.
        command: its arguments, the program first; empty for a thread of the kernel.
    """

    pid: int
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return PurePath(self.command[0]).name if self.command else ""


def terminal_user(process: Process) -> tuple[str, str] | None:
    """(terminal, user) of an SSH session with a terminal."""
    found = SSHD.match(" ".join(process.command))
    return (found["terminal"], found["user"]) if found and found["terminal"] != "notty" else None


def sessions(processes: Sequence[Process]) -> Iterator[Session]:
    """Sessions whose last use cannot be told; each counts as used for as long as it is open.

    Session Manager closes an unused session by itself (after 20 minutes, unless set otherwise).
    """
    for process in processes:
        found = SSHD.match(" ".join(process.command))
        if found and found["terminal"] == "notty":
            yield Session("ssh", f"{found['user']} without a terminal ({process.pid})")
        elif process.name == SESSION_MANAGER:
            yield Session("session-manager", _session_id(process))


def _session_id(process: Process) -> str:
    return process.command[1] if len(process.command) > 1 else str(process.pid)
