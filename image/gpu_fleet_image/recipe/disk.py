"""A disk for a virtual machine from a root file system: ext4, with kernel and initrd beside it."""

import subprocess
from pathlib import Path

from gpu_fleet_image.recipe.errors import BakeError

# Space for logs, checkpoints of tests and users' packages; the file is sparse.
_SPARE_GIB = 2
LABEL = "gpu-fleet"
FORMATS = ("raw", "qcow2")


def make(root: Path, folder: Path, size_bytes: int, disk_format: str = "raw") -> Path:
    """Write ``disk.raw`` (or ``disk.qcow2``), ``vmlinuz`` and ``initrd.img``.

    The disk has no boot loader: QEMU gets kernel and initrd directly, and a cloud's base image has its own.

    Args:
        size_bytes: of the files below root.
        disk_format: ``raw`` or ``qcow2``.

    Returns:
        the disk.

    Raises:
        BakeError: the root file system has no kernel, or a tool failed.
    """
    kernel = newest_kernel(root)
    for name, source in {"vmlinuz": f"vmlinuz-{kernel}", "initrd.img": f"initrd.img-{kernel}"}.items():
        (folder / name).write_bytes((root / "boot" / source).read_bytes())
    disk = folder / "disk.raw"
    with disk.open("wb") as file:
        file.truncate(size_bytes + _SPARE_GIB * 2**30)
    _run(["mkfs.ext4", "-q", "-F", "-L", LABEL, "-d", str(root), "-E", "lazy_itable_init=1", str(disk)])
    if disk_format == "raw":
        return disk
    packed = disk.with_suffix(".qcow2")
    _run(["qemu-img", "convert", "-O", "qcow2", "-c", str(disk), str(packed)])
    disk.unlink()
    return packed


def newest_kernel(root: Path) -> str:
    """Return the release of the newest kernel that has both image and initrd. Raises BakeError."""
    releases = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")]
    sound = [name for name in releases if (root / "boot" / f"initrd.img-{name}").is_file()]
    if not sound:
        raise BakeError(f"{root / 'boot'}: no kernel with an initrd; is 20-driver among the steps?")
    return max(sound, key=_parts)


def _parts(release: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in release.replace("-", ".").split(".") if part.isascii() and part.isdigit()
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BakeError(f"{command[0]} failed: {done.stderr.strip()}")
