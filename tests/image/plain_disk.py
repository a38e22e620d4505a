"""A disk with what a cloud's Debian image has and nothing of ours, baked once and kept under build/.

Kernel, systemd, cloud-init with what it needs to bring the network up, the system's own Python and
certificates, the tools for local disks: no file of this project.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_image.recipe import bake, build, build_requirements, disk
from gpu_fleet_image.recipe.errors import BakeError
from tests.ran import ran

SUITE = "bookworm"
PACKAGES = (
    "ca-certificates",
    "cloud-init",
    "dbus",
    "iproute2",
    "isc-dhcp-client",
    "libpam-systemd",
    "linux-image-cloud-amd64",
    "netplan.io",
    "nftables",  # of priority important: every installation has it
    "openssh-server",
    "python3",
    "sudo",
    "systemd-resolved",
    "systemd-sysv",
    "udev",
    # what a GPU image for the clouds has for its local disks
    "mdadm",
    "nvme-cli",
    "xfsprogs",
)
KIND = "plain"


@dataclass(frozen=True)
class PlainDisk:
    """The disk.

    Attributes:
        folder: with ``disk.raw``, ``vmlinuz`` and ``initrd.img``.
        certificates: its bundle of certificate authorities, PEM.
    """

    folder: Path
    certificates: str

    def with_files(self, folder: Path, files: Mapping[str, str | bytes]) -> Path:
        """A copy of the disk with some files more, as the cloud's network and its authority would be there.

        Args:
            folder: for the copy.
            files: path on the disk -> content; a file that is there is replaced.

        Raises:
            BakeError: one of them did not get there.
        """
        folder.mkdir(parents=True)
        for name in ("vmlinuz", "initrd.img"):
            (folder / name).symlink_to(self.folder / name)
        copy = folder / "disk.raw"
        subprocess.run(["cp", "--sparse=always", self.folder / "disk.raw", copy], check=True)
        for number, (path, content) in enumerate(files.items()):
            source = folder / f"file-{number}"
            source.write_bytes(content.encode() if isinstance(content, str) else content)
            _write(copy, source, path)
        return folder


def made(output: Path, report: bake.Listener) -> PlainDisk:
    """What was baked before from the same list, or a new one; errors as ``bake.bake``."""
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[: build.KEY_DIGITS]
    final = output / f"{KIND}-{key}"
    if not (final / build.REPORT).is_file():
        output.mkdir(parents=True, exist_ok=True)
        build_requirements.install((*build_requirements.BAKE, *build_requirements.BOOT))
        report(KIND)
        with build.unfinished(output, KIND) as folder:
            _bake(folder)
            for older in output.glob(f"{KIND}-*"):
                shutil.rmtree(older)
            folder.rename(final)
    return PlainDisk(final, (final / "ca-certificates.crt").read_text())


def _bake(folder: Path) -> None:
    root = folder / "rootfs"
    command = [
        *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--components=main"),
        *(f"--include={','.join(PACKAGES)}", SUITE, str(root)),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(bake.SOURCE_DATE_EPOCH)}
    done = ran(command, env=environment)
    if done.returncode != 0:
        raise BakeError(f"mmdebstrap failed: {done.stderr[-2000:]}")
    # as on a cloud's image; without it cloud-init makes a locale at first boot
    (root / "etc/default/locale").write_text("LANG=C.UTF-8\n")
    shutil.copy(root / "etc/ssl/certs/ca-certificates.crt", folder)
    size_bytes = bake.size_bytes(root)
    disk.make(root, folder, size_bytes)
    shutil.rmtree(root)
    (folder / build.REPORT).write_text(json.dumps({"packages": PACKAGES, "size_bytes": size_bytes}) + "\n")


def _write(image: Path, source: Path, path: str) -> None:
    """Put a file into an ext4 image that nobody has mounted, with the folders that it lacks."""
    parents = [str(parent) for parent in reversed(Path(path).parents)][1:]
    commands = [*(f"mkdir {parent}" for parent in parents), f"rm {path}", f"write {source} {path}"]
    commands += [f"set_inode_field {path} {field}" for field in ("mode 0100644", "uid 0", "gid 0")]
    script = "\n".join(commands) + "\n"
    ran(["debugfs", "-w", "-f", "-", str(image)], input=script, check=True)
    back = subprocess.run(["debugfs", "-R", f"cat {path}", str(image)], capture_output=True, check=True)
    if back.stdout != source.read_bytes():
        raise BakeError(f"{image}: {path} was not written")
