"""How a machine mounts the shared homes: each cloud's file system speaks its own NFS."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "image" / "rootfs" / "usr" / "libexec" / "gpu-fleet" / "mount-home"


@pytest.fixture
def machine(tmp_path):
    """Programs that only say how they were called; nothing is mounted."""
    (tmp_path / "mount").write_text('#!/bin/sh\necho "mount $*"\n')
    (tmp_path / "mountpoint").write_text("#!/bin/sh\nexit 1\n")
    for name in ("mount", "mountpoint"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def mounted(machine, text):
    (machine / "instance.toml").write_text(text)
    environment = os.environ | {
        "PATH": f"{machine}:{os.environ['PATH']}",
        "GPU_FLEET_INSTANCE_FILE": str(machine / "instance.toml"),
    }
    done = subprocess.run(["bash", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_efs_is_mounted_by_version_4_1_from_its_root(machine):
    told = mounted(machine, 'cloud = "aws"\nhome_file_system = "fs-1.efs.example"\n')

    assert "-t nfs4 -o nfsvers=4.1," in told
    assert "fs-1.efs.example:/ /home" in told


def test_extreme_nas_is_mounted_by_version_3_from_its_share(machine):
    told = mounted(machine, 'cloud = "alicloud"\nhome_file_system = "1.extreme.nas.example"\n')

    assert "-t nfs -o vers=3,nolock,noacl,proto=tcp," in told
    assert "1.extreme.nas.example:/share /home" in told


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_a_stack_without_homes_leaves_them_on_the_root_disk(machine, cloud):
    told = mounted(machine, f'cloud = "{cloud}"\nhome_file_system = ""\n')

    assert told == "event=home-on-root-disk reason=no-home-file-system\n"
