"""The recipe itself: what it refuses, in what order it works, what it leaves behind."""

import shutil
import subprocess
from pathlib import Path

import pytest

from image import bake, build_requirements, payload

PROVISION = Path(bake.__file__).with_name("provision.sh")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "TARGET = '': must be aws, alicloud, qemu or oci"),
        ({"TARGET": "gcp"}, "TARGET = 'gcp': must be aws, alicloud, qemu or oci"),
    ],
)
def test_the_recipe_refuses_a_target_it_does_not_know(environment, message):
    said = provision(PROVISION, environment)

    assert said.returncode == 1
    assert said.stderr == f"error: {message}\n"


def provision(script, environment, *steps):
    path = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    return subprocess.run(
        ["bash", str(script), *steps], env=path | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def recipe(tmp_path):
    """The payload on this computer, with steps that do nothing, for a base that is this computer's."""
    if build_requirements.hindrance() is not None:
        pytest.skip(f"the recipe runs on Debian as root: {build_requirements.hindrance()}")
    payload.write(payload.assemble(), tmp_path)
    for step in (tmp_path / "steps").glob("*.sh"):
        step.write_text('set -euo pipefail\n. "$PAYLOAD/lib.sh"\n')
    if "debian-12" not in provision(PROVISION, {"TARGET": "qemu"}, "x").stderr + this_base():
        pytest.skip(f"the recipe knows no base {this_base()}")
    return tmp_path


def this_base():
    return subprocess.run(
        ["bash", "-c", '. /etc/os-release && printf "%s-%s" "$ID" "$VERSION_ID"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_missing_step_ends_the_recipe_before_it_begins(recipe):
    (recipe / "steps" / "40-scratch.sh").unlink()

    said = provision(recipe / "provision.sh", {"TARGET": "qemu"})

    assert said.returncode == 1
    assert "step '40-scratch': steps/40-scratch.sh is missing; steps/ORDER names 10-base" in said.stderr
    assert "event=step-started" not in said.stdout


def test_the_steps_of_a_target_run_in_their_order(recipe):
    said = provision(recipe / "provision.sh", {"TARGET": "oci"})

    begun = [line.split("step=")[1] for line in said.stdout.splitlines() if "event=step-started" in line]
    assert begun == ["10-base", "15-agent", "70-trainer", "90-seal", "95-manifest"]


def test_a_step_that_needs_what_is_unlocked_fails_closed(recipe):
    (recipe / "versions" / f"{this_base()}.tsv").write_text(
        "efa-installer\tfile\tefa.tar\nefa-installer\tsha256\tunlocked\n"
    )
    (recipe / "steps" / "30-fabric.sh").write_text(
        'set -e\n. "$PAYLOAD/lib.sh"\narchive=$(fetched efa-installer)\n'
    )

    said = provision(recipe / "provision.sh", {"TARGET": "aws"}, "30-fabric")

    assert said.returncode == 1
    assert "efa-installer" in said.stderr
    assert "= 'unlocked': lock it before baking aws" in said.stderr


def test_a_file_with_the_wrong_hash_fails_closed(recipe):
    (recipe / "efa.tar").write_text("tampered")
    (recipe / "versions" / f"{this_base()}.tsv").write_text(
        f"efa-installer\tfile\tefa.tar\nefa-installer\tsha256\t{'0' * 64}\n"
    )
    (recipe / "steps" / "30-fabric.sh").write_text(
        'set -e\n. "$PAYLOAD/lib.sh"\narchive=$(fetched efa-installer)\n'
    )

    said = provision(recipe / "provision.sh", {"TARGET": "aws", "FILES": str(recipe)}, "30-fabric")

    assert said.returncode == 1
    assert "efa.tar: sha256 is" in said.stderr


@pytest.mark.parametrize(
    ("key", "message"), [(None, "keys.asc is missing"), ("no key", "fingerprint is none")]
)
def test_an_archive_with_another_key_fails_closed(recipe, key, message):
    rows = {"uri": "file:/nowhere ./", "file": "keys.asc", "key_fingerprint": "0" * 40}
    (recipe / "versions" / f"{this_base()}.tsv").write_text(
        "".join(f"dcgm\t{field}\t{value}\n" for field, value in rows.items())
    )
    (recipe / "steps" / "45-exporters.sh").write_text('set -e\n. "$PAYLOAD/lib.sh"\nrepository dcgm\n')
    if key is not None:
        (recipe / "keys.asc").write_text(key)

    said = provision(recipe / "provision.sh", {"TARGET": "aws", "FILES": str(recipe)}, "45-exporters")

    assert said.returncode == 1
    assert message in said.stderr
    assert not Path("/etc/apt/sources.list.d/dcgm.list").exists()


def test_a_driver_version_the_archive_does_not_have_is_named(recipe):
    (recipe / "versions" / f"{this_base()}.tsv").write_text("nvidia-driver\tversion\t999.0-1\n")
    (recipe / "packages" / f"{this_base()}.tsv").write_text("driver\tbash\n")
    (recipe / "steps" / "20-driver.sh").write_text(
        'set -e\n. "$PAYLOAD/lib.sh"\ninstall_locked driver nvidia-driver\n'
    )

    said = provision(recipe / "provision.sh", {"TARGET": "qemu"}, "20-driver")

    assert said.returncode == 1
    assert "nvidia-driver." in said.stderr
    assert "= '999.0-1': the archive has bash" in said.stderr


def test_mounts_of_a_bake_end_with_it_however_it_ends(tmp_path):
    if build_requirements.hindrance() is not None or shutil.which("unshare") is None:
        pytest.skip("mounts need root and unshare")
    root = tmp_path / "rootfs"
    for folder in ("proc", "sys", "run", "tmp", "dev", "etc", "usr/sbin"):
        (root / folder).mkdir(parents=True)
    for place in ("recipe", "cache/files", "cache/apt"):
        (tmp_path / place).mkdir(parents=True)
    before = Path("/proc/self/mountinfo").read_text()

    # there is no program in that root: the bake fails after everything was mounted
    done = subprocess.run(
        bake.enter(root, tmp_path / "recipe", tmp_path / "cache", "qemu"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "chroot" in done.stderr
    assert Path("/proc/self/mountinfo").read_text() == before
    assert list((root / "run").iterdir()) == []
    assert not (root / "usr/sbin/policy-rc.d").exists()
