"""``python -m gpu_fleet_image.instance.gate.scratch_disk``: the pool's cloud disk as /scratch.

Alibaba Cloud's types have no disks of their own, so the stack gives an instance a cloud disk named
``scratch``. The metadata service gives the serial number and the name of each cloud disk, and the guest sees
the same serial. No other disk is ever used, and this one only while it holds nothing but this program's file
system.
https://www.alibabacloud.com/help/en/ecs/user-guide/instance-metadata-items
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.metadata import Metadata

LOG = logging.getLogger("gpu_fleet_image.instance.gate")

NAME = "scratch"  # of the disk, as in stacks/gpu_fleet_stacks/alicloud/launch.py
LABEL = "gpu-scratch"  # of the file system, the same as on instance-store disks
SCRATCH = Path("/scratch")
EVERYBODY = 0o1777
LISTING = ("lsblk", "--json", "--output", "PATH,TYPE,SERIAL,LABEL,FSTYPE,PARTTYPE,PTTYPE,MOUNTPOINTS")


@dataclass(frozen=True)
class Disk:
    """A whole disk of the instance.

    Attributes:
        label: of its file system, or empty.
        blank: it has no file system, no partition table and no partition.
        mounted: it, or a part of it, is in use.
    """

    path: str
    label: str
    blank: bool
    mounted: bool


def main() -> int:
    """Mount the disk; return 0 if /scratch is on it or there is no such disk, 1 if it stays unused."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    if SCRATCH.is_mount():
        LOG.info("event=scratch-mounted-already")
        return 0
    try:
        serial = serial_of(Metadata("alicloud"), NAME)
        if serial is None:
            LOG.info("event=scratch-on-root-disk reason=no-disk-of-that-name")
            return 0
        disk = disk_of(json.loads(_run(*LISTING)), serial)
        why = refusal(disk)
        if disk is None or why:
            LOG.error("event=scratch-disk-left serial=%s reason=%r", serial, why)
            return 1
        use(disk, SCRATCH)
    except (InstanceError, subprocess.CalledProcessError, OSError, ValueError) as error:
        LOG.error("event=scratch-disk-left reason=%r", str(error))
        return 1
    return 0


def serial_of(metadata: Metadata, name: str) -> str | None:
    """Return the serial number of this instance's cloud disk with a name; None without one.

    Raises InstanceError if the metadata service does not answer.
    """
    listed = (metadata.get("disks/") or "").split()
    for serial in (entry.rstrip("/") for entry in listed):
        if (metadata.get(f"disks/{serial}/name") or "").strip() == name:
            return serial
    return None


def disk_of(listing: dict[str, Any], serial: str) -> Disk | None:
    """Return the disk with a serial number in the output of ``lsblk --json``, or None."""
    for device in listing["blockdevices"]:
        if device["type"] == "disk" and str(device.get("serial") or "").strip() == serial:
            everything = list(_with_children(device))
            return Disk(
                path=device["path"],
                label=device.get("label") or "",
                blank=len(everything) == 1 and not device.get("fstype") and not device.get("pttype"),
                mounted=any(point for part in everything for point in part.get("mountpoints") or ()),
            )
    return None


def refusal(disk: Disk | None) -> str:
    """Return why a disk cannot become /scratch; empty if it can."""
    if disk is None:
        return "the instance sees no disk with this serial number"
    if disk.mounted:
        return f"{disk.path} is in use"
    if not disk.blank and disk.label != LABEL:
        return f"{disk.path} holds data that this program did not write"
    return ""


def use(disk: Disk, folder: Path) -> None:
    """Make a file system on a blank disk, and mount it; data from before a reboot stays.

    Raises subprocess.CalledProcessError if mkfs or mount failed.
    """
    if disk.blank:
        _run("mkfs.xfs", "-q", "-K", "-L", LABEL, disk.path)
    folder.mkdir(exist_ok=True)
    _run("mount", "-o", "noatime", disk.path, str(folder))
    # before everybody may write here: after that a user could put a link in their place
    for shared in (folder / "keep", folder / "runs"):
        shared.mkdir(exist_ok=True)
        shared.chmod(EVERYBODY)
    folder.chmod(EVERYBODY)
    LOG.info("event=scratch device=%s made=%s", disk.path, disk.blank)


def _with_children(device: dict[str, Any]) -> Iterable[dict[str, Any]]:
    yield device
    for child in device.get("children", ()):
        yield from _with_children(child)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
