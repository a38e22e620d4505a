"""`gpu-fleet data` over moto: what arrives, what stays, what a kill leaves, what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.data import bucket as buckets
from gpu_fleet_image.console.data import upload
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.rehearsal.moto_server import moto_server

ACCOUNT, REGION = "123456789012", "us-east-1"
BUCKET = f"gpu-fleet-test-data-{ACCOUNT}"
WHERE = ("--stack", "test", "--region", REGION, "--cloud", "aws", "--account", ACCOUNT)


@pytest.fixture(scope="module")
def cloud():
    with moto_server(REGION):
        yield boto3.client("s3", REGION)


@pytest.fixture
def s3(cloud, tmp_path, monkeypatch):
    """An empty data bucket, and a laptop's folder with a data set."""
    cloud.create_bucket(Bucket=BUCKET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(upload, "PART_BYTES", 5 << 20)  # the least of S3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, text in {"a.txt": "one", "sub/b c.txt": "two", "sub/=c%20": "three"}.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text(text)
    yield cloud
    for each in cloud.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        cloud.delete_object(Bucket=BUCKET, Key=each["Key"])
    cloud.delete_bucket(Bucket=BUCKET)


@pytest.fixture
def client(s3, monkeypatch):
    """The command's own client of the bucket, for a test to change."""
    made = buckets.clouds.bucket_client("aws", REGION)
    monkeypatch.setattr(buckets.clouds, "bucket_client", lambda *_: made)
    return made


# the third part ends the process, once the record has the second
KILLED = """
import os, signal, time
from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.data import upload
md5, seen = upload._md5, []
def third_kills(content):
    seen.append(1)
    if len(seen) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return md5(content)
upload._md5, upload.AT_ONCE, upload.PART_BYTES = third_kills, 1, 5 << 20
main()
"""


def say(*words):
    return CliRunner().invoke(main, ["data", *words, *WHERE])


def there(s3):
    return sorted(each["Key"] for each in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()))


def files_below(folder):
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_folder_comes_back_as_it_was_and_a_second_time_nothing_moves(s3):
    put, again = say("put", "set", "digits"), say("put", "set", "digits")
    got, once_more = say("get", "digits", "copy"), say("get", "digits", "copy")

    assert put.output == f"s3://{BUCKET}/shared/digits/: 3 files uploaded, 11 bytes; 0 were there\n"
    assert again.output == f"s3://{BUCKET}/shared/digits/: 0 files uploaded, 0 bytes; 3 were there\n"
    assert (got.exit_code, got.output) == (0, "copy: 3 files downloaded, 11 bytes; 0 were there\n")
    assert once_more.output == "copy: 0 files downloaded, 0 bytes; 3 were there\n"
    assert files_below(Path("copy")) == files_below(Path("set"))


def test_secrets_and_repositories_stay_and_are_named(s3):
    for name in (".env", ".git/config", "key.txt"):
        (Path("set") / name).parent.mkdir(exist_ok=True)
        (Path("set") / name).write_text("-----BEGIN PRIVATE KEY-----")

    done = say("put", "set", "digits")

    assert "left out: .env, .git, key.txt" in done.output
    assert len(there(s3)) == 3


def test_a_link_that_leads_out_is_refused_before_anything_is_uploaded(s3, tmp_path):
    (tmp_path / "set/out").symlink_to("/etc")

    done = say("put", "set", "digits")

    assert done.exit_code == 1
    assert done.output.startswith("error: PATH 'set': 'out' is a link that leads out of")
    assert there(s3) == []


def test_other_content_stays_on_both_sides_without_replace(s3):
    say("put", "set", "digits")
    Path("set/a.txt").write_text("changed")
    refused = say("put", "set", "digits")
    stays = s3.get_object(Bucket=BUCKET, Key="shared/digits/a.txt")["Body"].read()
    kept = say("get", "digits", "set")

    assert (refused.exit_code, kept.exit_code) == (1, 1)
    assert refused.output.endswith("error: other content is there, and stays without --replace: a.txt\n")
    assert (stays, Path("set/a.txt").read_text()) == (b"one", "changed")
    assert say("put", "set", "digits", "--replace").exit_code == 0
    assert s3.get_object(Bucket=BUCKET, Key="shared/digits/a.txt")["Body"].read() == b"changed"


def test_content_that_differs_from_its_checksum_does_not_arrive(s3):
    say("put", "set", "digits")
    wrong = s3.head_object(Bucket=BUCKET, Key="shared/digits/a.txt")["Metadata"]
    s3.put_object(Bucket=BUCKET, Key="shared/digits/a.txt", Body=b"two", Metadata=wrong)

    got = say("get", "digits", "copy")

    assert got.exit_code == 1
    assert "error: a.txt: its checksum is not that of the upload; get it again\n" in got.output
    assert not Path("copy/a.txt").exists()
    assert len(files_below(Path("copy"))) == 2


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out", "a//b"])
def test_a_name_that_leads_out_of_the_folder_is_not_written(s3, name, tmp_path):
    s3.put_object(Bucket=BUCKET, Key=f"shared/digits/{name}", Body=b"x")

    got = say("get", "digits", "copy")

    assert got.exit_code == 1
    assert f"{name}: its name leads out of the folder" in got.output
    assert files_below(tmp_path / "copy") == {}
    assert not (tmp_path / "out").exists()


def test_a_link_of_the_folder_leads_no_download_out(s3, tmp_path):
    say("put", "set", "digits")
    (tmp_path / "copy").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy/sub").symlink_to(tmp_path / "elsewhere")

    got = say("get", "digits", "copy")

    assert got.exit_code == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_pipe_is_not_taken_for_the_file_of_the_same_size(s3, make):
    Path("copy").mkdir()
    make("copy/x")
    s3.put_object(Bucket=BUCKET, Key="shared/digits/x", Body=bytes(Path("copy/x").stat().st_size))

    got = say("get", "digits", "copy")

    assert got.exit_code == 1
    assert "error: other content is there, and stays without --replace: x" in got.output


def test_an_upload_that_was_killed_continues_with_the_missing_parts(client, tmp_path):
    """The parts that the bucket had confirmed are not sent again."""
    Path("big.bin").write_bytes(os.urandom(4 * upload.PART_BYTES + 5))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "data", "put", "big.bin", "big", *WHERE], check=False, timeout=60
    )
    (record,) = (tmp_path / "cache/gpu-fleet/uploads").glob("*.json")
    confirmed = set(json.loads(record.read_text())["parts"])
    sent = []
    client.meta.events.register(
        "before-parameter-build.s3.UploadPart", lambda params, **_: sent.append(params["PartNumber"])
    )
    done = say("put", "big.bin", "big")

    assert killed.returncode == -signal.SIGKILL
    assert confirmed == {"1", "2"}
    assert (done.exit_code, sorted(sent)) == (0, [3, 4, 5])
    assert not record.exists()
    assert say("get", "big", "copy").exit_code == 0
    assert Path("copy/big.bin").read_bytes() == Path("big.bin").read_bytes()


def test_a_large_file_that_changes_while_it_is_sent_is_never_stored_under_the_checksum_before(
    s3, monkeypatch
):
    before, part = bytes(upload.PART_BYTES + 1), upload._md5
    Path("big.bin").write_bytes(before)

    def changes(content):
        Path("big.bin").write_bytes(b"x" * len(before))
        return part(content)

    with monkeypatch.context() as patch:
        patch.setattr(upload, "_md5", changes)
        refused = say("put", "big.bin", "big")

    assert refused.exit_code == 1
    assert refused.output.endswith("error: big.bin: it changed while it was read; upload it again\n")
    assert there(s3) == []
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET), "and its parts cost nothing"
    assert say("put", "big.bin", "big").exit_code == 0, "the advice works, without --replace"


@pytest.mark.parametrize("size", [3, (5 << 20) + 1])
def test_of_two_uploads_at_once_the_later_one_does_not_replace_the_other_s_file(
    s3, client, size, monkeypatch
):
    Path("mine").write_bytes(bytes(size))
    conditions = []

    def overtaken(name):
        real = getattr(client, name)

        def call(**arguments):
            conditions.append(arguments.get("IfNoneMatch"))
            s3.put_object(Bucket=BUCKET, Key=arguments["Key"], Body=b"theirs")
            if "UploadId" in arguments:  # moto completes whatever is there
                raise ClientError({"Error": {"Code": "PreconditionFailed", "Message": "there"}}, name)
            return real(**arguments)

        monkeypatch.setattr(client, name, call)

    overtaken("put_object")
    overtaken("complete_multipart_upload")

    done = say("put", "mine", "set")

    assert (done.exit_code, conditions) == (1, ["*"])
    assert "mine: the bucket has other content now; is another put running?" in done.output
    assert s3.get_object(Bucket=BUCKET, Key="shared/set/mine")["Body"].read() == b"theirs"


def test_an_upload_that_the_bucket_has_aborted_begins_anew(s3, client, tmp_path, monkeypatch):
    Path("big.bin").write_bytes(os.urandom(upload.PART_BYTES + 1))
    key = "shared/big/big.bin"
    name = upload.hashlib.sha256(f"{BUCKET}/{key}".encode()).hexdigest()
    sha256 = upload._sha256(Path("big.bin"))
    record = tmp_path / f"cache/gpu-fleet/uploads/{name}.json"
    record.parent.mkdir(parents=True)
    gone = upload.Unfinished(BUCKET, key, sha256, "gone", upload.PART_BYTES, {"1": '"x"'})
    record.write_text(json.dumps(vars(gone)))
    real = client.upload_part

    def upload_part(**arguments):
        if arguments["UploadId"] == "gone":  # moto has a defect where S3 says this
            raise ClientError({"Error": {"Code": "NoSuchUpload", "Message": "gone"}}, "UploadPart")
        return real(**arguments)

    monkeypatch.setattr(client, "upload_part", upload_part)
    done = say("put", "big.bin", "big")

    assert done.exit_code == 0, done.output
    assert s3.head_object(Bucket=BUCKET, Key=key)["Metadata"]["sha256"] == sha256


def test_a_download_continues_where_its_connection_broke(client, monkeypatch):
    Path("set/a.txt").write_bytes(bytes(3 << 20))
    say("put", "set/a.txt", "digits")
    asked, real = [], client.get_object

    def broken(body):
        yield body.read(1 << 20)
        raise ReadTimeoutError(endpoint_url="s3")

    def breaking(**arguments):
        asked.append(arguments.get("Range"))
        answer = real(**arguments)
        if len(asked) == 1:
            answer["Body"] = SimpleNamespace(iter_chunks=lambda _, body=answer["Body"]: broken(body))
        return answer

    breaking.__name__ = "get_object"
    monkeypatch.setattr(client, "get_object", breaking)

    assert say("get", "digits", "copy").exit_code == 0
    assert asked == [None, f"bytes={1 << 20}-"]
    assert Path("copy/a.txt").read_bytes() == bytes(3 << 20)


def test_the_list_shows_each_data_set_with_its_owner_and_each_file(s3):
    say("put", "set", "digits")
    s3.put_object(Bucket=BUCKET, Key="shared/other/x", Body=b"1234")

    sets = json.loads(say("list", "-o", "json").output)["data"]
    rows = say("list", "digits", "-o", "csv").output.splitlines()

    assert [(row["name"], row["files"], row["bytes"], row["owner"]) for row in sets] == [
        ("digits", 3, 11, "moto"),
        ("other", 1, 4, None),
    ]
    assert rows[0] == "name,bytes,at"
    assert rows[1].startswith("a.txt,3,2")
    assert "digits" in say("list").output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("put", "set", "Digits"), "NAME 'Digits'; allowed: "),
        (("put", "set", "../x"), "NAME '../x'; allowed: "),
        (("put", "nowhere", "digits"), "PATH 'nowhere': there is no such file or folder"),
        (("get", "nobody"), "NAME 'nobody': s3://"),
        (("list", "nobody"), "NAME 'nobody': s3://"),
    ],
)
def test_bad_input_is_one_message(s3, words, says):
    done = say(*words)

    assert done.exit_code == 1
    assert done.output.startswith(f"error: {says}")
    assert len(done.output.splitlines()) == 1


def test_both_rooms_mean_the_same_prefix():
    assert buckets.SHARED == naming.SHARED_PREFIX
