"""Shards in a bucket give the same bits as on a disk; a failing read is retried or named."""

from functools import partial
from pathlib import Path

import boto3
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError, SilentSourceError, StoreError
from gpu_fleet.data import bucket as buckets
from gpu_fleet.data.bucket import (
    GAP_BYTES,
    LONGEST_READ_BYTES,
    BucketFolder,
    BucketSource,
    BytesInShard,
    merged,
)
from gpu_fleet.data.dataset import CorruptSampleError
from gpu_fleet.data.loader import batches
from gpu_fleet.data.shards import DiskFolder, Records, open_split
from gpu_fleet.storage.object_store import ObjectStore, patiently
from tests.answering import answering
from tests.training.commands import tried_alone
from tests.training.examples import changed, resnet_table, train_on


def command(*words: str) -> str:
    done = CliRunner().invoke(cli.main, ["prepare", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def shards(digits, tmp_path_factory) -> Path:
    """Pack the digits into shards."""
    folder = tmp_path_factory.mktemp("shards") / "digits"
    command("shards", str(digits), str(folder), "--samples", "400")
    return folder


@pytest.fixture
def uploaded(shards, bucket) -> str:
    """Upload the tars of the digits to a bucket, without the files that `prepare` wrote beside them."""
    for file in shards.glob("*/*.tar"):
        boto3.client("s3").upload_file(str(file), bucket, f"digits/{file.relative_to(shards)}")
    return f"s3://{bucket}/digits"


def test_a_run_on_a_bucket_that_is_interrupted_ends_with_the_bits_of_one_on_a_disk(
    uploaded, shards, tmp_path
):
    said = command("index", uploaded)
    on_disk = resnet_table(shards, tmp_path / "disk", steps=4)
    remote = changed(
        on_disk, run={"directory": str(tmp_path / "remote")}, data={"path": uploaded, "workers": 1}
    )

    straight = train_on(2, on_disk)
    stopped = train_on(2, remote, stop_at=2)
    resumed = train_on(2, remote)

    assert f"1437 pictures in {uploaded}/train" in said
    assert (stopped["step"], resumed["resumed_from_step"]) == (2, 2)
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]
    assert resumed["metric"] == straight["metric"]


def test_records_of_a_bucket_are_those_of_the_disk_in_a_request_for_each_part_of_a_tar(
    shards, uploaded, tmp_path, monkeypatch
):
    settings, keys = config.Data(path=uploaded), ("png", "cls")
    command("index", uploaded, "--keys", "png,cls")
    folder = BucketFolder(BucketSource(uploaded), "train")
    away = Records(folder, keys, settings, training=False)
    (tmp_path / "train").symlink_to(shards / "train")
    asked = []
    real = ObjectStore.part
    monkeypatch.setattr(ObjectStore, "part", lambda *place: asked.append(place) or real(*place))
    indices = [3, 4, 1400, 399]

    away.expect(indices)
    found = [away[index] for index in indices]

    assert len(asked) == 3  # 3 and 4 are neighbours
    here = Records(Written(tmp_path / "train", folder.index()), keys, settings, training=False)
    for index, sample in zip(indices, found, strict=True):
        assert sample["cls"] == here[index]["cls"]
        assert (sample["png"] == here[index]["png"]).all()


def test_a_class_that_was_changed_in_a_bucket_is_read_with_its_picture(uploaded, bucket, monkeypatch):
    command("index", uploaded)
    settings, source = config.Data(path=uploaded), BucketSource(uploaded)
    data = open_split(Path("train"), source.description(), settings, training=False)
    s3, key = boto3.client("s3"), "digits/train/00000.tar"
    content = bytearray(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    content[int(data.index[5]["class_start"])] ^= 1
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(content))
    asked = []
    real = ObjectStore.part
    monkeypatch.setattr(ObjectStore, "part", lambda *place: asked.append(place) or real(*place))

    data.expect([4, 5])
    data.sample(4, np.random.default_rng(0))
    with pytest.raises(CorruptSampleError, match=r"its \.cls holds class 0, the index 1"):
        data.sample(5, np.random.default_rng(0))

    assert len(asked) == 1


class Written(DiskFolder):
    """A folder whose index is replaced by other content."""

    def __init__(self, folder: Path, content: bytes) -> None:
        super().__init__(folder)
        self._content = content

    def index(self) -> bytes:
        return self._content


places = st.builds(
    BytesInShard,
    st.sampled_from(["a", "b"]),
    st.integers(0, 10 * LONGEST_READ_BYTES),
    st.integers(0, 2 * GAP_BYTES),
)


@given(st.lists(places, max_size=40))
def test_every_member_is_in_one_read_of_bounded_length(wanted):
    reads = list(merged(wanted))

    assert sorted(place for read in reads for place in read) == sorted(set(wanted))
    for read in reads:
        assert {place.shard for place in read} == {read[0].shard}
        assert max(place.end for place in read) - read[0].start <= max(LONGEST_READ_BYTES, read[0].size)


class Failing:
    """A bucket whose first requests by one method fail: in a way that passes, or as credentials expired."""

    def __init__(
        self, times: int, monkeypatch: pytest.MonkeyPatch, *, refused: bool = False, method: str = "part"
    ) -> None:
        self.left, self.slept, self._now = times, 0.0, 0.0
        real = getattr(ObjectStore, method)

        def fail(store: ObjectStore, *asked: object) -> object:
            self.left -= 1
            if self.left >= 0:
                raise StoreError("500 of the bucket", passing=not refused, refused=refused)
            return real(store, *asked)

        monkeypatch.setattr(ObjectStore, method, fail)
        waited = partial(patiently, clock=lambda: self._now, sleep=self._sleep)
        monkeypatch.setattr(buckets, "patiently", waited)

    def _sleep(self, seconds: float) -> None:
        self._now += seconds
        self.slept += seconds


@pytest.mark.parametrize("refused", [False, True])
def test_a_read_is_tried_again_within_the_deadline_and_then_another_try_of_the_run_may_help(
    *, refused, uploaded, monkeypatch
):
    failing = Failing(5, monkeypatch, refused=refused)
    folder, part = (
        BucketFolder(BucketSource(uploaded, retry_s=60), "train"),
        BytesInShard("00000.tar", 0, 512),
    )

    content = folder.read(part)
    silent = Failing(10**6, monkeypatch, refused=refused)
    with pytest.raises(SilentSourceError, match="500 of the bucket") as raised:
        folder.expect([part])

    assert content.startswith(b"000000000.png")
    assert 0 < failing.slept <= 60
    assert raised.value.exit_status == 75
    assert silent.slept <= 60


@pytest.mark.parametrize(("restarts", "status"), [(0, 65), (1, 75)])
def test_a_bucket_that_refuses_a_run_at_its_start_fails_at_once(*, restarts, status, uploaded, monkeypatch):
    """At a restart of the ranks it has accepted them before, so that the credentials have expired."""
    failing = Failing(10**6, monkeypatch, refused=True, method="get")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))

    with pytest.raises(DataError) as raised:
        BucketFolder(BucketSource(uploaded, retry_s=60), "train").index()

    assert (raised.value.exit_status, failing.slept > 0) == (status, restarts > 0)


class Silent:
    """A reader whose bucket never answers."""

    def __getitem__(self, part: object) -> None:
        raise SilentSourceError("s3://data/train: cannot give 0.tar: 500")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_may_pass_in_a_reader_process_may_pass_in_the_run(workers):
    settings = config.Data(path="s3://data", workers=workers)

    with pytest.raises(SilentSourceError, match=r"^s3://data/train: cannot give 0.tar: 500$"):
        next(batches(Silent(), iter([None]), settings, pinned=False))


def test_half_an_answer_is_none(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    half = (206, {"Content-Length": "512"}, [b"x" * 100])  # and then the connection is closed

    with answering(lambda _: half) as url:
        folder = BucketFolder(BucketSource("s3://data/digits", url, retry_s=0), "train")

        with pytest.raises(SilentSourceError):
            folder.read(BytesInShard("0.tar", 0, 512))


@pytest.mark.parametrize(
    ("lost", "description", "path", "message"),
    [
        ("dataset.json", b"", "", "dataset.json: is missing; `prepare index s3://checkpoints/digits`"),
        ("train/00003.tar", b"", "", "digits/train: 3 shards, index.npy knows 4"),
        ("", b'{"kind": "tokens", "vocabulary": 9}', "", "records are read from a bucket, not tokens"),
        ("", b"", "s3://", "data.path = 's3://': write s3://bucket/prefix or oss://bucket/prefix"),
    ],
)
def test_what_is_wrong_with_a_bucket_is_one_message(*, lost, description, path, message, uploaded, tmp_path):
    command("index", uploaded)
    s3, bucket = boto3.client("s3"), "checkpoints"
    if lost:
        s3.delete_object(Bucket=bucket, Key=f"digits/{lost}")
    if description:
        s3.put_object(Bucket=bucket, Key="digits/dataset.json", Body=description)
    table = resnet_table(Path("none"), tmp_path, 1) | {"data": {"path": path or uploaded}}

    status, said = tried_alone(table, tmp_path)

    assert (status, said.count("error: ")) == (65, 1)
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("index", "nowhere"), "error: DATA = 'nowhere': is not a folder\n"),
        (("index", "s3://"), "error: DATA = 's3://': write s3://bucket/prefix or oss://bucket/prefix\n"),
        (("index", "s3://a", "--endpoint", "host"), "error: --endpoint = 'host': Invalid endpoint: host; "),
        (("shards", "nowhere", "out"), "error: SOURCE = 'nowhere': is not a folder\n"),
    ],
)
def test_what_is_wrong_with_a_prepare_is_named_as_its_help_does(words, message):
    done = CliRunner().invoke(cli.main, ["prepare", *words])

    assert done.exit_code == 65
    assert done.output.startswith(message)


def test_a_bucket_that_there_is_not_fails_for_good(bucket):
    with pytest.raises(DataError, match="NoSuchBucket") as raised:
        BucketSource("s3://no-such-bucket/digits", retry_s=60).description()

    assert raised.value.exit_status == 65
