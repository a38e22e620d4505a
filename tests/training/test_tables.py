"""Tables, and pictures without splits: read in the exact order, split the same way every time."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_fleet import config
from gpu_fleet.data.dataset import describe, open_split
from gpu_fleet.data.images import decode
from gpu_fleet.data.own import table_files
from gpu_fleet.errors import DataError
from tests.training.commands import tried_alone
from tests.training.examples import changed, few_digits, gpt_table, resnet_table, train_on

NEEDED = "pip install -e '.[data]', which CI does not yet have"
KINDS = ("parquet", "jsonl", "folder")


def rows(count: int = 96) -> list[dict[str, Any]]:
    """Token ids, the ids to be predicted, and a column that nobody needs."""
    chance = np.random.default_rng(1)
    ids = chance.integers(0, 32, (count, 8)).tolist()
    return [{"input_ids": line, "labels": line, "source": "made up"} for line in ids]


def write_table(kind: str, folder: Path) -> Path:
    """The rows as a table without splits."""
    datasets = pytest.importorskip("datasets", reason=NEEDED)
    data = datasets.Dataset.from_list(rows())
    folder.mkdir()
    if kind == "folder":
        data.save_to_disk(folder)
    elif kind == "parquet":
        data.to_parquet(folder / "part.parquet")
    else:
        (folder / "part.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    return folder


def table_of(kind: str, tmp_path: Path, run: str = "run", **data: Any) -> dict[str, Any]:
    from transformers import GPT2Config  # noqa: PLC0415 - seconds to load

    place = tmp_path / kind
    if not place.exists():
        write_table(kind, place)
    GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16).save_pretrained(
        tmp_path / "gpt2"
    )
    found = gpt_table(place, tmp_path / run, steps=14)  # 87 samples, 8 a step: beyond the first pass
    model = {"name": "AutoModelForCausalLM", "config": str(tmp_path / "gpt2")}
    return changed({**found, "model": model}, data={"columns": ["input_ids", "labels"], **data})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_interrupted_on_two_ranks_ends_with_the_same_bits(
    kind: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    straight = train_on(2, table_of(kind, tmp_path, "straight"))
    stopped = train_on(2, table_of(kind, tmp_path, "stopped", workers=workers), stop_at=12)
    resumed = train_on(2, table_of(kind, tmp_path, "stopped", workers=workers))

    assert (stopped["step"], resumed["resumed_from_step"]) == (12, 12)
    assert resumed["parameters_sha256"] == straight["parameters_sha256"] != stopped["parameters_sha256"]
    assert resumed["metric"] == straight["metric"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["input_ids", "label"], "data.columns: 'label' is no column of"),
        ([], "model.name = 'AutoModelForCausalLM': TypeError"),
    ],
)
def test_a_wrong_column_is_one_message(
    columns: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    status, said = tried_alone(table_of("jsonl", tmp_path, columns=columns), tmp_path)

    assert (status, message in said, "Traceback" in said) == (65, True, False)


def test_a_table_without_its_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/part.jsonl").write_text('{"input_ids": [1]}\n')
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)

    status, said = tried_alone(gpt_table(tmp_path / "rows", tmp_path / "run"), tmp_path)

    assert (status, "pip install 'gpu-fleet[data]'" in said, "Traceback" in said) == (65, True, False)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a.parquet", "b.parquet"], {"all": 2}),
        (["train-0.parquet", "train-1.parquet", "test-0.parquet"], {"train": 2, "test": 1}),
        (["data/train-0.parquet", "data/validation-0.parquet"], {"train": 1, "validation": 1}),
        (["train/0.jsonl", "val/0.jsonl"], {"train": 1, "val": 1}),
        ([], {}),
    ],
    ids=str,
)
def test_the_files_of_a_table_are_sorted_by_split(
    names: list[str], splits: dict[str, int], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert {split: len(files) for split, files in table_files(tmp_path).items()} == splits


@pytest.fixture
def unsplit(digits: Path, tmp_path: Path) -> Path:
    """Sixty pictures in folders of classes, and no folder train."""
    few_digits(digits, tmp_path / "split", 60)
    return (tmp_path / "split/train").rename(tmp_path / "unsplit")


def names_of(folder: Path, split: str, **data: Any) -> set[str]:
    found = open_split(config.Data(path=str(folder), **data), describe(folder), split)
    return {found.name(index) for index in range(len(found))}


def test_pictures_without_splits_are_split_the_same_way_each_time(unsplit: Path) -> None:
    train, val = names_of(unsplit, "train"), names_of(unsplit, "val")

    assert (len(train), len(val), train & val) == (54, 6, set())
    assert names_of(unsplit, "val") == val != names_of(unsplit, "val", split_seed=1)
    assert len(names_of(unsplit, "val", held_out=0.5)) == 30


def test_pictures_without_splits_train_and_resume_bit_by_bit(unsplit: Path, tmp_path: Path) -> None:
    def table(run: str) -> dict[str, Any]:
        return changed(resnet_table(unsplit, tmp_path / run, steps=5), run={"batch_size": 16})

    straight = train_on(2, table("straight"))
    train_on(2, table("stopped"), stop_at=4)
    resumed = train_on(2, table("stopped"))

    assert resumed["resumed_from_step"] == 4
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]


def test_all_held_out_leaves_nothing_to_train(unsplit: Path) -> None:
    with pytest.raises(DataError, match="holds no samples"):
        names_of(unsplit, "train", held_out=1.0)


@pytest.mark.parametrize("augmentation", ["none", "resized_crop"])
@pytest.mark.parametrize("training", [False, True])
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(augmentation: str, training: bool) -> None:
    """A wave of 900 x 700, at 32 pixels: what decoding at an eighth changes is a few levels of 255."""
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


def test_a_large_jpeg_is_read_at_an_eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    Image.new("RGB", (800, 800)).save(content, "JPEG")
    sizes = []
    convert = Image.Image.convert
    monkeypatch.setattr(
        Image.Image, "convert", lambda self, mode: sizes.append(self.size) or convert(self, mode)
    )

    decode(content.getvalue(), config.Data(path="none", image_size=32), False, np.random.default_rng(0))

    assert sizes == [(100, 100)]
