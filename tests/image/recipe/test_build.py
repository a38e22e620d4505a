"""Baking: what stops it is one message, and what is unfinished does not stay."""

import concurrent.futures
import errno
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_fleet_image.recipe import bake, build, build_requirements, payload
from gpu_fleet_image.recipe.errors import BakeError, RequirementError
from tests.ran import executable, ran


@pytest.fixture
def instance_that_may(monkeypatch):
    """An instance on which nothing hinders a bake, and no package is installed by a test."""
    monkeypatch.setattr(build_requirements, "hindrance", lambda: None)
    monkeypatch.setattr(build_requirements, "install", lambda packages: list(packages)[:0])


FILES = {"provision.sh": b"", payload.DIGEST: b""}


def silent(_part):
    """A listener that says nothing."""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs `build` with words; gives its exit code and its last line."""
    monkeypatch.setattr(build, "inputs", lambda: FILES)

    def run(*words):
        done = CliRunner().invoke(build.main, [*map(str, words)])
        return done.exit_code, done.output.splitlines()[-1]

    return run


def test_an_instance_without_apt_is_shown_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _name: None)

    with pytest.raises(RequirementError, match="apt-get is not on PATH: this needs Debian 12 or Ubuntu"):
        bake.check_computer(tmp_path)


def test_apt_runs_while_no_other_of_ours_does(tmp_path, monkeypatch):
    taken = f"#!/bin/sh\nif flock --nonblock {tmp_path} true; then exit 1; fi\n"
    executable(tmp_path / "programs/apt-get", taken)
    executable(tmp_path / "programs/dpkg-query", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=os.pathsep)
    monkeypatch.setattr(build_requirements, "hindrance", lambda: None)
    monkeypatch.setattr(build_requirements, "DPKG", tmp_path)

    assert build_requirements.install(["mmdebstrap"]) == ["mmdebstrap"]


def test_no_disk_space_is_reported_in_gib(tmp_path, instance_that_may, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(100, 99, 2**30))

    with pytest.raises(RequirementError, match=r"1\.0 GiB free, a bake needs 8; use --output"):
        bake.check_computer(tmp_path)


def test_a_failed_bake_leaves_nothing_under_the_final_name_and_keeps_its_log(tmp_path, instance_that_may):
    def make(folder, _listener):
        (folder / "rootfs").mkdir()
        (folder / "qemu.log").write_text("event=step-failed")
        raise BakeError("step 20-driver failed")

    with pytest.raises(BakeError):
        build.kept("rootfs", FILES, tmp_path, make, silent)

    assert [file.name for file in tmp_path.iterdir()] == ["qemu.log"]


def test_a_bake_of_the_same_inputs_is_taken_from_before_and_one_of_others_replaces_it(
    tmp_path, instance_that_may
):
    made = []

    def make(folder, _listener):
        made.append(folder)
        return 7, {"base": 1.0}

    first = build.kept("rootfs", FILES, tmp_path, make, silent)
    second = build.kept("rootfs", FILES, tmp_path, make, silent)

    assert second == first
    assert json.loads((first.folder / build.REPORT).read_text())["size_bytes"] == 7
    other = build.kept("rootfs", FILES | {"lib.sh": b"changed"}, tmp_path, make, silent)
    assert other.key != first.key
    assert [file.name for file in tmp_path.iterdir()] == [other.folder.name]
    assert len(made) == 2


def test_a_second_bake_beside_the_first_waits_and_takes_its_result(tmp_path, instance_that_may, monkeypatch):
    made, others = [], []
    waits, alone = threading.Event(), build_requirements.alone

    def announced(folder):
        if made:
            waits.set()
        return alone(folder)

    def make(folder, _listener):
        made.append(folder)
        if len(made) == 1:
            others.append(pool.submit(build.kept, "rootfs", FILES, tmp_path, make, silent))
            assert waits.wait(60)
            assert ran(["flock", "--nonblock", str(tmp_path), "true"]).returncode == 1
        return 7, {"base": 1.0}

    monkeypatch.setattr(build_requirements, "alone", announced)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = build.kept("rootfs", FILES, tmp_path, make, silent)
        second = others[0].result()

    assert second == first
    assert len(made) == 1


def test_not_root_is_one_message(command, tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")

    said = command("qemu", "--output", tmp_path)

    assert said == (1, "error: cannot bake: not root (user id 1000): run it with sudo")


def test_a_place_that_cannot_be_written_is_one_message(command):
    said = command("rootfs", "--output", f"{__file__}/below")

    assert said == (1, f"error: {__file__}/below: Not a directory; use --output")


def test_a_disk_that_fills_up_is_one_message(command, tmp_path, instance_that_may, monkeypatch):
    def fill(_root, folder, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "disk.raw"))

    monkeypatch.setattr(build, "rootfs", lambda *_: build.BakeReport(tmp_path, "key", 7, {}))
    monkeypatch.setattr(build.disk, "make", fill)

    code, said = command("qemu", "--output", tmp_path)

    assert code == 1
    assert said.endswith("disk.raw: No space left on device; use --output")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_step_is_named_with_its_last_lines(tmp_path):
    script = "echo event=step-started step=20-driver; echo 'error: no such version'; exit 1"

    with pytest.raises(BakeError, match=r"(?s)step 20-driver failed.*error: no such version"):
        bake.run_steps(["bash", "-c", script], tmp_path / "log", silent)


def test_the_seconds_of_each_step_are_read_from_its_log(tmp_path):
    heard = []
    script = "echo event=step-started step=10-base; echo event=step-done step=10-base seconds=3"

    seconds = bake.run_steps(["bash", "-c", script], tmp_path / "log", heard.append)

    assert (seconds, heard) == ({"10-base": 3.0}, ["10-base"])


@pytest.mark.parametrize("target", ["aws", "alicloud"])
def test_a_clouds_payload_is_named_for_its_content(tmp_path, target):
    said = CliRunner().invoke(build.payload_command, ["--target", target, "--output", str(tmp_path)])

    assert said.exit_code == 0, said.output
    file = Path(said.output.strip())
    assert file.name == f"payload-{hashlib.sha256(file.read_bytes()).hexdigest()}.tar"
    assert build.cloud_payload(tmp_path, target) == file
