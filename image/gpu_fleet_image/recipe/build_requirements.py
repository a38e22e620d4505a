"""Debian packages for making and testing an image.

``python -m gpu_fleet_image.recipe.build_requirements``.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_fleet_image.recipe.errors import ImageError, RequirementError

BAKE = ("mmdebstrap", "e2fsprogs", "arch-test", "debian-archive-keyring", "gpg")
BOOT = ("qemu-system-x86", "qemu-utils", "seabios", "genisoimage", "socat")
CHECK = ("shellcheck", "systemd")
# Another program may hold dpkg's lock for a while: unattended upgrades, a second bake.
_LOCK_TIMEOUT_S = 300
# Lock of our processes while they run apt, one after another: apt fails if another one uses its lists.
DPKG = Path("/var/lib/dpkg")


def no_apt() -> str | None:
    """Return why there is no apt here, in one sentence; None if there is."""
    for program in ("apt-get", "dpkg-query"):
        if shutil.which(program) is None:
            return f"{program} is not on PATH: this needs Debian 12 or Ubuntu"
    return None


def hindrance() -> str | None:
    """Return why packages cannot be installed here, in one sentence; None if they can."""
    if (reason := no_apt()) is not None:
        return reason
    if os.geteuid() != 0:
        return f"not root (user id {os.geteuid()}): run it with sudo"
    return None


def missing(packages: Iterable[str]) -> list[str]:
    """Return those packages that are not installed."""
    asked = sorted(set(packages))
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${binary:Package} ${db:Status-Status}\n", *asked],
        capture_output=True,
        text=True,
        check=False,  # it exits with 1 if a package is unknown
    )
    fields = (line.split() for line in listing.stdout.splitlines())
    installed = {name.split(":")[0] for name, status in fields if status == "installed"}
    return [name for name in asked if name not in installed]


def install(packages: Iterable[str]) -> list[str]:
    """Install missing packages, without recommended extras.

    Returns:
        the packages that were missing.

    Raises:
        RequirementError: not root, no apt, or apt's error.
    """
    absent = missing(packages) if shutil.which("dpkg-query") else sorted(set(packages))
    if not absent:
        return []
    reason = hindrance()
    if reason is not None:
        raise RequirementError(f"cannot install {', '.join(absent)}: {reason}")
    _apt(["update"])
    _apt(["install", "--yes", "--no-install-recommends", *absent])
    return absent


def unpack(packages: Sequence[str], folder: Path) -> Path:
    """Extract packages below a folder without installing them; an existing folder is used as it is.

    Returns:
        the folder.

    Raises:
        RequirementError: no apt, or apt's error.
    """
    if folder.is_dir():
        return folder
    reason = hindrance()
    if reason is not None:
        raise RequirementError(f"cannot fetch {', '.join(packages)}: {reason}")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    _apt(["update"])
    # apt's own sandbox user cannot write here
    _apt(["download", "-o", "APT::Sandbox::User=root", *packages], unfinished)
    for archive in sorted(unfinished.glob("*.deb")):
        subprocess.run(["dpkg", "--extract", archive.name, "."], cwd=unfinished, check=True)
        archive.unlink()
    return unfinished.rename(folder)


def quiet() -> dict[str, str]:
    """Return the environment in which apt asks no questions and prints English."""
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def _apt(arguments: Sequence[str], folder: Path | None = None) -> None:
    command = ["apt-get", "--quiet", "-o", f"DPkg::Lock::Timeout={_LOCK_TIMEOUT_S}", *arguments]
    with alone(DPKG):
        done = subprocess.run(
            command,
            cwd=folder,
            env=quiet(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RequirementError(f"`apt-get {' '.join(arguments)}` failed: {' '.join(said[-3:])}")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; wait while another process of ours on this computer holds it."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def main() -> int:
    """Install everything; return 1, after one line, if that fails."""
    try:
        added = install((*BAKE, *BOOT, *CHECK))
    except ImageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"installed {', '.join(added)}\n" if added else "everything is installed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
