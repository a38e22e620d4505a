"""``gpu-fleet image lock --update`` against archives and pages that lie here; apt itself reads them."""

import hashlib
import re
import shutil

import pytest
from click.testing import CliRunner

from gpu_fleet_image.recipe import build_requirements, lock, lock_command, payload
from tests.image.recipe import archives
from tests.image.recipe.test_lock import asked_of_the_lockfile

IMAGE = payload.PROJECT / "image" / "gpu_fleet_image" / "recipe"
DRIVER = "nvidia-headless-no-dkms-580-server-open"
CUDA = {
    "nvlsm": ["2025.06.10-1", "2025.10.11-1"],
    "datacenter-gpu-manager-4-core": ["1:4.5.3-1", "1:4.10.0-1"],
    "datacenter-gpu-manager-exporter": ["4.8.2-1"],
}
# What the copy says at first, whatever the lockfile that is shipped says by now.
BEFORE = {
    "ubuntu-archive": {"day": "20261121T000000Z"},
    "nvidia-driver": {"version": "580.*"},
    "nvlsm": {"version": "2025.06.10-1"},
    "dcgm": {"version": "1:4.5.3-1"},
    "dcgm-exporter": {"version": "4.8.2-1"},
    "container-toolkit": {"version": "1.19.1-1"},
    "efa-installer": {"version": "1.50.0"},
    "erdma-installer": {"version": "1.5.7", "sha256": "a" * 64},
    "micromamba": {"version": "2.9.0-0", "sha256": "c" * 64},
}
SUITES = ("noble", "noble-updates", "noble-security")
COMPONENTS = ("main", "restricted", "universe", "multiverse")
PAGE = """<table><tr><td>1.5.7</td><td><a href="x">http://mirrors/erdma/erdma_installer-1.5.7.tar.gz</a></td>
<td><li>MD5: 926e</li><li>SHA256:&nbsp;{old}</li></td></tr><tr><td>1.5.10</td>
<td>http://mirrors/erdma/erdma_installer-1.5.10.tar.gz</td><td>SHA256: {new}</td></tr></table>"""


def copied(folder):
    """A copy of the lockfile beside what belongs to it."""
    for name in ("keys", "wheels"):
        shutil.copytree(IMAGE / name, folder / name)
    for name in ("packages.toml", "versions.toml"):
        shutil.copy(IMAGE / name, folder)
    return folder / "versions.toml"


class Shelf:
    """A copy of the lockfile, and everything it names: archives by path, files over HTTP."""

    def __init__(self, folder, url, keys):
        self.folder, self.url = folder, url
        self.maker, self.stranger = keys
        self.lockfile = copied(folder / "image/gpu_fleet_image/recipe")
        text = self.lockfile.read_text()
        for name, values in BEFORE.items():
            text = lock.with_values(text, name, "ubuntu-24.04", values)
        for artefact in lock.load():
            for address in {artefact.uri, artefact.url, artefact.page, artefact.key_url} - {""}:
                text = text.replace(f'"{address}"', f'"{self._own(artefact, address)}"')
            if artefact.key_fingerprint:
                text = text.replace(artefact.key_fingerprint, self.maker.fingerprint)
        self.lockfile.write_text(text)
        for file in self.lockfile.with_name("keys").iterdir():
            file.write_text(self.maker.armour)
        self.publish()

    def _own(self, artefact, address):
        if artefact.kind == "archive":
            return f"file:{self.folder}/{artefact.name}" + ("/{day}" if "{day}" in address else "")
        folder, _, name = address.rstrip("/").rpartition("/")
        return f"{self.url}/{'{version}/' if folder.endswith('/{version}') else ''}{name}"

    def publish(self):
        ubuntu = self.folder / "ubuntu-archive" / "20261124T000000Z"
        archives.publish(ubuntu, {DRIVER: ["580.95.05-1", "580.126.09-1"]}, self.maker, SUITES, COMPONENTS)
        archives.publish(self.folder / "nvidia-cuda", CUDA, self.maker)
        toolkit = {"nvidia-container-toolkit": ["1.19.1-1", "1.20.0-1"]}
        archives.publish(self.folder / "nvidia-container-toolkit", toolkit, self.maker)
        for version in ("1.50.0", "1.51.0", "1.51.1"):
            (self.folder / f"aws-efa-installer-{version}.tar.gz.sig").touch()
        (self.folder / "aws-efa-installer.key").write_text(self.maker.armour)
        (self.folder / "erdma-usage").write_text(PAGE.format(old="a" * 64, new="b" * 64))
        for version, digest in (("2.9.0-0", "c"), ("2.9.0-1", "d"), ("2.10.0-0", "e")):
            (self.folder / version).mkdir(exist_ok=True)
            (self.folder / version / "micromamba-linux-64.sha256").write_text(digest * 64 + "\n")

    def update(self):
        return CliRunner().invoke(lock_command.main, ["--update", "--lockfile", str(self.lockfile)])

    def locked(self):
        return {
            artefact.name: artefact
            for artefact in lock.load(self.lockfile)
            if artefact.base == "ubuntu-24.04"
        }


@pytest.fixture
def shelf(tmp_path, keys, monkeypatch):
    if build_requirements.no_apt() is not None:
        pytest.skip(build_requirements.no_apt())

    class Clock(lock_command.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 24, 7, 30, tzinfo=tz)

    monkeypatch.setattr(lock_command, "datetime", Clock)
    with archives.serving(tmp_path) as url:
        yield Shelf(tmp_path, url, keys)


def test_everything_newer_is_written_and_the_steps_of_both_clouds_find_all_they_ask_for(shelf):
    before = lock.FILE.read_text()

    said = shelf.update()

    assert said.exit_code == 0, said.output
    now = shelf.locked()
    assert now["ubuntu-archive"].day == "20261124T000000Z"
    assert now["nvidia-driver"].version == "580.*"
    versions = {
        name: value.version for name, value in now.items() if value.kind in ("packages", "signed", "hashed")
    }
    assert versions == {
        "nvidia-driver": "580.*",
        "nvlsm": "2025.10.11-1",
        "dcgm": "1:4.10.0-1",
        "dcgm-exporter": "4.8.2-1",
        "container-toolkit": "1.20.0-1",
        "efa-installer": "1.51.1",
        "erdma-installer": "1.5.10",
        "micromamba": "2.10.0-0",
    }
    assert now["erdma-installer"].sha256 == "b" * 64
    assert now["micromamba"].sha256 == "e" * 64
    assert "efa-installer: version 1.50.0 -> 1.51.1" in said.output
    written = shelf.lockfile.read_text()
    # what people wrote stays: remarks, order, the other base
    remarks = [[line for line in text.splitlines() if line.startswith("#")] for text in (before, written)]
    assert remarks[0] == remarks[1]
    assert lock.FILE.read_text() == before
    again = shelf.update()
    assert (again.exit_code, "->" in again.output, shelf.lockfile.read_text()) == (0, False, written)
    rows = [line.split("\t") for line in lock.tsv(lock.load(shelf.lockfile), "ubuntu-24.04").splitlines()]
    assert {name for name, *_ in rows} >= asked_of_the_lockfile("aws") | asked_of_the_lockfile("alicloud")
    assert [row for row in rows if not all(row)] == []
    fields = {(name, field): value for name, field, value in rows}
    assert fields["efa-installer", "url"].endswith("/aws-efa-installer-1.51.1.tar.gz")
    assert fields["ubuntu-archive", "uri"].endswith("/{day}")


def listed_otherwise(shelf):
    listing = shelf.folder / "nvidia-cuda/Packages"
    listing.write_text(listing.read_text().replace("4.10.0", "4.99.0"))
    (shelf.folder / "nvidia-cuda/Packages.gz").unlink()


def another_branch(shelf):
    ubuntu = shelf.folder / "ubuntu-archive" / "20261124T000000Z"
    archives.publish(ubuntu, {DRIVER: ["590.1-1"]}, shelf.maker, SUITES, COMPONENTS)


def gone(file):
    return lambda shelf: (shelf.folder / file).unlink()


def instead(file, text):
    return lambda shelf: (shelf.folder / file).write_text(text or shelf.stranger.armour)


# what a maker does -> (what is done, what the error says, whose version stays)
WRONG = {
    "signs no more": (gone("nvidia-cuda/InRelease"), "nvidia-cuda: file:.* is not signed", "dcgm"),
    "is another": (
        lambda shelf: archives.publish(shelf.folder / "nvidia-cuda", CUDA, shelf.stranger),
        "nvidia-cuda: .*NO_PUBKEY",
        "nvlsm",
    ),
    "lists other than was signed": (listed_otherwise, "nvidia-cuda: ", "dcgm"),
    "gives a branch up": (
        another_branch,
        rf"nvidia-driver\.ubuntu-24\.04\.version = '580\.\*': file:.*has for {DRIVER} 590\.1-1",
        "ubuntu-archive",
    ),
    "removes a signed file": (
        gone("aws-efa-installer-1.50.0.tar.gz.sig"),
        r"efa-installer\.ubuntu-24\.04\.version = '1\.50\.0': ",
        "efa-installer",
    ),
    "removes a hash": (
        gone("2.9.0-0/micromamba-linux-64.sha256"),
        r"micromamba\.ubuntu-24\.04\.version = '2\.9\.0-0': ",
        "micromamba",
    ),
    "writes no hash": (
        instead("2.10.0-0/micromamba-linux-64.sha256", "<html>Not Found</html>"),
        r".*micromamba-linux-64\.sha256 begins with no SHA-256",
        "micromamba",
    ),
    "changes the key": (
        instead("aws-efa-installer.key", ""),
        r".*aws-efa-installer\.key: fingerprint is [0-9A-F]{40}",
        "efa-installer",
    ),
    "moves the page": (
        instead("erdma-usage", "<p>moved</p>"),
        r".*lists no erdma_installer-\{version\}\.tar\.gz with SHA256",
        "erdma-installer",
    ),
}


@pytest.mark.parametrize("maker", WRONG)
def test_what_a_maker_does_wrong_is_one_message_and_holds_up_no_other_artefact(shelf, maker):
    spoil, message, stays = WRONG[maker]
    before = shelf.locked()[stays]
    spoil(shelf)

    said = shelf.update()

    assert said.exit_code == 1
    assert len(re.findall("^error: ", said.output, re.MULTILINE)) == 1
    assert re.search(f"error: {message}", " ".join(said.output.split())), said.output
    assert shelf.locked()[stays] == before
    assert shelf.locked()["container-toolkit"].version == "1.20.0-1"


def test_the_command_lists_what_holds_everything():
    said = CliRunner().invoke(lock_command.main, [], env={"COLUMNS": "200"})

    assert said.exit_code == 0
    for artefact in lock.load():
        assert artefact.name in said.output
        assert artefact.sha256[:16] in said.output
        assert artefact.key_fingerprint[-16:] in said.output


def test_a_list_of_wheels_that_was_changed_by_hand_is_refused(tmp_path):
    lockfile, listing = copied(tmp_path), tmp_path / "wheels/debian-12.txt"
    listing.write_text(listing.read_text() + "# mine\n")

    said = CliRunner().invoke(lock_command.main, ["--lockfile", str(lockfile)])

    assert said.exit_code == 1
    assert hashlib.sha256(listing.read_bytes()).hexdigest() in said.output
