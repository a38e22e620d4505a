"""The lockfile: what is wrong with it is said by key, and its keys are those of their fingerprints."""

import hashlib
import re
import tomllib

import pytest

from gpu_fleet_image.recipe import lock, payload
from gpu_fleet_image.recipe.errors import LockError
from tests.ran import ran

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
RECIPE = payload.PROJECT / "image/gpu_fleet_image/recipe"


def lockfile(tmp_path, text):
    file = tmp_path / "versions.toml"
    file.write_text(text)
    return file


def sound(sha256=ZEROS):
    return SOUND.replace("{sha256}", sha256)


OTHER = '[other."debian-12"]\nkind = "packages"\nversion = "1"\nsource = "x"\narchive = "makr"\n'
LOCKED = ARCHIVE.replace("{fingerprint}", "A" * 40)
NO_HASH = r"tool\.debian-12\.sha256 = .* must be \[0-9a-f\]"
REFUSED = (
    (sound().replace("sha256 =", "sha265 ="), r"tool\.debian-12\.sha265: unknown key; did you mean 'sha256'"),
    (sound().replace(f'sha256 = "{ZEROS}"', ""), r"tool\.debian-12\.sha256: required, and missing"),
    *((sound(value), NO_HASH) for value in ("abc", "g" * 64, "0" * 63, "unlocked")),
    # every problem at once
    (
        sound("short").replace("schema_version = 2", "schema_version = 1"),
        r"schema_version: must be 2; tool\.debian-12\.sha256",
    ),
    ("schema_version = ", "cannot be read"),
    (sound() + OTHER, r"other\.debian-12\.archive = 'makr': no such archive of this base"),
    (LOCKED.replace('"a page"', '"a book"'), r"maker\.debian-12\.key_sources = .*: needs two public places"),
    (LOCKED.replace(".example", ".example/{day}"), r"maker\.debian-12\.day: required, and missing"),
)


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_mistake_in_the_file_is_refused_by_its_key(tmp_path, text, message):
    with pytest.raises(LockError, match=message):
        lock.load(lockfile(tmp_path, text))


@pytest.mark.parametrize(
    ("committed", "message"),
    [
        (
            "{stranger.armour}",
            r"keys/maker\.asc: fingerprint is {stranger.fingerprint}, versions\.toml has "
            r"maker\.debian-12\.key_fingerprint = '{maker.fingerprint}'",
        ),
        ("{maker.armour}{stranger.armour}", "fingerprint is {maker.fingerprint} {stranger.fingerprint}"),
        (None, "cannot be read: No such file"),
        ("a page that says 404", "no public key in armour"),
    ],
)
def test_what_is_committed_is_the_locked_key_alone(tmp_path, keys, committed, message):
    names = dict(zip(("maker", "stranger"), keys, strict=True))
    (tmp_path / "keys").mkdir()
    if committed is not None:
        (tmp_path / "keys/maker.asc").write_text(committed.format(**names))

    with pytest.raises(LockError, match=message.format(**names)):
        lock.load(lockfile(tmp_path, ARCHIVE.replace("{fingerprint}", names["maker"].fingerprint)))


def test_fingerprints_are_those_that_gpg_computes_and_a_key_that_is_cut_off_is_none(keys):
    shipped = [file.read_text() for file in (RECIPE / "keys").iterdir()]
    assert len(shipped) == 3

    for armour in (*shipped, *(key.armour for key in keys)):
        shown = ran(["gpg", "--show-keys", "--with-colons"], input=armour, check=True).stdout
        assert lock.fingerprints(armour) == re.findall(r"^pub.*\n(?:fpr:+(\w+):)", shown, flags=re.MULTILINE)
    with pytest.raises(ValueError, match="cut off"):
        lock.fingerprints("\n".join([*shipped[0].splitlines()[:8], "-----END PGP PUBLIC KEY BLOCK-----"]))


def test_a_file_passes_with_its_hash_and_is_refused_by_name_with_another(tmp_path):
    file = tmp_path / "tool.tar"
    file.write_bytes(b"content")

    lock.verify(file, hashlib.sha256(b"content").hexdigest())
    with pytest.raises(LockError, match=rf"tool\.tar: sha256 is .*, versions\.toml has {ZEROS}"):
        lock.verify(file, ZEROS)
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
    text, versions = lock.FILE.read_text(), {(each.name, each.base): each.version for each in lock.load()}

    changed = lock.with_values(text, "nvidia-driver", "ubuntu-24.04", {"version": "999.*"})

    before = versions["nvidia-driver", "ubuntu-24.04"]
    assert changed == text.replace(f'version = "{before}"', 'version = "999.*"')
    with pytest.raises(LockError, match=r'\[kernel."ubuntu-24.04"\] with a version is missing'):
        lock.with_values(text, "kernel", "ubuntu-24.04", {"version": "1"})


def asked_of_the_lockfile(target):
    """Artefacts that the steps of a target name, by the function of lib.sh that reads them."""
    order = (line.split() for line in (RECIPE / "steps/ORDER").read_text().splitlines())
    steps = [words[0] for words in order if target in words[1:] and words[0] != "#"]
    lines = [line for step in steps for line in (RECIPE / f"steps/{step}.sh").read_text().splitlines()]
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
    groups = tomllib.loads((RECIPE / "packages.toml").read_text())
    locked = [each for each in lock.load() if each.kind == "packages" and each.name != "archive"]

    assert [package.name for package in locked if not groups[package.name].get(package.base)] == []
