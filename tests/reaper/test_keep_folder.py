"""Kept files reach the bucket, each once, and what did not is named."""

import os
import time

import boto3
import pytest

from image.reaper.agent.keep_folder import Place, Saved, place, save
from image.reaper.errors import CloudError, ConfigurationError
from tests.reaper.fake_aws import fake_aws

PLACE = Place("data", "keep/aws-dev/i-1/")


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


def test_every_file_lies_under_stack_and_machine(s3, folder):
    assert save(folder, s3, PLACE) == Saved(2, 105, 0)
    assert keys(s3) == {"keep/aws-dev/i-1/notes.txt": 5, "keep/aws-dev/i-1/deep/über maß.bin": 100}


def test_a_second_copy_sends_only_what_changed(s3, folder):
    save(folder, s3, PLACE)
    (folder / "notes.txt").write_text("hullo")
    later = time.time() + 60
    os.utime(folder / "notes.txt", (later, later))

    assert save(folder, s3, PLACE) == Saved(1, 5, 1)
    assert s3.get_object(Bucket="data", Key="keep/aws-dev/i-1/notes.txt")["Body"].read() == b"hullo"


def test_a_missing_folder_has_nothing_to_save(s3, tmp_path):
    assert save(tmp_path / "none", s3, PLACE) == Saved(0, 0, 0)


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd"])
def test_a_link_that_anybody_may_put_there_is_not_followed_by_root(s3, folder, target):
    (folder / "everything").symlink_to(target)

    assert save(folder, s3, PLACE).files == 2


def test_what_cannot_be_read_is_named_and_the_rest_is_saved(s3, folder, monkeypatch):
    upload = s3.upload_file

    def refuse(path, *arguments, **options):
        if path.endswith("notes.txt"):
            raise PermissionError(13, "Permission denied", path)
        upload(path, *arguments, **options)

    monkeypatch.setattr(s3, "upload_file", refuse)

    with pytest.raises(CloudError, match=r"1 of 2 files of .*keep were not saved: .*notes\.txt.*Permission"):
        save(folder, s3, PLACE)
    assert list(keys(s3)) == ["keep/aws-dev/i-1/deep/über maß.bin"]


def test_a_missing_bucket_is_named(s3, folder):
    with pytest.raises(CloudError, match=r"listing s3://gone/x/: .*NoSuchBucket"):
        save(folder, s3, Place("gone", "x/"))


def test_progress_is_told_while_bytes_move(s3, folder):
    calls = []

    save(folder, s3, PLACE, lambda: calls.append(1))

    assert calls


@pytest.mark.parametrize(
    ("uri", "prefix"), [("s3://data", "keep/s/i/"), ("s3://data/team/a/", "team/a/keep/s/i/")]
)
def test_the_place_is_below_the_data_uri(uri, prefix):
    assert place(uri, "s", "i") == Place("data", prefix)


@pytest.mark.parametrize("uri", ["", "data", "gs://data", "s3://", "oss://"])
def test_a_data_uri_that_names_no_bucket_is_refused(uri):
    with pytest.raises(ConfigurationError, match="data_uri = "):
        place(uri, "s", "i")
