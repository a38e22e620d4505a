"""Instance-store disks as /scratch: made where they are blank, kept where they are not."""

import os

import pytest

from tests.image.recipe.recipe import LIBEXEC
from tests.ran import executable, ran

SCRIPT = LIBEXEC / "scratch"
MKFS = "mkfs.xfs -q -f -K -L gpu-scratch /dev/md/gpu-scratch"
LINK = "nvme-Amazon_EC2_NVMe_Instance_Storage_AWS{}"
# What the script calls: each writes down how; some answer.
PROGRAMS = {
    "mountpoint": "exit 1",
    "lsblk": 'case "$*" in *TYPE*) echo disk ;; esac',
    "blkid": '[ -n "$LABELLED" ] && echo "$LABELLED"',
    "wipefs": 'case "$*" in *"$HELD_BY") echo "$HELD" ;; esac',
    "df": "printf 'Size\\n1000\\n'",
    **dict.fromkeys(("mdadm", "mkfs.xfs", "mount", "udevadm"), "true"),
}


@pytest.fixture
def instance(tmp_path):
    """Runs the program on an instance with two disks; gives its exit status, what it said, and the calls."""
    if os.geteuid() != 0:
        pytest.skip("block devices are made by root")
    links = tmp_path / "dev/disk/by-id"
    links.mkdir(parents=True)
    (tmp_path / "dev/md").mkdir()
    for index in range(2):
        block_device(tmp_path / f"dev/nvme{index}n1")
        (links / LINK.format(index)).symlink_to(tmp_path / f"dev/nvme{index}n1")
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        executable(tmp_path / "bin" / name, f'#!/bin/sh\necho "{name} $*" >>"$CALLS"\n{body}\n')
    here = (
        SCRIPT.read_text().replace("/dev/", f"{tmp_path}/dev/").replace("/scratch\n", f"{tmp_path}/scratch\n")
    )

    def run(**answered):
        answers = {"LABELLED": "", "HELD_BY": "nothing", "HELD": ""} | answered
        done = ran(
            ["bash", "-c", here],
            env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), **answers},
        )
        calls = (tmp_path / "calls").read_text().replace(str(tmp_path), "").splitlines()
        return done.returncode, done.stderr.replace(str(tmp_path), ""), calls

    return run


def block_device(path):
    os.mknod(path, mode=0o600 | 0o060000, device=os.makedev(7, 250))


CREATE = "mdadm --create"
RAID = {"HELD": "linux_raid_member"}
HELD = "error: /dev/nvme1n1 holds linux_raid_member, and no file system gpu-scratch is on"


DISKS = {
    "blank": (False, {}, 0, [CREATE, MKFS], ""),
    "as a reboot finds them": (False, {"LABELLED": "/dev/md127"}, 0, [], ""),
    "a stripe of which one is missing": (False, RAID | {"HELD_BY": "/dev/nvme1n1"}, 1, [], HELD),
    "an array without a file system": (True, RAID | {"HELD_BY": "n1"}, 0, [MKFS], ""),
    "another's array": (True, {"HELD_BY": "/md/gpu-scratch", "HELD": "ext4"}, 1, [], "error: "),
}


@pytest.mark.parametrize("case", DISKS)
def test_blank_disks_become_one_file_system_and_what_lies_on_them_is_kept(instance, tmp_path, case):
    array, answers, status, made, says = DISKS[case]
    if array:
        block_device(tmp_path / "dev/md/gpu-scratch")

    ended, said, calls = instance(**answers)

    created = [call for call in calls if call.startswith(CREATE)]
    order = [CREATE if call in created else call for call in calls if call.startswith((CREATE, "mkfs.xfs"))]
    assert (ended, order) == (status, made)
    assert all(call.endswith("--raid-devices=2 /dev/nvme0n1 /dev/nvme1n1") for call in created)
    assert any(call.startswith("mount -o noatime /dev/md127") for call in calls) is ("LABELLED" in answers)
    assert said.startswith(says)
