"""Assets and archives as bytes."""

import io
import os
import zipfile

import pulumi
import pytest

from gpu_fleet_stacks.rehearsal.archives import archive_files, asset_bytes, zip_bytes
from gpu_fleet_stacks.rehearsal.errors import RehearsalError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "reaper").mkdir()
    (tmp_path / "reaper" / "handler.py").write_text("def handle(): ...")
    (tmp_path / "notes.txt").write_text("notes")
    return tmp_path


def test_an_archive_holds_its_files_and_folders_by_path(folder):
    archive = pulumi.AssetArchive(
        {
            "image": pulumi.FileArchive(str(folder)),
            "policy.json": pulumi.StringAsset("{}"),
            "notes": pulumi.FileAsset(str(folder / "notes.txt")),
        }
    )

    assert archive_files(archive) == {
        "image/notes.txt": b"notes",
        "image/reaper/handler.py": b"def handle(): ...",
        "notes": b"notes",
        "policy.json": b"{}",
    }


def test_a_zip_on_disk_is_an_archive(folder):
    path = folder / "bundle.zip"
    path.write_bytes(zip_bytes(pulumi.AssetArchive({"a.txt": pulumi.StringAsset("a")})))

    assert archive_files(pulumi.FileArchive(str(path))) == {"a.txt": b"a"}


def test_a_zip_can_be_read_and_equal_content_gives_equal_bytes_whatever_the_clock_says(folder):
    content = zip_bytes(pulumi.FileArchive(str(folder)))
    os.utime(folder / "notes.txt", (1, 1))

    assert zip_bytes(pulumi.FileArchive(str(folder))) == content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["notes.txt", "reaper/handler.py"]


def test_what_is_remote_is_refused():
    with pytest.raises(RehearsalError, match="RemoteAsset"):
        asset_bytes(pulumi.RemoteAsset("https://example.com/a"))
    with pytest.raises(RehearsalError, match="RemoteArchive"):
        archive_files(pulumi.RemoteArchive("https://example.com/a.zip"))
