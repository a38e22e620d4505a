"""How an instance mounts the stack's shared scratch, where its image has Lustre's client."""

import configparser
import os
import re
import subprocess

import pytest

from tests.image.recipe.recipe import LIBEXEC, ROOTFS
from tests.ran import executable, ran

SCRIPT = LIBEXEC / "mount-scratch"
UNIT = ROOTFS / "etc/systemd/system/scratch-file-system.service"
LUSTRE = 'cloud = "aws"\nscratch_file_system = "fs-1.fsx.example"\nscratch_mount_name = "abcdefgh"\n'


@pytest.fixture
def instance(tmp_path):
    """Programs that only say how they were called; nothing is mounted."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "scratch").mkdir()
    program(tmp_path, "mount", 'echo "mount $*"')
    program(tmp_path, "mount.lustre", "exit 1")
    program(tmp_path, "mountpoint", "exit 1")
    return tmp_path


def program(instance, name, body):
    executable(instance / "bin" / name, f"#!/bin/sh\n{body}\n")


def run(instance, text=LUSTRE):
    (instance / "instance.toml").write_text(text)
    environment = os.environ | {
        "PATH": f"{instance}/bin:{os.environ['PATH']}",
        "GPU_FLEET_INSTANCE_FILE": str(instance / "instance.toml"),
        "GPU_FLEET_SHARED_SCRATCH": str(instance / "scratch/shared"),
    }
    return ran(["bash", SCRIPT], env=environment)


def test_lustre_is_mounted_by_its_name_on_a_folder_of_its_own(instance):
    done = run(instance)

    shared = instance / "scratch/shared"
    wanted = f"mount -t lustre -o nosuid,nodev,relatime,flock fs-1.fsx.example@tcp:/abcdefgh {shared}\n"
    assert done.stdout.startswith(wanted)
    assert done.returncode == 0, done.stderr
    assert shared.stat().st_mode & 0o777 == 0o755


def test_what_does_not_mount_fails_and_is_tried_again_as_long_as_the_instance_is_up(instance):
    program(instance, "mount", "echo 'no route' >&2; exit 32")
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())

    assert run(instance).returncode == 32
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    program(instance, "mount", 'echo "mount $*"')
    assert "event=scratch-mounted" in run(instance).stdout


def test_an_image_without_the_client_mounts_nothing(instance):
    (instance / "bin/mount.lustre").unlink()

    done = run(instance)

    assert (done.returncode, done.stdout) == (
        0,
        "event=scratch-not-mounted reason=no-lustre-client server=fs-1.fsx.example\n",
    )
    assert not (instance / "scratch/shared").exists()


def test_what_is_mounted_already_is_left_alone(instance):
    program(instance, "mountpoint", "exit 0")

    done = run(instance)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_root_mounts_on_no_name_that_a_user_took_first(instance, kind):
    shared = instance / "scratch/shared"
    if kind == "link":
        shared.symlink_to(instance / "bin", target_is_directory=True)
    else:
        shared.touch()

    done = run(instance)

    assert done.returncode == 1
    assert done.stderr == f"error: {shared} is not root's own folder: move it away\n"
    assert "mount -t" not in done.stdout


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LUSTRE, True),
        (LUSTRE.replace("fs-1.fsx.example", ""), False),
        (LUSTRE.replace('"aws"', '"alicloud"'), False),
    ],
    ids=["lustre", "none", "cpfs"],
)
def test_only_a_stack_with_a_lustre_starts_the_unit(tmp_path, text, wanted):
    (tmp_path / "instance.toml").write_text(text)
    unit = UNIT.read_text().replace("/etc/gpu-fleet/instance.toml", str(tmp_path / "instance.toml"))
    conditions = re.findall("^ExecCondition=(.*)$", unit, flags=re.MULTILINE)

    met = [subprocess.run(["sh", "-c", condition], check=False).returncode == 0 for condition in conditions]
    assert all(met) is wanted
