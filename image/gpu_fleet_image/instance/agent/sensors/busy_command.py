"""``idle.command``: a program of the stack's owner that reports whether an instance is busy.

systemd runs it, not the agent: by the unit ``gpu-idle-command``, as an account without rights, in a sandbox.
The agent writes the program's name and reads its exit code, both in root's own folder. It runs only a program
that root alone can change: anybody else who could change it would decide for the whole instance.
"""

import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_image.core import paths
from gpu_fleet_image.core.files import alone, read_text, replace_text
from gpu_fleet_image.core.reaper_errors import SensorError

BUSY, NOT_BUSY = 0, 1
UNIT = "gpu-idle-command.service"
# read and written by rootfs/usr/libexec/gpu-fleet/idle-command
ASKED, _ANSWER, LOCK = "idle-command", "idle-command.answer", "idle-command.lock"
_EXITED = re.compile(r"exited ([0-9]+)\n")
_LONGEST_STOP_S = 30  # systemd kills at once


@dataclass(frozen=True)
class BusyCommand:
    """A program whose exit code reports whether the instance is busy: 0 busy, 1 not, any other unknown.

    Attributes:
        timeout_s: seconds after which it is killed.
    """

    command: tuple[str, ...]
    timeout_s: float

    def is_busy(self) -> bool:
        """Run the program and return whether the instance is busy.

        Raises SensorError if it may not or cannot be run, takes too long, or exits with another code.
        """
        name = self.command[0]
        _refuse_changeable(Path(name))
        if any("\0" in word for word in self.command):
            raise SensorError(f"idle.command {name}: a NUL in its arguments")
        try:
            # the agent and explain --live both ask, but there is only one unit and one answer
            with alone(paths.run_dir() / LOCK):
                said = self._answer()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SensorError(f"idle.command {name}: {error}") from error
        exited = _EXITED.fullmatch(said)
        if exited is None or int(exited[1]) not in (BUSY, NOT_BUSY):
            ended = f"exit code {exited[1]}" if exited else said.strip()
            raise SensorError(f"idle.command {name}: {ended}; exit code 0 says busy, 1 says not busy")
        return int(exited[1]) == BUSY

    def _answer(self) -> str:
        """Return its exit status as systemd reports it.

        Raises SensorError, OSError, ValueError, SubprocessError.
        """
        answer = paths.run_dir() / _ANSWER
        answer.unlink(missing_ok=True)
        replace_text(paths.run_dir() / ASKED, "".join(f"{word}\0" for word in self.command))
        try:
            started = _systemctl("start", self.timeout_s)
        except subprocess.TimeoutExpired as error:
            _systemctl("stop", _LONGEST_STOP_S)
            raise SensorError(
                f"idle.command {self.command[0]}: no answer within {self.timeout_s:g} s"
            ) from error
        if not answer.exists():
            raise SensorError(f"idle.command {self.command[0]}: {started.stderr.strip() or 'no answer'}")
        return read_text(answer)


def _systemctl(verb: str, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemctl", verb, UNIT], capture_output=True, text=True, check=False, timeout=timeout_s
    )


def _refuse_changeable(path: Path) -> None:
    """Refuse a program that anybody but root could change. Raises SensorError."""
    for part in (path, *path.parents):
        try:
            status = part.lstat()
        except OSError as error:
            raise SensorError(f"idle.command {path}: {part}: {error.strerror}") from error
        if stat.S_ISLNK(status.st_mode) and part == path:
            raise SensorError(f"idle.command {path}: is a link; name the program itself")
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
        if status.st_uid != 0 or writable:
            raise SensorError(f"idle.command {path}: {part} can be changed by users other than root")
