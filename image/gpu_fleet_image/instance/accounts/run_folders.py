"""``python -m gpu_fleet_image.instance.accounts.run_folders ACCOUNT``.

Makes, as root, an account's own folder among those of all runs.

Submitted runs work in it. For the account of ``trainer@`` it is the home, where no other user may plant
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
    """An account has no folder of its own."""


def own_folder(parent: Path, account: str, uid: int) -> Path:
    """Return the account's folder for its runs, below one that everybody can write: trainers use it too.

    Raises RunFolderError if others keep putting something in its place.
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
    raise RunFolderError(f"{folder} is not the account's own folder: others keep replacing it")


def _share(parent: Path) -> None:
    """Make root the owner of the folder of all runs, and open it to everybody; files in it stay."""
    with suppress(FileExistsError):
        parent.mkdir(mode=PRIVATE)
    if not stat.S_ISDIR(parent.lstat().st_mode):
        _move_away(parent)
        parent.mkdir(mode=PRIVATE)
    # by a descriptor: in a folder that everybody can write, a name may mean another file a moment later
    descriptor = os.open(parent, FOLDER)
    try:
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, EVERYBODY)
    finally:
        os.close(descriptor)


def _move_away(path: Path) -> None:
    """Rename what occupies a folder's place into a new folder beside it, where its owner finds it."""
    away = Path(tempfile.mkdtemp(prefix=f"was-{path.name}.", dir=path.parent))
    away.chmod(PUBLIC)
    path.rename(away / path.name)
    sys.stderr.write(f"event=runs-moved-away path={path} to={away / path.name}\n")


def main(account: str) -> None:
    """Make the folder of an account of this instance. Raises KeyError, RunFolderError, OSError."""
    own_folder(Path("/") / RUNS_FOLDER, account, pwd.getpwnam(account).pw_uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
