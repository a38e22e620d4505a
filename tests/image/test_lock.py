"""The lockfile: what is wrong with it is said by key, and what is not locked is never used."""

import hashlib

import pytest
from click.testing import CliRunner

from image import lock
from image.errors import LockError

SOUND = """
schema_version = 1
[tool]
purpose = "for the test"
[tool."debian-12"]
kind = "file"
version = "1.0"
source = "the shelf"
file = "tool.tar"
sha256 = "{sha256}"
"""
ZEROS = "0" * 64


def lockfile(tmp_path, text):
    file = tmp_path / "versions.toml"
    file.write_text(text)
    return file


def test_the_shipped_lockfile_is_sound_and_complete_for_local_bakes():
    artefacts = lock.load()

    assert {one.name for one in lock.of_base(artefacts, "debian-12")} >= {
        "archive",
        "kernel",
        "nvidia-driver",
    }


def test_a_base_with_unlocked_artefacts_is_refused_by_name():
    with pytest.raises(LockError, match=r"efa-installer\.ubuntu-24\.04\.sha256.*= 'unlocked'"):
        lock.of_base(lock.load(), "ubuntu-24.04")


def test_a_typo_in_a_key_names_the_nearest(tmp_path):
    file = lockfile(tmp_path, SOUND.format(sha256=ZEROS).replace("sha256 =", "sha265 ="))

    with pytest.raises(LockError, match=r"tool\.debian-12\.sha265: unknown key; did you mean 'sha256'"):
        lock.load(file)


def test_a_file_without_a_hash_is_refused(tmp_path):
    text = "\n".join(line for line in SOUND.splitlines() if not line.startswith("sha256"))

    with pytest.raises(LockError, match=r"tool\.debian-12\.sha256: required, and missing"):
        lock.load(lockfile(tmp_path, text))


@pytest.mark.parametrize("value", ["abc", "g" * 64, "0" * 63])
def test_what_is_no_hash_is_refused(tmp_path, value):
    with pytest.raises(LockError, match=r"must be .* or 'unlocked'"):
        lock.load(lockfile(tmp_path, SOUND.format(sha256=value)))


def test_every_problem_is_told_at_once(tmp_path):
    text = SOUND.format(sha256="short").replace("schema_version = 1", "schema_version = 2")

    with pytest.raises(LockError, match=r"schema_version: must be 1; tool\.debian-12\.sha256"):
        lock.load(lockfile(tmp_path, text))


def test_a_file_that_is_not_toml_is_one_message(tmp_path):
    with pytest.raises(LockError, match="cannot be read"):
        lock.load(lockfile(tmp_path, "schema_version = "))


def test_a_file_with_another_hash_is_refused_by_name(tmp_path):
    file = tmp_path / "tool.tar"
    file.write_bytes(b"other")

    with pytest.raises(LockError, match=rf"tool\.tar: sha256 is .*, versions\.toml has {ZEROS}"):
        lock.verify(file, ZEROS)


def test_a_file_with_its_hash_passes(tmp_path):
    file = tmp_path / "tool.tar"
    file.write_bytes(b"content")

    lock.verify(file, hashlib.sha256(b"content").hexdigest())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LockError, match=r"gone\.tar: cannot be read: No such file"):
        lock.verify(tmp_path / "gone.tar", ZEROS)


def test_the_steps_read_what_the_lockfile_says(tmp_path):
    artefacts = lock.load(lockfile(tmp_path, SOUND.format(sha256=ZEROS)))

    assert lock.tsv(artefacts, "debian-12").splitlines() == [
        "tool\tversion\t1.0",
        "tool\tfile\ttool.tar",
        f"tool\tsha256\t{ZEROS}",
    ]
    assert lock.tsv(artefacts, "ubuntu-24.04") == ""


def test_the_command_lists_and_fails_on_what_is_unlocked():
    listed = CliRunner().invoke(lock.main, [])
    refused = CliRunner().invoke(lock.main, ["--base", "ubuntu-24.04"])

    assert listed.exit_code == 0
    assert "nvidia-driver" in listed.output
    assert refused.exit_code == 1
