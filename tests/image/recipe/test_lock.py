"""The lockfile: what is wrong with it is said by key, and its keys are those of their fingerprints."""

import hashlib
import re
import subprocess
import tomllib

import pytest

from gpu_fleet_image.recipe import lock, payload
from gpu_fleet_image.recipe.errors import LockError
from tests.image.recipe import archives

SOUND = """
schema_version = 2
[tool]
purpose = "for the test"
[tool."debian-12"]
kind = "hashed"
version = "1.0"
source = "the shelf"
url = "https://tools.example/tool-{version}.tar"
page = "https://tools.example"
sha256 = "{sha256}"
"""
ARCHIVE = """
schema_version = 2
[maker."debian-12"]
kind = "archive"
source = "the maker"
uri = "https://archive.example"
suites = "/"
key_fingerprint = "{fingerprint}"
key_sources = ["a book", "a page"]
"""
ZEROS = "0" * 64
STEPS = payload.PROJECT / "image" / "gpu_fleet_image" / "recipe" / "steps"


def lockfile(tmp_path, text):
    file = tmp_path / "versions.toml"
    file.write_text(text)
    return file


def sound(sha256=ZEROS):
    return SOUND.replace("{sha256}", sha256)


def test_a_typo_in_a_key_names_the_nearest(tmp_path):
    file = lockfile(tmp_path, sound().replace("sha256 =", "sha265 ="))

    with pytest.raises(LockError, match=r"tool\.debian-12\.sha265: unknown key; did you mean 'sha256'"):
        lock.load(file)


def test_a_file_without_a_hash_is_refused(tmp_path):
    text = "\n".join(line for line in sound().splitlines() if not line.startswith("sha256"))

    with pytest.raises(LockError, match=r"tool\.debian-12\.sha256: required, and missing"):
        lock.load(lockfile(tmp_path, text))


@pytest.mark.parametrize("value", ["abc", "g" * 64, "0" * 63, "unlocked"])
def test_what_is_no_hash_is_refused(tmp_path, value):
    with pytest.raises(LockError, match=r"tool\.debian-12\.sha256 = .* must be \[0-9a-f\]"):
        lock.load(lockfile(tmp_path, sound(value)))


def test_every_problem_is_reported_at_once(tmp_path):
    text = sound("short").replace("schema_version = 2", "schema_version = 1")

    with pytest.raises(LockError, match=r"schema_version: must be 2; tool\.debian-12\.sha256"):
        lock.load(lockfile(tmp_path, text))


def test_a_file_that_is_not_toml_is_one_message(tmp_path):
    with pytest.raises(LockError, match="cannot be read"):
        lock.load(lockfile(tmp_path, "schema_version = "))


def test_packages_of_an_unlocked_archive_are_refused(tmp_path):
    row = '[other."debian-12"]\nkind = "packages"\nversion = "1"\nsource = "x"\narchive = "makr"\n'

    with pytest.raises(LockError, match=r"other\.debian-12\.archive = 'makr': no such archive of this base"):
        lock.load(lockfile(tmp_path, sound() + row))


def test_a_fingerprint_that_one_place_says_is_not_enough(tmp_path):
    text = ARCHIVE.replace("{fingerprint}", "A" * 40).replace('"a page"', '"a book"')

    with pytest.raises(LockError, match=r"maker\.debian-12\.key_sources = .*: needs two public places"):
        lock.load(lockfile(tmp_path, text))


def test_a_dated_archive_needs_its_day(tmp_path):
    text = ARCHIVE.replace("{fingerprint}", "A" * 40).replace(".example", ".example/{day}")

    with pytest.raises(LockError, match=r"maker\.debian-12\.day: required, and missing"):
        lock.load(lockfile(tmp_path, text))


@pytest.fixture(scope="module")
def keys():
    """Two keys as makers publish them."""
    made = [archives.new_key(person) for person in ("maker", "stranger")]
    yield made
    for key in made:
        archives.forget(key)


def test_a_committed_key_with_another_fingerprint_is_refused_by_name(tmp_path, keys):
    maker, stranger = keys
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/maker.asc").write_text(stranger.armour)

    with pytest.raises(
        LockError,
        match=rf"keys/maker\.asc: fingerprint is {stranger.fingerprint}, versions\.toml has "
        rf"maker\.debian-12\.key_fingerprint = '{maker.fingerprint}'",
    ):
        lock.load(lockfile(tmp_path, ARCHIVE.replace("{fingerprint}", maker.fingerprint)))


def test_a_second_key_beside_the_locked_one_is_refused(tmp_path, keys):
    maker, stranger = keys
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/maker.asc").write_text(maker.armour + stranger.armour)

    with pytest.raises(LockError, match=f"fingerprint is {maker.fingerprint} {stranger.fingerprint}"):
        lock.load(lockfile(tmp_path, ARCHIVE.replace("{fingerprint}", maker.fingerprint)))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), ("a page that says 404", "no public key in armour")],
)
def test_a_key_that_is_none_is_one_message(tmp_path, content, message):
    (tmp_path / "keys").mkdir()
    if content is not None:
        (tmp_path / "keys/maker.asc").write_text(content)

    with pytest.raises(LockError, match=message):
        lock.load(lockfile(tmp_path, ARCHIVE.replace("{fingerprint}", "A" * 40)))


def test_fingerprints_are_those_that_gpg_computes(keys):
    shipped = [
        file.read_text() for file in sorted((payload.PROJECT / "image/gpu_fleet_image/recipe/keys").iterdir())
    ]
    assert len(shipped) == 3

    for armour in (*shipped, *(key.armour for key in keys)):
        shown = subprocess.run(
            ["gpg", "--show-keys", "--with-colons"], input=armour, capture_output=True, text=True, check=True
        ).stdout
        assert lock.fingerprints(armour) == re.findall(r"^pub.*\n(?:fpr:+(\w+):)", shown, flags=re.MULTILINE)


def test_a_key_that_is_cut_off_is_no_key():
    lines = (payload.PROJECT / "image/gpu_fleet_image/recipe/keys/nvidia-cuda.asc").read_text().splitlines()

    with pytest.raises(ValueError, match="cut off"):
        lock.fingerprints("\n".join([*lines[:8], "-----END PGP PUBLIC KEY BLOCK-----"]))


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
    artefacts = lock.load(lockfile(tmp_path, sound()))

    assert lock.tsv(artefacts, "debian-12").splitlines() == [
        "tool\tkind\thashed",
        "tool\tversion\t1.0",
        "tool\turl\thttps://tools.example/tool-1.0.tar",
        f"tool\tsha256\t{ZEROS}",
    ]
    assert lock.tsv(artefacts, "ubuntu-24.04") == ""


def test_a_value_is_changed_in_its_own_table_and_nothing_else(tmp_path):
    text = lock.FILE.read_text()

    (driver,) = [
        artefact
        for artefact in lock.load()
        if (artefact.name, artefact.base) == ("nvidia-driver", "ubuntu-24.04")
    ]
    changed = lock.with_values(text, "nvidia-driver", "ubuntu-24.04", {"version": "999.*"})

    assert changed == text.replace(f'version = "{driver.version}"', 'version = "999.*"')
    with pytest.raises(LockError, match=r'\[kernel."ubuntu-24.04"\] with a version is missing'):
        lock.with_values(text, "kernel", "ubuntu-24.04", {"version": "1"})


def asked_of_the_lockfile(target):
    """Artefacts that the steps of a target name, by the function of lib.sh that reads them."""
    order = (line.split() for line in (STEPS / "ORDER").read_text().splitlines())
    steps = [words[0] for words in order if target in words[1:] and words[0] != "#"]
    lines = [line for step in steps for line in (STEPS / f"{step}.sh").read_text().splitlines()]
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    asked = set(re.findall(r"\b(?:archive|install_locked|version_of|outside) ([a-z][a-z-]+)", text))
    return asked - {"kernel"}  # of local bakes


@pytest.mark.parametrize(
    ("target", "base", "foreign"),
    [("aws", "ubuntu-24.04", {"erdma-installer"}), ("alicloud", "ubuntu-24.04", {"efa-installer"})],
)
def test_the_lockfile_has_what_the_steps_of_a_cloud_ask_for_and_nothing_else(target, base, foreign):
    held = {artefact.name for artefact in lock.load() if artefact.base == base and artefact.kind != "wheels"}
    # a case of 30-fabric is for each cloud
    assert asked_of_the_lockfile(target) - foreign == held - foreign


def test_every_group_of_a_locked_version_is_in_the_package_map():
    groups = tomllib.loads((payload.PROJECT / "image/gpu_fleet_image/recipe/packages.toml").read_text())
    locked = [
        artefact for artefact in lock.load() if artefact.kind == "packages" and artefact.name != "archive"
    ]

    assert [package.name for package in locked if not groups[package.name].get(package.base)] == []
