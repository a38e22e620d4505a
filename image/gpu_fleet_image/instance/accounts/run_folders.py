"""``python -m gpu_fleet_image.instance.accounts.run_folders ACCOUNT``.

An account's own folder among all runs, made by root.

Submitted runs work in it; for the account of ``trainer@`` it is the home, where no other user may plant
credentials or compiled code.
"""

import os
import pwd
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.files import FOLDER

RUNS_FOLDER = Path("scratch/runs")  # below the root
PRIVATE, PUBLIC, EVERYBODY = 0o700, 0o755, 0o1777
TRIES = 5


class RunFolderError(InstanceError):
    """An account has no folder of its own; one message."""


def own_folder(parent: Path, account: str, uid: int) -> Path:
    """The account's folder for its runs, in one that everybody writes: trainers keep theirs there too.

    Raises:
        RunFolderError: others put something in its place as often as it was moved away.
    """
    _share(parent)
    folder = parent / account
    for _ in range(TRIES):
        try:
            folder.mkdir(mode=PRIVATE)
            os.chown(folder, uid, uid, follow_symlinks=False)
        except FileExistsError:
            pass
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == uid:
            return folder
        _move_away(folder)
    raise RunFolderError(f"{folder} is not the account's own folder, whatever is moved away")


def _share(parent: Path) -> None:
    """Make the folder of all runs root's own and open to everybody, whoever made it; files in it stay."""
    with suppress(FileExistsError):
        parent.mkdir(mode=PRIVATE)
    if not stat.S_ISDIR(parent.lstat().st_mode):
        _move_away(parent)
        parent.mkdir(mode=PRIVATE)
    # by a descriptor: a name in a folder that everybody writes may be another a moment later
    descriptor = os.open(parent, FOLDER)
    try:
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, EVERYBODY)
    finally:
        os.close(descriptor)


def _move_away(path: Path) -> None:
    """Rename what is in a folder's place into a new folder beside it, where its owner finds it."""
    away = Path(tempfile.mkdtemp(prefix=f"was-{path.name}.", dir=path.parent))
    away.chmod(PUBLIC)
    path.rename(away / path.name)
    sys.stderr.write(f"event=runs-moved-away path={path} to={away / path.name}\n")


def main(account: str) -> None:
    """Make the folder of an account of this instance. Raises KeyError, RunFolderError, OSError."""
    own_folder(Path("/") / RUNS_FOLDER, account, pwd.getpwnam(account).pw_uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
