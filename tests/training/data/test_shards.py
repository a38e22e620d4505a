"""Shards have the same pictures as their folder, each read directly; damage is named."""

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data import shards
from gpu_fleet.data.dataset import CorruptSampleError, check_parts, describe, open_split
from gpu_fleet.data.loader import Reader
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.preparation.prepare import Skipped
from gpu_fleet.data.preparation.shards import index_shard

CHANCE = np.random.default_rng(0)
CLASSES = ("cat", "dog")


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 255 - shade, 7)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Write ten pictures of two classes to train, four to validate; each has its own shade."""
    root = tmp_path / "pictures"
    for split, count in (("train", 10), ("val", 4)):
        for number in range(count):
            folder = root / split / CLASSES[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:02d}.png").write_bytes(png(number * 20))
    return root


@pytest.fixture
def packed(pictures, tmp_path) -> Path:
    """Pack the same pictures into shards of four."""
    out = tmp_path / "shards"
    result = run("shards", str(pictures), str(out), "--samples", "4")
    assert result.exit_code == 0, result.output
    return out


def run(*arguments: str):
    return CliRunner().invoke(cli.main, ["prepare", *arguments])


def open_train(root: Path):
    return open_split(config.Data(path=str(root)), describe(root), "train")


def contents(dataset) -> set[tuple[bytes, int]]:
    samples = (dataset.sample(index, CHANCE) for index in range(len(dataset)))
    return {(picture.tobytes(), int(target)) for picture, target in samples}


def test_shards_hold_the_pictures_of_the_folder_mixed_and_the_last_takes_the_rest(pictures, packed):
    files = sorted((packed / "train").glob("*.tar"))
    indices = [index_shard(file, 0, Skipped(0)) for file in files]

    assert contents(open_train(packed)) == contents(open_train(pictures))
    assert [len(index) for index in indices] == [4, 4, 2]
    assert set(indices[0]["class"].tolist()) == {0, 1}
    assert open_train(packed).parts == 3


def test_a_sample_is_found_without_reading_those_before_it(packed, monkeypatch):
    dataset = open_train(packed)
    reads = []
    real = shards.os.pread
    monkeypatch.setattr(shards.os, "pread", lambda *place: reads.append(place) or real(*place))

    dataset.sample(9, CHANCE)

    assert [size for _, size, _ in reads][1:] == [1]  # the picture, then its class


def test_tars_made_elsewhere_are_taken_in(packed, tmp_path):
    for split in ("train", "val"):
        (packed / split / "index.npy").unlink()
    (packed / "dataset.json").unlink()

    result = run("index", str(packed), "--classes", "cat,dog")

    assert result.exit_code == 0, result.output
    assert describe(packed).classes == CLASSES
    assert len(open_train(packed)) == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--classes", "cat,cat"), "--classes = 'cat,cat': 'cat' is there twice"),
        (("--classes", "cat"), "--classes = 'cat': names 1 classes, the shards hold 2"),
        (("--keys", "png,,cls"), "--keys = 'png,,cls': '' is empty"),
    ],
)
def test_names_that_are_empty_there_twice_or_too_few_are_refused(given, message, packed):
    result = run("index", str(packed), *given)

    assert (result.exit_code, message in result.output) == (65, True)


def test_a_sample_without_its_class_is_named(tmp_path):
    for split in ("train", "val"):
        write_tar(tmp_path / split / "0.tar", {"seven.png": png(7)})

    result = run("index", str(tmp_path))

    assert result.exit_code == 65
    assert "sample seven lacks its .cls" in result.output
    assert "train: holds no samples in *.tar" in result.output


@pytest.mark.parametrize(
    ("part", "byte", "message"),
    [
        ("start", 40, "its CRC-32 is not that of the index"),
        ("class_start", 0, r"its \.cls holds class 0, the index 1"),
    ],
)
def test_a_flipped_bit_of_a_picture_or_its_class_is_a_corrupt_sample(part, byte, message, packed):
    dataset = open_train(packed)
    place = dataset.index[5]
    file = sorted((packed / "train").glob("*.tar"))[place["shard"]]
    content = bytearray(file.read_bytes())
    content[int(place[part]) + byte] ^= 1
    file.write_bytes(content)

    with pytest.raises(CorruptSampleError, match=message):
        dataset.sample(5, CHANCE)


def test_open_tars_are_closed_at_exit_after_the_modules_are_gone(packed, monkeypatch):
    dataset = open_train(packed)
    dataset.sample(5, CHANCE)
    folder = dataset._folder
    (descriptor,) = folder._open.values()
    monkeypatch.setattr(shards, "os", None)

    folder.__del__()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_batch_continues_without_its_corrupt_sample(packed):
    dataset = open_train(packed)
    dataset.index["crc32"][5] ^= 1

    batch = Reader(dataset, seed=0)[SampleOrder(10, seed=0, shuffle=False).slice(4, 3)]

    assert batch.targets.tolist()[1] == -100
    assert batch.corrupt == {dataset.name(5): "its CRC-32 is not that of the index"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes()[:600]),
            r"00002.tar: has 600 bytes, index.npy wants \d+",
        ),
        (Path.unlink, r"2 shards, index.npy knows 3"),
        (
            lambda file: write_tar(file, {f"{n}.{key}": png(n) for n in range(9) for key in ("png", "cls")}),
            r"00002.tar: has \d+ bytes, index.npy wants \d+: bring the tar that was indexed, or write",
        ),
        (
            lambda file: write_tar(file.with_name("3.tar"), {}),
            r"4 shards, index.npy knows 3: `prepare index`",
        ),
    ],
    ids=["cut off", "missing", "with more samples", "one more"],
)
def test_a_shard_that_is_not_the_one_that_was_indexed_is_named(packed, damage, message):
    damage(packed / "train/00002.tar")

    with pytest.raises(DataError, match=message):
        open_train(packed)


def test_fewer_shards_than_readers_are_refused(packed):
    with pytest.raises(DataError, match=r"only 3 shards for 2 ranks x 2 data.workers"):
        check_parts(open_train(packed).parts, ranks=2, workers=2)
    with pytest.raises(DataError, match=r"only 1 shard for 1 rank x 2 data.workers"):
        check_parts(1, ranks=1, workers=2)


def test_a_broken_picture_is_left_out_and_named_up_to_the_limit(pictures, tmp_path):
    (pictures / "train" / "cat" / "00.png").write_bytes(b"no picture")

    done = run("shards", str(pictures), str(tmp_path / "out"))
    refused = run("shards", str(pictures), str(tmp_path / "other"), "--corrupt-limit", "0")

    assert (done.exit_code, refused.exit_code) == (0, 65)
    assert "skipped 1 of at most 10" in done.output
    assert len(open_train(tmp_path / "out")) == 9
    assert "1 sample cannot be read, --corrupt-limit allows 0" in refused.output


def test_reader_processes_open_the_shards_themselves_and_few_at_once(packed, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    dataset = open_train(packed)
    read = contents(dataset)

    copy = pickle.loads(pickle.dumps(dataset))

    assert len(read) == 10
    assert contents(copy) == read
    assert len(dataset._folder._open) == 2


def write_tar(file: Path, members: dict[str, bytes] | list[tuple[str, bytes]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, content in dict.items(members) if isinstance(members, dict) else members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def array(numbers: list[int]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(numbers))
    return out.getvalue()


@pytest.fixture
def any_keys(tmp_path) -> Path:
    """Write two tars to train and one to validate, each with three samples of four keys and a README."""
    root = tmp_path / "any"
    for split, tars in (("train", 2), ("val", 1)):
        for shard in range(tars):
            members = {"README": b"not a sample"}
            for place in range(3):
                number = 3 * shard + place
                members |= {
                    f"a/{number}.png": png(number),
                    f"a/{number}.json": f'{{"price": {number}}}'.encode(),
                    f"a/{number}.seg.npy": array([number, 1]),
                    f"a/{number}.bin": bytes([number]),
                }
            write_tar(root / split / f"{shard}.tar", members)
    return root


def test_samples_of_any_keys_are_dictionaries(any_keys):
    done = run("index", str(any_keys), "--keys", "png,json,seg.npy,bin")
    described = describe(any_keys)
    records = shards.Records(
        shards.DiskFolder(any_keys / "train"), described.keys, config.Data(path="none"), training=True
    )

    assert done.exit_code == 0, done.output
    assert "6 samples" in done.output
    assert len(records) == 6
    fourth = records[4]
    assert list(fourth) == ["png", "json", "seg.npy", "bin"]
    assert (fourth["png"].shape, fourth["png"][0, 0, 0]) == ((3, 8, 8), 4)
    assert (fourth["json"], fourth["seg.npy"].tolist(), fourth["bin"]) == ({"price": 4}, [4, 1], b"\x04")


def test_chosen_columns_of_any_keys_are_read_and_others_and_damaged_ones_named(any_keys):
    run("index", str(any_keys), "--keys", "png,json")
    tar = any_keys / "train/0.tar"
    tar.write_bytes(tar.read_bytes().replace(b'{"price": 1}', b'{"price": 9}'))

    def records(column: str) -> shards.Records:
        settings = config.Data(path="none", columns=(column,))
        folder = shards.DiskFolder(any_keys / "train")
        return shards.Records(folder, describe(any_keys).keys, settings, training=False)

    with pytest.raises(DataError, match="it has json, png"):
        records("text")
    with pytest.raises(CorruptSampleError, match=r"json at .*0.tar byte \d+: its CRC-32 is not that"):
        records("json")[1]
    assert records("json")[0] == {"json": {"price": 0}}


def test_a_sample_that_lacks_a_key_is_named_and_left_out_up_to_the_limit(any_keys):
    write_tar(any_keys / "train/9.tar", {"b/7.png": png(7)})

    done = run("index", str(any_keys), "--keys", "png,json")
    refused = run("index", str(any_keys), "--keys", "png,json", "--corrupt-limit", "0")

    assert (done.exit_code, refused.exit_code) == (0, 65)
    assert "skipped 1 of at most 10: " in done.output
    assert "9.tar: sample b/7 has no json" in done.output
    assert "6 samples in" in done.output


@pytest.mark.parametrize(
    ("names", "keys", "message"),
    [
        (("7.png", "8.png", "7.png"), ("--keys", "png"), "sample 7.png is there twice"),
        (("7.png", "7.cls", "7.jpg"), (), "sample 7.jpg is there twice"),
    ],
    ids=str,
)
def test_a_sample_that_another_would_replace_is_named(names, keys, message, tmp_path):
    """One of the two used to be left out without a message."""
    write_tar(tmp_path / "train/0.tar", [(name, b"0" if name == "7.cls" else png(7)) for name in names])

    done = run("index", str(tmp_path), *keys)

    assert (done.exit_code, message in done.output) == (65, True), done.output


@pytest.mark.parametrize("name", ["1.tar.gz", "1.tgz", "more/1.tar"])
def test_a_tar_that_would_not_be_read_is_named(name, packed):
    (packed / "train/more").mkdir()
    (packed / "train" / name).touch()

    done = run("index", str(packed))

    assert (done.exit_code, f"{name}: would not be read" in done.output) == (65, True), done.output
