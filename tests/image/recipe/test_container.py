"""The same steps as a container of the trainer, for Kubernetes."""

import json
import os
import stat
import subprocess
import tarfile

import pytest

from gpu_fleet_image.recipe import build
from tests.image.recipe.recipe import report
from tests.ran import ran

pytestmark = [pytest.mark.image, pytest.mark.prove, pytest.mark.timeout(1500)]

LARGEST_GIB = 1.5
# not on the path that the container has
CHROOT = "/usr/sbin/chroot"


@pytest.fixture(scope="module")
def archive(files):
    """The OCI archive as `python -m gpu_fleet_image.recipe.build oci` leaves it."""
    return build.oci_archive(files, build.OUTPUT, report).folder / "trainer.tar"


@pytest.fixture(scope="module")
def container(archive, tmp_path_factory):
    """The container's files, its layers laid over one another as an engine does; and its configuration."""
    folder = tmp_path_factory.mktemp("container")
    with tarfile.open(archive) as outer:
        index = json.load(outer.extractfile("index.json"))
        manifest = json.load(outer.extractfile(blob(index["manifests"][0])))
        config = json.load(outer.extractfile(blob(manifest["config"])))
        for layer in manifest["layers"]:
            subprocess.run(
                ["tar", "--extract", "--gzip", "--directory", str(folder)],
                input=outer.extractfile(blob(layer)).read(),
                check=True,
            )
    folder.chmod(0o755)  # pytest's is for root alone
    # what an engine makes, and torch opens
    os.mknod(folder / "dev/urandom", 0o666 | stat.S_IFCHR, os.makedev(1, 9))
    return folder, config["config"]


def blob(descriptor):
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def inside(container, *command):
    """Run a command as an engine does: with the configuration's account, variables and folder."""
    folder, config = container
    return ran(
        [CHROOT, f"--userspec={config['User']}", "--groups=", str(folder), *command],
        env=dict(entry.split("=", 1) for entry in config["Env"]),
    )


def test_the_container_starts_the_trainer(container):
    _, config = container

    said = inside(container, *config["Entrypoint"], "--help")

    assert said.returncode == 0, said.stderr
    assert "launch" in said.stdout
    assert "prepare" in said.stdout


def test_the_container_is_no_roots_and_torch_knows_its_user(container):
    program = "import getpass, os, torch; print(os.getuid(), os.getgroups(), getpass.getuser())"

    said = inside(container, "/opt/gpu-fleet/venv/bin/python", "-c", program)

    assert said.stdout.split() == ["1000", "[]", "gpu-fleet"], said.stderr


def test_the_container_has_no_kernel_no_driver_and_no_door_names_what_is_inside_and_is_small(
    container, archive
):
    folder, _ = container
    bill = json.loads((folder / "usr/share/gpu-fleet/sbom.cdx.json").read_text())

    assert not list((folder / "boot").glob("vmlinuz*"))
    assert not (folder / "lib/modules").exists()
    assert not (folder / "usr/sbin/sshd").exists()
    assert not list((folder / "etc/systemd/system").glob("*gpu*"))
    assert "torch" in {component["name"] for component in bill["components"]}
    assert archive.stat().st_size / 2**30 <= LARGEST_GIB
