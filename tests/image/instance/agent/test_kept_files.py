"""Kept files reach the bucket, each once, and others are named."""

import os
import time
from pathlib import Path

import boto3
import pytest

from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.instance.agent import kept_files
from gpu_fleet_image.instance.agent.kept_files import CopyPlace, Saved, place, save
from tests.image.fake_aws import fake_aws

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
    an_hour_ago = time.time() - 3600
    for name, content in {"notes.txt": b"hello", "deep/über maß.bin": bytes(100)}.items():
        (tmp_path / "keep" / name).write_bytes(content)
        os.utime(tmp_path / "keep" / name, (an_hour_ago, an_hour_ago))
    return tmp_path / "keep"


def keys(s3):
    return {entry["Key"]: entry["Size"] for entry in s3.list_objects_v2(Bucket="data").get("Contents", [])}


def test_every_file_lies_under_pool_and_instance(s3, folder):
    calls = []

    assert save(folder, s3, PLACE, lambda: calls.append(1)) == Saved(2, 105, 0)
    assert keys(s3) == {"dev/keep/i-1/notes.txt": 5, "dev/keep/i-1/deep/über maß.bin": 100}
    assert calls, "progress is reported while bytes move"


def copied(s3, name="notes.txt"):
    return s3.get_object(Bucket="data", Key=f"dev/keep/i-1/{name}")["Body"].read()


@pytest.fixture
def again(s3, folder):
    """Make the first copy; return a function that copies again."""
    sent = {}
    save(folder, s3, PLACE, sent=sent)
    return lambda: save(folder, s3, PLACE, sent=sent)


def test_a_second_copy_sends_only_what_changed_was_replaced_or_what_the_bucket_lost(s3, folder, again):
    (folder / "notes.txt").write_text("hullo")

    assert again() == Saved(1, 5, 1)
    assert copied(s3) == b"hullo"
    assert again() == Saved(0, 0, 2)
    s3.delete_object(Bucket="data", Key="dev/keep/i-1/notes.txt")
    assert again() == Saved(1, 5, 1)
    # an older file of the same size in its place, as `mv`, `cp -p` and `rsync -a` put it
    better, hours_ago = folder.parent / "better.txt", time.time() - 7200
    better.write_text("hallo")
    os.utime(better, (hours_ago, hours_ago))
    better.replace(folder / "notes.txt")
    again()
    assert copied(s3) == b"hallo"


def before_upload(monkeypatch, s3, act):
    """Run an action before the bucket takes the notes, and its result after it."""
    upload = s3.upload_file

    def upload_file(path, bucket, key, **options):
        after = act() if key.endswith("notes.txt") else None
        upload(path, bucket, key, **options)
        if after:
            after()

    monkeypatch.setattr(s3, "upload_file", upload_file)


def test_what_changes_while_it_is_copied_is_not_saved_yet(s3, folder, monkeypatch):
    sent = {}
    with monkeypatch.context() as patched:
        before_upload(patched, s3, lambda: lambda: (folder / "notes.txt").write_text("hello, and more"))
        with pytest.raises(CloudError, match=r"1 of 2 files .*notes\.txt: changed while it was copied"):
            save(folder, s3, PLACE, sent=sent)

    assert save(folder, s3, PLACE, sent=sent) == Saved(1, 15, 1)
    assert copied(s3) == b"hello, and more"


@pytest.mark.parametrize("call", [(os, "scandir", "deep"), (Path, "lstat", "notes.txt")])
def test_what_cannot_be_listed_or_looked_at_is_named_and_not_passed_over(s3, folder, monkeypatch, call):
    module, name, file = call
    whole = getattr(module, name)

    def broken(path):
        if str(path).endswith(file):
            raise OSError(5, "Input/output error", str(path))
        return whole(path)

    monkeypatch.setattr(module, name, broken)

    with pytest.raises(CloudError, match=rf"were not saved: .*Input/output error.*{file}"):
        save(folder, s3, PLACE)


def test_a_pipe_is_passed_over_and_links_that_anybody_may_put_there_are_not_followed_by_root(s3, folder):
    os.mkfifo(folder / "pipe")
    (folder / "everything").symlink_to("/etc")
    (folder / "passwords").symlink_to("/etc/passwd")

    assert save(folder, s3, PLACE).files == 2


@pytest.fixture
def secret(tmp_path):
    """Create a folder and a file of root, outside of the kept folders."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/shadow").write_text("root:hash")
    return tmp_path / "etc/shadow"


def swap(path, target):
    """Replace a file by a link, as a user may between the agent's check of a name and its opening."""
    path.rename(path.with_name("aside"))
    path.symlink_to(target)


def pipe(path, _):
    """Replace a file by a pipe, whose opening waits for a writer."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "placed", [(swap, "notes.txt", "shadow"), (swap, "deep", "."), (pipe, "notes.txt", "")]
)
def test_what_is_put_in_place_of_what_was_looked_at_is_not_waited_for_and_uploads_nothing_of_roots(
    s3, folder, secret, monkeypatch, placed
):
    put, name, target = placed
    (folder / "deep/shadow").write_text("mine")
    listed = kept_files._listed

    def then_swap(*arguments):
        put(folder / name, secret.parent / target)
        return listed(*arguments)

    monkeypatch.setattr(kept_files, "_listed", then_swap)

    with pytest.raises(CloudError, match="were not saved") as refused:
        save(folder, s3, PLACE)
    assert put is swap or "no regular file" in str(refused.value)
    assert all(b"root:hash" not in copied(s3, key.removeprefix(PLACE.prefix)) for key in keys(s3))


def test_a_link_put_in_place_of_an_opened_file_uploads_what_was_opened(s3, folder, secret, monkeypatch):
    before_upload(monkeypatch, s3, lambda: swap(folder / "notes.txt", secret))

    with pytest.raises(CloudError, match="changed while it was copied"):
        save(folder, s3, PLACE)
    assert copied(s3) == b"hello"


def test_a_link_in_place_of_the_whole_folder_is_not_followed(s3, tmp_path, secret):
    (tmp_path / "kept").symlink_to(secret.parent)

    with pytest.raises(CloudError, match="were not saved"):
        save(tmp_path / "kept", s3, PLACE)
    assert keys(s3) == {}


def test_what_cannot_be_read_is_named_and_the_rest_is_saved(s3, folder, monkeypatch):
    def refuse():
        raise PermissionError(13, "Permission denied", "notes.txt")

    before_upload(monkeypatch, s3, refuse)

    with pytest.raises(CloudError, match=r"1 of 2 files of .*keep were not saved: .*notes\.txt.*Permission"):
        save(folder, s3, PLACE)
    assert list(keys(s3)) == ["dev/keep/i-1/deep/über maß.bin"]


def test_a_missing_bucket_is_named_and_a_missing_folder_has_nothing_to_save(s3, folder):
    assert save(folder / "none", s3, PLACE) == Saved(0, 0, 0)
    with pytest.raises(CloudError, match=r"listing s3://gone/x/: .*NoSuchBucket"):
        save(folder, s3, CopyPlace("gone", "x/"))


def test_the_place_is_below_the_data_uri_which_names_a_bucket():
    places = {"s3://data": "dev/keep/i/", "s3://data/team/a/": "team/a/dev/keep/i/"}

    assert {uri: place(uri, "dev", "i") for uri in places} == {
        uri: CopyPlace("data", prefix) for uri, prefix in places.items()
    }
    for uri in ("", "data", "gs://data", "s3://", "oss://"):
        with pytest.raises(ConfigurationError, match="data_uri = "):
            place(uri, "dev", "i")
