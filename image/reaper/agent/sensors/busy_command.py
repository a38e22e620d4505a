"""``idle.command``: a program of the stack's owner that knows whether an instance is busy.

It runs as an account without rights, with nothing of the agent's environment. Only a program that root alone
can change is run: whoever could change it would speak for everybody on the instance.
"""

import contextlib
import os
import pwd
import signal
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from image.reaper.errors import SensorError

BUSY, NOT_BUSY = 0, 1
ACCOUNTS = ("gpu-fleet-probe", "nobody")  # of the image; of images without it
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class BusyCommand:
    """A program whose exit code says whether the instance is busy: 0 busy, 1 not, anything else not known.

    Attributes:
        command: its absolute path and arguments.
        timeout_s: it is killed after so many seconds.
    """

    command: tuple[str, ...]
    timeout_s: float

    def is_busy(self) -> bool:
        """Run it.

        Raises:
            SensorError: it may not or cannot be run, takes too long, or ends with another code.
        """
        name = self.command[0]
        refuse_changeable(Path(name))
        account = _account()
        try:
            process = subprocess.Popen(
                self.command,
                cwd="/",
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                user=account.pw_uid,
                group=account.pw_gid,
                extra_groups=(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SensorError(f"idle.command {name}: {error}") from error
        code = self._wait(process)
        if code not in (BUSY, NOT_BUSY):
            raise SensorError(f"idle.command {name}: exit code {code}; 0 says busy, 1 says not busy")
        return code == BUSY

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(self.timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SensorError(
                f"idle.command {self.command[0]}: no answer within {self.timeout_s:g} s"
            ) from error
        finally:
            # the whole session, so that nothing it started stays behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def refuse_changeable(path: Path) -> None:
    """Refuse a program that anybody but root could change.

    Raises:
        SensorError: naming the file or folder, and why.
    """
    for part in (path, *path.parents):
        try:
            status = part.lstat()
        except OSError as error:
            raise SensorError(f"idle.command {path}: {part}: {error.strerror}") from error
        if stat.S_ISLNK(status.st_mode) and part == path:
            raise SensorError(f"idle.command {path}: is a link; name the program itself")
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
        if status.st_uid != 0 or writable:
            raise SensorError(f"idle.command {path}: {part} can be changed by others than root")


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SensorError(f"idle.command: there is no account {' or '.join(ACCOUNTS)} to run it as")
