"""Every kind of data, from raw files through `prepare` to a finished run on two ranks."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.dataset import Description, describe, parsed
from gpu_fleet.data.images import ImageFolder, _shift
from gpu_fleet.data.loader import reader_processes
from gpu_fleet.trainer.prepared_run import with_readers
from tests.training.examples import changed, few_digits, gpt_table, resnet_table, train_on


def prepare(*arguments: str) -> None:
    result = CliRunner().invoke(cli.main, ["prepare", *arguments])
    assert result.exit_code == 0, result.output


PAIRS = (("sun", "warm"), ("snow", "cold"))
TINY_BERT = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32, "dropout": 0.0}


def test_labelled_texts_train_a_classifier(tmp_path):
    rows = [f"the {word} came on day {n},{label}" for n in range(40) for word, label in PAIRS]
    (tmp_path / "weather.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    prepare("text", str(tmp_path / "weather.csv"), str(tmp_path / "data"))
    table = changed(gpt_table(tmp_path / "data", tmp_path / "run", steps=3), data={"sequence_length": 32})

    outcome = train_on(2, table | {"model": {"name": "bert", "options": TINY_BERT}})

    names = (outcome["outcome"], outcome["metric_name"], outcome["baseline_name"])
    assert names == ("finished", "accuracy", "naive Bayes accuracy")


@pytest.fixture
def shards(digits, tmp_path) -> Path:
    """Pack the digits into four shards for training and one for validation."""
    prepare("shards", str(digits), str(tmp_path / "shards"), "--samples", "400")
    return tmp_path / "shards"


def shards_table(shards: Path, tmp_path: Path, **data: Any) -> dict[str, Any]:
    return changed(resnet_table(shards, tmp_path / "run", steps=3), data=data)


def test_shards_train_as_their_folder_does(digits, shards, tmp_path):
    """The order of the samples differs, their number and the kind of the metric do not."""
    outcome = train_on(2, shards_table(shards, tmp_path, workers=1))

    assert outcome["outcome"] == "finished"
    assert outcome["epoch"] == pytest.approx(3 * 128 / 1437, abs=1e-4)
    assert outcome["baseline_name"] == "nearest centroid accuracy"


def damage(shards: Path) -> None:
    """Overwrite the pictures of every training shard, and leave the index unchanged."""
    for file in sorted((shards / "train").glob("*.tar")):
        content = bytearray(file.read_bytes())
        for start in range(600, len(content), 4096):
            content[start] ^= 0xFF
        file.write_bytes(content)


def test_a_few_corrupt_samples_are_left_out_and_too_many_end_the_run_by_name(shards, tmp_path):
    damage(shards)

    with pytest.raises(
        AssertionError, match=r"corrupt samples, data.corrupt_limit allows 0; last: .*\.tar byte"
    ):
        train_on(2, shards_table(shards, tmp_path, corrupt_limit=0))
    assert train_on(2, shards_table(shards, tmp_path, corrupt_limit=1000))["outcome"] == "finished"


def test_a_rank_reads_with_its_share_of_the_cores_by_default():
    given = [("images", 192, 8), ("shards", 16, 1), ("images", 2, 2), ("images", 2, 8), ("tokens", 192, 8)]

    assert [reader_processes(*each) for each in given] == [23, 15, 0, 0, 0]


def test_a_number_of_reader_processes_is_taken_as_it_is_and_found_where_there_is_none(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(12))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    table = {"run": {"steps": 1}, "model": {"name": "resnet_small"}, "data": {"path": "nowhere"}}
    asked = {**table, "data": {"path": "nowhere", "workers": 1}}

    found = [
        with_readers(config.from_table(each, "test"), Description("images"), cast("Any", None))
        for each in (table, asked)
    ]

    assert [settings.data.workers for settings in found] == [2, 1]


def test_a_small_data_set_is_decoded_once(digits, tmp_path):
    few = few_digits(digits, tmp_path, count=4)
    data = ImageFolder(few / "train", describe(few).classes, config.Data(path=str(few)), training=True)
    chance = np.random.default_rng(0)
    first = [data.sample(index, chance)[0] for index in range(len(data))]

    for file in (few / "train").glob("*/*.png"):
        file.unlink()

    assert all((data.sample(index, chance)[0] == pixels).all() for index, pixels in enumerate(first))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32))
def test_a_shifted_picture_repeats_its_edges(height, width, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    down, right = max(1, round(height / 8)), max(1, round(width / 8))
    chance = np.random.default_rng(seed)
    top, left = chance.integers(0, 2 * down + 1), chance.integers(0, 2 * right + 1)
    padded = np.pad(picture, ((down, down), (right, right), (0, 0)), mode="edge")

    shifted = _shift(picture, np.random.default_rng(seed))

    assert (shifted == padded[top : top + height, left : left + width]).all()


WRONG_DESCRIPTIONS = {
    "{": "is not JSON: ",
    "[]": "holds []: must be an object",
    '{"classes": ["a"]}': "kind: is missing",
    '{"kind": 3}': "kind = 3: must be text",
    '{"kind": "images", "classes": "ab"}': "classes = 'ab': must be a list",
    '{"kind": "images", "class": ["a"]}': "class: unknown key; did you mean classes?",
    '{"kind": "tokens", "vocabulary": "x"}': "vocabulary = 'x': must be a whole number",
}


def test_a_wrong_dataset_json_is_one_message_with_key_value_and_what_is_allowed():
    said = {}
    for content in WRONG_DESCRIPTIONS:
        with pytest.raises(DataError) as raised:
            parsed(content.encode(), "data/dataset.json")
        said[content] = str(raised.value).removeprefix("data/dataset.json: ")

    assert {content: text for content, text in said.items() if WRONG_DESCRIPTIONS[content] not in text} == {}
