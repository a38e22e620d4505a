"""The recipe itself: what it refuses, in what order it works, what it leaves behind."""

import shutil
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import bake, build_requirements
from tests.image.recipe.recipe import do_nothing, lay_down, provision
from tests.ran import ran

RECIPE = Path(bake.__file__).parent


@pytest.mark.parametrize("target", ["", "gcp"])
def test_the_recipe_refuses_a_target_it_does_not_know(target):
    said = provision(RECIPE, TARGET=target)

    assert said.returncode == 1
    assert said.stderr == f"error: TARGET = '{target}': must be aws, alicloud, qemu or oci\n"


@pytest.fixture
def recipe(tmp_path):
    """The payload on this computer, with steps that do nothing, for a base that is this computer's."""
    if build_requirements.hindrance() is not None:
        pytest.skip(f"the recipe runs on Debian as root: {build_requirements.hindrance()}")
    lay_down(tmp_path)
    do_nothing(tmp_path)
    if "debian-12" not in provision(RECIPE, "x", TARGET="qemu").stderr + this_base():
        pytest.skip(f"the recipe knows no base {this_base()}")
    return tmp_path


def this_base():
    return ran(["bash", "-c", '. /etc/os-release && printf "%s-%s" "$ID" "$VERSION_ID"'], check=True).stdout


def test_a_missing_step_ends_the_recipe_before_it_begins(recipe):
    (recipe / "steps" / "40-scratch.sh").unlink()

    said = provision(recipe, TARGET="qemu")

    assert said.returncode == 1
    assert "step '40-scratch': steps/40-scratch.sh is missing; steps/ORDER names 10-base" in said.stderr
    assert "event=step-started" not in said.stdout


def test_the_steps_of_a_target_run_in_their_order(recipe):
    said = provision(recipe, TARGET="oci")

    begun = [line.split("step=")[1] for line in said.stdout.splitlines() if "event=step-started" in line]
    assert begun == ["10-base", "15-agent", "70-trainer", "90-seal", "95-manifest"]


def rows(name, **fields):
    """Lines of a base's versions, as the payload has them."""
    return "".join(f"{name}\t{field}\t{value}\n" for field, value in fields.items())


def one_line(recipe, step, line, versions):
    """A step that does one thing, with what is locked for it."""
    (recipe / "versions" / f"{this_base()}.tsv").write_text(versions)
    (recipe / "steps" / f"{step}.sh").write_text(f'set -euo pipefail\n. "$PAYLOAD/lib.sh"\n{line}\n')


@pytest.mark.parametrize(
    ("maker", "fields", "message"),
    [
        ("erdma", {"kind": "hashed", "sha256": "0" * 64}, "erdma.tar: sha256 is"),
        (
            "efa",
            {"kind": "signed", "key_url": "x/key"},
            "error: http://127.0.0.1:9/efa.tar cannot be fetched",
        ),
    ],
)
def test_a_file_that_is_not_as_its_maker_publishes_or_cannot_be_fetched_fails_closed(
    recipe, maker, fields, message
):
    (recipe / "erdma.tar").write_text("tampered")
    versions = rows(f"{maker}-installer", url=f"http://127.0.0.1:9/{maker}.tar", **fields)
    one_line(recipe, "30-fabric", f"archive=$(outside {maker}-installer)", versions)

    said = provision(recipe, "30-fabric", TARGET="aws", FILES=str(recipe))

    assert said.returncode == 1
    assert message in said.stderr


@pytest.mark.parametrize(
    ("signer", "key", "message"),
    [(0, 0, None), (1, 0, "efa.tar: not signed by efa-installer's key"), (1, 1, "aws.key: fingerprint is")],
)
def test_a_file_is_taken_when_its_maker_signed_it(recipe, keys, signer, key, message):
    (recipe / "efa.tar").write_text("installer")
    keys[signer].sign("--detach-sign", "--output", recipe / "efa.tar.sig", recipe / "efa.tar")
    (recipe / "aws.key").write_text(keys[key].armour)
    versions = rows(
        "efa-installer",
        kind="signed",
        url="http://127.0.0.1:9/efa.tar",
        key_url="http://127.0.0.1:9/aws.key",
        key_fingerprint=keys[0].fingerprint,
    )
    one_line(recipe, "30-fabric", 'archive=$(outside efa-installer)\nlog "took=$archive"', versions)

    said = provision(recipe, "30-fabric", TARGET="aws", FILES=str(recipe))

    assert said.returncode == (0 if message is None else 1), said.stderr
    assert (f"took={recipe}/efa.tar" in said.stdout) is (message is None)
    assert message is None or message in said.stderr


def test_a_driver_version_the_archive_does_not_have_is_named(recipe):
    (recipe / "packages" / f"{this_base()}.tsv").write_text("nvidia-driver\tbash\n")
    one_line(recipe, "20-driver", "install_locked nvidia-driver", rows("nvidia-driver", version="999.0-1"))

    said = provision(recipe, "20-driver", TARGET="qemu")

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
    done = ran(bake.enter(root, tmp_path / "recipe", tmp_path / "cache", "qemu"))

    assert done.returncode != 0
    assert "chroot" in done.stderr
    assert Path("/proc/self/mountinfo").read_text() == before
    assert list((root / "run").iterdir()) == []
    assert not (root / "usr/sbin/policy-rc.d").exists()
