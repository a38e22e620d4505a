"""A user of the instance plants links where root writes: the attack itself, as another user."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpu_fleet_image.core import paths
from gpu_fleet_image.instance.accounts.run_folders import own_folder
from gpu_fleet_image.recipe.payload import PROJECT
from tests.image.instance_toml import INSTANCE_TOML
from tests.ran import ran

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")

OTHER = 65534  # nobody
ADA = 5001
ROOTFS = PROJECT / "image/gpu_fleet_image/recipe/rootfs"
SETTINGS = Path("etc/tmpfiles.d/gpu-fleet.conf")


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


def acts(*command):
    """Whether the other user, who is also the account of a trainer here, could do it."""
    done = ran(command, user=OTHER, group=OTHER, extra_groups=())
    return done.returncode == 0


def plants(target, link):
    return acts("ln", "-sT", str(target), str(link))


def open_scratch(root, mode=0o1777):
    (root / "scratch").mkdir()
    (root / "scratch").chmod(mode)


def test_no_user_plants_a_link_in_the_place_of_what_agent_and_gate_write_or_users_keep_and_run(root):
    lay(root)
    files = [path().name for path in (paths.ready_file, paths.stop_file, paths.activity_file)]
    places = [f"run/gpu-fleet/{name}" for name in (*files, "bootstrap.json")]
    places += ["scratch/keep", "scratch/runs"]

    assert [place for place in places if plants(root / "secret/file", root / place)] == []


def test_the_gate_writes_nowhere_through_a_link_in_a_folder_that_a_group_may_write(root):
    """The folder as images before 2026-11 laid it, whose group is that of trainers and users."""
    lay(root)
    os.chown(root / "run/gpu-fleet", 0, OTHER)
    (root / "run/gpu-fleet").chmod(0o775)
    assert plants(root / "secret/file", root / "run/gpu-fleet/ready.json")

    (root / "etc/instance.toml").write_text(INSTANCE_TOML)
    where = {
        "GPU_FLEET_INSTANCE_FILE": root / "etc/instance.toml",
        "GPU_FLEET_RUN_DIR": root / "run/gpu-fleet",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
    }

    done = ran([sys.executable, "-m", "gpu_fleet_image.instance.gate"], cwd=PROJECT, env=os.environ | where)

    assert done.returncode == 1
    assert f"group {OTHER} may write in the folder" in done.stderr
    assert (root / "secret/file").read_text() == "untouched\n"


def scratch(root):
    """The unit's program, on an instance without disks of its own."""
    script = (ROOTFS / "usr/libexec/gpu-fleet/scratch").read_text()
    for folder in ("/dev/disk", "/scratch\n", "/opt/dlami"):
        assert folder in script
        script = script.replace(folder, f"{root}{folder}")
    done = ran(["bash", "-c", script])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["keep", "runs"])
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_link_in_the_place_of_what_users_keep_and_run_opens_nothing_else(root, mode, name):
    """As the agent's step left it before the disks came: everybody may write, neither is there."""
    open_scratch(root, mode)
    assert plants(root / "secret", root / "scratch" / name)

    scratch(root)

    made = (root / "scratch" / name).lstat()
    assert stat.S_IMODE((root / "secret").stat().st_mode) == 0o700
    assert (made.st_uid, stat.S_ISDIR(made.st_mode), stat.S_IMODE(made.st_mode)) == (0, True, 0o1777)
    assert stat.S_IMODE((root / "scratch").stat().st_mode) == 0o1777


def test_files_in_a_folder_that_a_user_made_are_kept_and_the_folder_becomes_roots(root):
    (root / "scratch").mkdir(mode=0o755)
    (root / "scratch/keep").mkdir()
    (root / "scratch/keep/notes.txt").write_text("mine\n")
    os.chown(root / "scratch/keep", OTHER, OTHER)

    scratch(root)

    assert (root / "scratch/keep/notes.txt").read_text() == "mine\n"
    assert (root / "scratch/keep").stat().st_uid == 0


@pytest.mark.parametrize("before", ["laid", "an older image", "a trainer's"])
def test_a_submitted_run_leaves_the_folder_of_runs_to_trainers_and_its_own_to_its_user(root, before):
    """run.directory = "/scratch/runs/x" is what the documents name."""
    runs = root / "scratch/runs"
    if before == "laid":
        lay(root)
    else:
        open_scratch(root)
    if before == "a trainer's":
        assert acts("mkdir", "-p", str(runs / "demo"))

    assert own_folder(runs, "ada", ADA) == runs / "ada"

    assert acts("mkdir", "-p", str(runs / "demo"))
    assert (runs.stat().st_uid, stat.S_IMODE(runs.stat().st_mode)) == (0, 0o1777)
    assert (runs / "demo").stat().st_uid == OTHER
    assert not acts("ls", str(runs / "ada"))
    assert not acts("mv", str(runs / "ada"), str(runs / "mine"))


@pytest.mark.parametrize("planted", ["runs", "runs/ada"])
def test_a_link_in_the_place_of_a_runs_folder_is_moved_away_and_not_followed(root, planted):
    open_scratch(root)
    if planted != "runs":
        own_folder(root / "scratch/runs", "eve", ADA)
    assert plants(root / "secret", root / "scratch" / planted)

    own_folder(root / "scratch/runs", "ada", ADA)

    secret, own = (root / "secret").stat(), (root / "scratch/runs/ada").lstat()
    assert (secret.st_uid, stat.S_IMODE(secret.st_mode)) == (0, 0o700)
    assert list((root / "secret").iterdir()) == [root / "secret/file"]
    assert (own.st_uid, stat.S_ISDIR(own.st_mode), stat.S_IMODE(own.st_mode)) == (ADA, True, 0o700)


def test_who_squats_anothers_folder_of_runs_stops_no_run_and_loses_nothing(root):
    lay(root)
    assert acts("mkdir", str(root / "scratch/runs/ada"))
    assert acts("touch", str(root / "scratch/runs/ada/notes.txt"))

    own_folder(root / "scratch/runs", "ada", ADA)

    assert (root / "scratch/runs/ada").stat().st_uid == ADA
    (moved,) = (root / "scratch/runs").glob("was-ada.*/ada")
    assert acts("cat", str(moved / "notes.txt"))


def test_the_trainer_takes_no_module_from_the_folder_that_everybody_writes(root):
    (root / "scratch").mkdir()
    (root / "scratch/click.py").write_text("raise SystemExit('planted')\n")
    unit = (ROOTFS / "etc/systemd/system/trainer@.service").read_text()
    (variables,) = [
        line.removeprefix("Environment=") for line in unit.splitlines() if line.startswith("Environment=")
    ]

    shown = ran(
        [sys.executable, "-m", "gpu_fleet", "--help"],
        cwd=root / "scratch",
        env=os.environ | dict(word.split("=", 1) for word in variables.split()),
    )

    assert "planted" not in shown.stderr
    assert "launch" in shown.stdout
