"""The files of a table, and pictures without splits, are split the same way every time."""

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.core.user_code import Parts
from gpu_fleet.data.census import Census
from gpu_fleet.data.dataset import describe, open_split
from gpu_fleet.data.images import decode
from gpu_fleet.data.tables import damaged_line, table_files
from gpu_fleet.trainer.prepared_run import open_data
from tests.training.commands import refused
from tests.training.examples import changed, few_digits, gpt_table, interrupted, resnet_table


def test_a_table_without_its_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/part.jsonl").write_text('{"input_ids": [1]}\n')
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)

    assert "pip install datasets 'pyarrow<26'" in refused(
        gpt_table(tmp_path / "rows", tmp_path / "run"), tmp_path
    )


ROW = b'{"text": "a", "label": 1}\n'
CUT_OFF = gzip.compress(ROW * 99, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", ROW * 2, ""),
        ("a.jsonl", ROW + b"\n" + ROW[:12], "line 3 of a.jsonl is cut off: write it anew, or remove"),
        ("a.jsonl", ROW + b'{"text"\n' + ROW, "line 2 of a.jsonl is cut off: write it anew, or remove"),
        ("a.jsonl", b'{"text" "a"}\n' + ROW, "line 1 of a.jsonl is no JSON in UTF-8: mend or remove"),
        ("a.jsonl", ROW.replace(b"a", b"\xe9"), "line 1 of a.jsonl is no JSON in UTF-8: mend or remove"),
        ("a.jsonl.gz", CUT_OFF, "a.jsonl.gz ends in the middle of its compressed data"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)

    found = damaged_line([tmp_path / name])

    assert found.startswith(said)
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a.parquet", "b.parquet"], {"rows": 2}),
        (["train-0.parquet", "train-1.parquet", "test-0.parquet"], {"train": 2, "test": 1}),
        (["data/train-0.parquet", "data/validation-0.parquet"], {"train": 1, "validation": 1}),
        (["train/0.jsonl", "val/0.jsonl"], {"train": 1, "val": 1}),
        (["Train.jsonl", "TEST/0.jsonl"], {"train": 1, "test": 1}),
        (["train.jsonl.gz", "test.jsonl.gz"], {"train": 1, "test": 1}),
        (["train/train.jsonl", "train/more.jsonl"], {"train": 2}),
        (["train/0.jsonl", "val/train_x.jsonl"], {"train": 1, "val": 1}),
        (["train/2026/07/0.jsonl", "val/2026/0.jsonl"], {"train": 1, "val": 1}),
        (["train.JSONL", ".cache/old/train.jsonl", "__MACOSX/._train.jsonl", "notes.txt"], {"train": 1}),
        (["data-00000-of-00001.arrow", "dataset_info.json", "state.json"], {}),
        (["dataset_dict.json", "train/data-00000-of-00001.arrow", "train/state.json"], {}),
        (["state.json", "train.jsonl"], {"train": 1}),
        ([], {}),
    ],
    ids=str,
)
def test_the_files_of_a_table_are_sorted_by_split(names, splits, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()

    assert {split: len(files) for split, files in table_files(tmp_path, Census()).items()} == splits


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.jsonl", "more.jsonl"], "more.jsonl beside files of train"),
        (["train.jsonl", "val.parquet"], "has both Parquet and JSON lines"),
        (["rows.csv"], "a table is *.parquet, *.jsonl or *.jsonl.gz"),
        (["train.jsonl", "train-2.jsonl.zst"], "train-2.jsonl.zst would not be read: write it as .parquet"),
        (
            ["en/train.jsonl", "fr/train.jsonl"],
            "holds several data sets or classes, with en/train.jsonl and fr/train.jsonl",
        ),
        (["pos/x.jsonl", "neg/x.jsonl"], "classes, with neg/x.jsonl and pos/x.jsonl: set data.path to one"),
        (["a.jsonl", "more/b.jsonl"], "with a.jsonl and more/b.jsonl: set data.path to one of them"),
        (["train.jsonl", "train/a.jsonl"], "with train.jsonl and train/a.jsonl"),
        (["train/pos/x.jsonl", "train/neg/x.jsonl"], "into one folder train, and such names into a column"),
        (["state.json", "data-0.arrow", "a.jsonl"], "save_to_disk wrote it, and a.jsonl is beside its files"),
        (["val.jsonl", "test.jsonl"], "has test and val, and no train"),
        (["train.jsonl", "train_metrics.jsonl"], "train.jsonl and train_metrics.jsonl would be one table"),
        (["train.jsonl", "trainer_log.jsonl"], "trainer_log.jsonl beside files of train"),
        (["a.jsonl", "a.jsonl.gz"], "a.jsonl.gz is beside the same file uncompressed: move one of them away"),
        (["a=1/0.jsonl"], "the value in the name of the folder a=1 would not be read; write it as a column"),
        (["train.jsonl", "training_runs/test.jsonl"], "test.jsonl says test and train: put it into a folder"),
    ],
    ids=str,
)
def test_files_that_would_be_passed_over_are_named(names, message, tmp_path):
    """A tenth of the other file used to be held out, and the rest was not read."""
    (tmp_path / "rows").mkdir()
    for name in names:
        (tmp_path / "rows" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "rows" / name).write_text('{"input_ids": [1]}\n')

    assert message in refused(gpt_table(tmp_path / "rows", tmp_path / "run"), tmp_path)


def test_one_file_is_not_both_splits(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(ROW)
    (tmp_path / "val.jsonl").symlink_to("train.jsonl")

    with pytest.raises(DataError, match=r"train.jsonl and .*val.jsonl are links to one file: remove one"):
        table_files(tmp_path, Census())


@pytest.fixture
def unsplit(digits, tmp_path) -> Path:
    """Write sixty pictures in class folders, without a folder train."""
    few_digits(digits, tmp_path / "split", 60)
    return (tmp_path / "split/train").rename(tmp_path / "unsplit")


def names_of(folder: Path, split: str, **data: Any) -> set[str]:
    found = open_split(config.Data(path=str(folder), **data), describe(folder), split)
    return {found.name(index) for index in range(len(found))}


def test_pictures_without_splits_are_split_the_same_way_each_time(unsplit):
    train, val = names_of(unsplit, "train"), names_of(unsplit, "val")

    assert (len(train), len(val), train & val) == (54, 6, set())
    assert names_of(unsplit, "val") == val != names_of(unsplit, "val", split_seed=1)
    assert len(names_of(unsplit, "val", held_out=0.5)) == 30


def test_pictures_without_splits_train_and_resume_bit_by_bit(unsplit, tmp_path):
    def table(run: str) -> dict[str, Any]:
        return changed(resnet_table(unsplit, tmp_path / run, steps=5), run={"batch_size": 16})

    interrupted(2, table, stop_at=4)


def test_a_tiff_that_says_twelve_bits_is_scaled_by_them():
    values = bytes([0x00, 0x01, 0x00, 0x80, 0x0F, 0xFF])  # two in three bytes: 0, 256, 2048, 4095
    tags = {256: 2, 257: 2, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: len(values)}
    head = b"II*\0" + (8 + len(values)).to_bytes(4, "little")
    entries = (struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    content = head + values + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)

    pixels = decode(content, config.Data(path="x"), False, np.random.default_rng(0))

    assert pixels.tolist() == [[[0, 16], [128, 255]]] * 3


@pytest.mark.parametrize("kind", ["images", "tokens"])
@pytest.mark.parametrize("key", ["held_out", "split_seed"])
def test_keys_of_a_split_are_refused_for_data_that_have_splits(kind, key, digits, tokens):
    root = digits if kind == "images" else tokens
    settings = config.Data(path=str(root), **{key: 1})

    with pytest.raises(DataError, match=rf"data\.{key} = 1(\.0)?: is for data without splits, and"):
        open_split(settings, describe(root), "train")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("images", "tokens"),
        ("tokens", "images, as it has no dataset.json, which `prepare` writes"),
        ("text", "table"),
    ],
)
def test_another_kind_of_data_than_was_set_is_named(kind, found, tokens, unsplit, tmp_path):
    (tmp_path / "table.jsonl").write_bytes(ROW)
    root = {"tokens": tokens, "table": tmp_path / "table.jsonl"}.get(found, unsplit)
    settings = config.from_table(resnet_table(root, tmp_path / "run"), "here")
    settings = settings.model_copy(update={"data": config.Data(path=str(root), kind=kind)})

    with pytest.raises(DataError) as refused:
        open_data(settings, Parts())

    assert f"data.kind = '{kind}': {root} is of kind {found}; leave data.kind out" in str(refused.value)


@pytest.mark.parametrize(
    ("held_out", "split", "without"), [(1.0, "train", "training"), (0.0, "val", "val"), (0.001, "val", "val")]
)
def test_a_split_that_gets_nothing_is_refused_with_what_would_do(held_out, split, without, unsplit):
    message = rf"data\.held_out = {held_out}: leaves none of the \d+ samples of .* for {without}; set 0\.017"

    with pytest.raises(DataError, match=message):
        names_of(unsplit, split, held_out=held_out)


@pytest.mark.parametrize("augmentation", ["none", "resized_crop"])
@pytest.mark.parametrize("training", [False, True])
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(augmentation, training):
    """A wave of 900 x 700, at 32 pixels: decoding at an eighth changes it by a few levels of 255."""
    y, x = np.mgrid[0:700, 0:900]
    wave = (127 + 120 * np.sin(x / 90) * np.cos(y / 70)).astype(np.uint8)
    picture = Image.fromarray(np.stack([wave, wave[::-1], 255 - wave], axis=-1))
    settings = config.Data(path="none", image_size=32, augmentation=augmentation)
    seen = []
    for kind in ("JPEG", "PNG"):
        content = io.BytesIO()
        picture.save(content, kind, **({"quality": 98, "subsampling": 0} if kind == "JPEG" else {}))
        seen.append(decode(content.getvalue(), settings, training, np.random.default_rng(4)).astype(int))

    assert seen[0].shape == (3, 32, 32)
    assert np.abs(seen[0] - seen[1]).mean() < 3


def test_a_large_jpeg_is_read_at_an_eighth(monkeypatch):
    content = io.BytesIO()
    Image.new("RGB", (800, 800)).save(content, "JPEG")
    sizes = []
    convert = Image.Image.convert
    monkeypatch.setattr(
        Image.Image, "convert", lambda self, mode: sizes.append(self.size) or convert(self, mode)
    )

    decode(content.getvalue(), config.Data(path="none", image_size=32), False, np.random.default_rng(0))

    assert sizes == [(100, 100)]
