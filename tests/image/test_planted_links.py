"""A user of the instance plants links where root writes: the attack itself, as another user."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from image.instance import paths
from image.payload import PROJECT
from tests.reaper.instance_toml import INSTANCE_TOML

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")

OTHER = 65534  # nobody
ROOTFS = PROJECT / "image/rootfs"
SETTINGS = Path("etc/tmpfiles.d/gpu-fleet.conf")
NAMES = [path().name for path in (paths.ready_file, paths.stop_file, paths.activity_file)]


@pytest.fixture
def root():
    """A root folder within every user's reach, to be laid by systemd-tmpfiles, with a file of root alone."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("no systemd-tmpfiles here")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / SETTINGS).parent.mkdir(parents=True)
        shutil.copy(ROOTFS / SETTINGS, folder / SETTINGS)
        (folder / "secret").mkdir(mode=0o700)
        (folder / "secret/file").write_text("untouched\n")
        yield folder


def lay(root):
    subprocess.run(["systemd-tmpfiles", "--create", f"--root={root}", SETTINGS.name], check=True)


def plants(target, link):
    """Whether the other user got a link there."""
    command = ["ln", "-sT", str(target), str(link)]
    done = subprocess.run(
        command, user=OTHER, group=OTHER, extra_groups=(), capture_output=True, text=True, check=False
    )
    return done.returncode == 0


def gate(root):
    (root / "etc/instance.toml").write_text(INSTANCE_TOML)
    where = {
        "GPU_FLEET_INSTANCE_FILE": root / "etc/instance.toml",
        "GPU_FLEET_RUN_DIR": root / "run/gpu-fleet",
    }
    return subprocess.run(
        [sys.executable, "-m", "image.readiness"],
        cwd=PROJECT,
        env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"} | where,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", [*NAMES, "bootstrap.json"])
def test_no_user_plants_a_link_in_the_folder_of_agent_and_gate(root, name):
    lay(root)

    assert not plants(root / "secret/file", root / "run/gpu-fleet" / name)


def test_the_gate_writes_nowhere_through_a_link_in_a_folder_that_a_group_may_write(root):
    """The folder as images before 2026-11 laid it, whose group is that of trainers and users."""
    lay(root)
    os.chown(root / "run/gpu-fleet", 0, OTHER)
    (root / "run/gpu-fleet").chmod(0o775)
    assert plants(root / "secret/file", root / "run/gpu-fleet/ready.json")

    done = gate(root)

    assert done.returncode == 1
    assert f"group {OTHER} may write in the folder" in done.stderr
    assert (root / "secret/file").read_text() == "untouched\n"


def test_no_user_plants_a_link_in_the_place_of_what_users_keep(root):
    lay(root)

    assert not plants(root / "secret", root / "scratch/keep")


def scratch(root):
    """The unit's program, on an instance without disks of its own."""
    script = (ROOTFS / "usr/libexec/gpu-fleet/scratch").read_text()
    for folder in ("/dev/disk", "/scratch\n", "/opt/dlami"):
        assert folder in script
        script = script.replace(folder, f"{root}{folder}")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_link_in_the_place_of_what_users_keep_opens_nothing_else(root, mode):
    """As the agent's step left it before the disks came: everybody may write, no keep is there."""
    (root / "scratch").mkdir()
    (root / "scratch").chmod(mode)
    assert plants(root / "secret", root / "scratch/keep")

    scratch(root)

    keep = (root / "scratch/keep").lstat()
    assert stat.S_IMODE((root / "secret").stat().st_mode) == 0o700
    assert (keep.st_uid, stat.S_ISDIR(keep.st_mode), stat.S_IMODE(keep.st_mode)) == (0, True, 0o1777)
    assert stat.S_IMODE((root / "scratch").stat().st_mode) == 0o1777


def test_files_in_a_folder_that_a_user_made_are_kept_and_the_folder_becomes_roots(root):
    (root / "scratch").mkdir(mode=0o755)
    (root / "scratch/keep").mkdir()
    (root / "scratch/keep/notes.txt").write_text("mine\n")
    os.chown(root / "scratch/keep", OTHER, OTHER)

    scratch(root)

    assert (root / "scratch/keep/notes.txt").read_text() == "mine\n"
    assert (root / "scratch/keep").stat().st_uid == 0


def test_the_trainer_takes_no_module_from_the_folder_that_everybody_writes(root):
    (root / "scratch").mkdir()
    (root / "scratch/click.py").write_text("raise SystemExit('planted')\n")
    unit = (ROOTFS / "etc/systemd/system/trainer@.service").read_text()
    (variables,) = [
        line.removeprefix("Environment=") for line in unit.splitlines() if line.startswith("Environment=")
    ]

    shown = subprocess.run(
        [sys.executable, "-m", "gpu_fleet", "--help"],
        cwd=root / "scratch",
        env=os.environ | dict(word.split("=", 1) for word in variables.split()),
        capture_output=True,
        text=True,
        check=False,
    )

    assert "planted" not in shown.stderr
    assert "launch" in shown.stdout
