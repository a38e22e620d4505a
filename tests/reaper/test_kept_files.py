"""Kept files reach the bucket, each once, and what did not is named."""

import os
import time
from pathlib import Path

import boto3
import pytest

from image.reaper.agent import kept_files
from image.reaper.agent.kept_files import CopyPlace, Saved, place, save
from image.reaper.errors import CloudError, ConfigurationError
from tests.reaper.fake_aws import fake_aws

PLACE = CopyPlace("data", "dev/keep/i-1/")


@pytest.fixture
def s3():
    with fake_aws():
        client = boto3.client("s3", "us-east-1")
        client.create_bucket(Bucket="data")
        yield client


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "keep/deep").mkdir(parents=True)
    (tmp_path / "keep/notes.txt").write_text("hello")
    (tmp_path / "keep/deep/über maß.bin").write_bytes(bytes(100))
    an_hour_ago = time.time() - 3600
    for path in ("keep/notes.txt", "keep/deep/über maß.bin"):
        os.utime(tmp_path / path, (an_hour_ago, an_hour_ago))
    return tmp_path / "keep"


def keys(s3):
    return {entry["Key"]: entry["Size"] for entry in s3.list_objects_v2(Bucket="data").get("Contents", [])}


def test_every_file_lies_under_pool_and_instance(s3, folder):
    assert save(folder, s3, PLACE) == Saved(2, 105, 0)
    assert keys(s3) == {"dev/keep/i-1/notes.txt": 5, "dev/keep/i-1/deep/über maß.bin": 100}


def again(s3, folder, sent):
    return save(folder, s3, PLACE, sent=sent)


def copied(s3, name="notes.txt"):
    return s3.get_object(Bucket="data", Key=f"dev/keep/i-1/{name}")["Body"].read()


def test_a_second_copy_sends_only_what_changed(s3, folder):
    sent = {}
    again(s3, folder, sent)
    (folder / "notes.txt").write_text("hullo")

    assert again(s3, folder, sent) == Saved(1, 5, 1)
    assert copied(s3) == b"hullo"
    assert again(s3, folder, sent) == Saved(0, 0, 2)


def test_an_older_file_of_the_same_size_that_was_put_in_place_of_another_is_sent(s3, folder):
    """As `mv`, `cp -p` and `rsync -a` do it: checkpoints are all of one size."""
    sent = {}
    again(s3, folder, sent)
    better, hours_ago = folder.parent / "better.txt", time.time() - 7200
    better.write_text("hullo")
    os.utime(better, (hours_ago, hours_ago))
    better.replace(folder / "notes.txt")

    again(s3, folder, sent)

    assert copied(s3) == b"hullo"


def test_what_the_bucket_lost_is_sent_again(s3, folder):
    sent = {}
    again(s3, folder, sent)
    s3.delete_object(Bucket="data", Key="dev/keep/i-1/notes.txt")

    assert again(s3, folder, sent) == Saved(1, 5, 1)


def test_what_changes_while_it_is_copied_is_not_saved_yet(s3, folder, monkeypatch):
    sent, upload = {}, s3.upload_file

    def write_on(path, bucket, key, **options):
        upload(path, bucket, key, **options)
        if key.endswith("notes.txt"):
            (folder / "notes.txt").write_text("hello, and more")

    with monkeypatch.context() as patched:
        patched.setattr(s3, "upload_file", write_on)
        with pytest.raises(CloudError, match=r"1 of 2 files .*notes\.txt: changed while it was copied"):
            again(s3, folder, sent)

    assert again(s3, folder, sent) == Saved(1, 15, 1)
    assert copied(s3) == b"hello, and more"


def test_a_folder_that_cannot_be_listed_is_named_and_not_passed_over(s3, folder, monkeypatch):
    scandir = os.scandir

    def broken(path):
        if str(path).endswith("deep"):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)

    with pytest.raises(CloudError, match=r"were not saved: .*Input/output error.*deep"):
        save(folder, s3, PLACE)


def test_a_file_that_cannot_be_looked_at_is_named(s3, folder, monkeypatch):
    lstat = Path.lstat

    def broken(path):
        if path.name == "notes.txt":
            raise OSError(5, "Input/output error", str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", broken)

    with pytest.raises(CloudError, match=r"were not saved: .*Input/output error.*notes"):
        save(folder, s3, PLACE)


def test_a_pipe_is_passed_over(s3, folder):
    os.mkfifo(folder / "pipe")

    assert save(folder, s3, PLACE).files == 2


def test_a_missing_folder_has_nothing_to_save(s3, tmp_path):
    assert save(tmp_path / "none", s3, PLACE) == Saved(0, 0, 0)


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd"])
def test_a_link_that_anybody_may_put_there_is_not_followed_by_root(s3, folder, target):
    (folder / "everything").symlink_to(target)

    assert save(folder, s3, PLACE).files == 2


@pytest.fixture
def secret(tmp_path):
    """A folder and a file of root's, outside of what users keep."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/shadow").write_text("root:hash")
    return tmp_path / "etc/shadow"


def swap(path, target):
    """What a user does in the moment between the agent's look at a name and its opening."""
    path.rename(path.with_name("aside"))
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["notes.txt", "deep"])
def test_a_link_put_in_place_of_what_was_looked_at_uploads_nothing_of_roots(
    s3, folder, secret, monkeypatch, name
):
    (folder / "deep/shadow").write_text("mine")
    listed = kept_files._listed

    def then_swap(*arguments):
        swap(folder / name, secret.parent if name == "deep" else secret)
        return listed(*arguments)

    monkeypatch.setattr(kept_files, "_listed", then_swap)

    with pytest.raises(CloudError, match="were not saved"):
        save(folder, s3, PLACE)
    assert all(b"root:hash" not in copied(s3, key.removeprefix(PLACE.prefix)) for key in keys(s3))


def test_a_link_put_in_place_of_an_opened_file_uploads_what_was_opened(s3, folder, secret, monkeypatch):
    upload = s3.upload_file

    def swap_first(path, bucket, key, **options):
        if key.endswith("notes.txt"):
            swap(folder / "notes.txt", secret)
        upload(path, bucket, key, **options)

    monkeypatch.setattr(s3, "upload_file", swap_first)

    with pytest.raises(CloudError, match="changed while it was copied"):
        save(folder, s3, PLACE)
    assert copied(s3) == b"hello"


def test_a_pipe_put_in_place_of_a_file_is_not_waited_for(s3, folder, monkeypatch):
    listed = kept_files._listed

    def then_swap(*arguments):
        (folder / "notes.txt").unlink()
        os.mkfifo(folder / "notes.txt")
        return listed(*arguments)

    monkeypatch.setattr(kept_files, "_listed", then_swap)

    with pytest.raises(CloudError, match=r"notes\.txt.*no regular file"):
        save(folder, s3, PLACE)


def test_a_link_in_place_of_the_whole_folder_is_not_followed(s3, tmp_path, secret):
    (tmp_path / "kept").symlink_to(secret.parent)

    with pytest.raises(CloudError, match="were not saved"):
        save(tmp_path / "kept", s3, PLACE)
    assert keys(s3) == {}


def test_what_cannot_be_read_is_named_and_the_rest_is_saved(s3, folder, monkeypatch):
    upload = s3.upload_file

    def refuse(path, bucket, key, **options):
        if key.endswith("notes.txt"):
            raise PermissionError(13, "Permission denied", key)
        upload(path, bucket, key, **options)

    monkeypatch.setattr(s3, "upload_file", refuse)

    with pytest.raises(CloudError, match=r"1 of 2 files of .*keep were not saved: .*notes\.txt.*Permission"):
        save(folder, s3, PLACE)
    assert list(keys(s3)) == ["dev/keep/i-1/deep/über maß.bin"]


def test_a_missing_bucket_is_named(s3, folder):
    with pytest.raises(CloudError, match=r"listing s3://gone/x/: .*NoSuchBucket"):
        save(folder, s3, CopyPlace("gone", "x/"))


def test_progress_is_reported_while_bytes_move(s3, folder):
    calls = []

    save(folder, s3, PLACE, lambda: calls.append(1))

    assert calls


@pytest.mark.parametrize(
    ("uri", "prefix"), [("s3://data", "dev/keep/i/"), ("s3://data/team/a/", "team/a/dev/keep/i/")]
)
def test_the_place_is_below_the_data_uri(uri, prefix):
    assert place(uri, "dev", "i") == CopyPlace("data", prefix)


@pytest.mark.parametrize("uri", ["", "data", "gs://data", "s3://", "oss://"])
def test_a_data_uri_that_names_no_bucket_is_refused(uri):
    with pytest.raises(ConfigurationError, match="data_uri = "):
        place(uri, "dev", "i")
