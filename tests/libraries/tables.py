"""What needs packages of its own: tables, and TFRecord; `test_data.py` runs this where they are.

python -m pytest tests/libraries/tables.py
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import json as arrow_json
from pyarrow import parquet
from tfrecord import TFRecordWriter

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError
from gpu_fleet.data.tables import open_table
from tests.training.commands import tried_alone
from tests.training.data.test_user_code import example
from tests.training.examples import changed, gpt_table, interrupted

KINDS = ("parquet", "jsonl", "folder")


def rows(count: int = 96) -> list[dict[str, Any]]:
    """Token ids, the ids to be predicted, and a column that nobody needs."""
    chance = np.random.default_rng(1)
    ids = chance.integers(0, 32, (count, 8)).tolist()
    return [{"input_ids": line, "labels": line, "source": "made up"} for line in ids]


def write_table(kind: str, folder: Path) -> Path:
    """The rows as a table without splits."""
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


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_interrupted_on_two_ranks_ends_with_the_same_bits(kind, workers, tmp_path):
    readers = {"straight": {}, "broken": {"workers": workers}}

    interrupted(2, lambda run: table_of(kind, tmp_path, run, **readers[run]), stop_at=12)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["input_ids", "label"], "data.columns: 'label' is no column of"),
        ([], "model.name = 'AutoModelForCausalLM': TypeError"),
    ],
)
def test_a_wrong_column_is_one_message(columns, message, tmp_path):

    status, said = tried_alone(table_of("jsonl", tmp_path, columns=columns), tmp_path)

    assert (status, message in said, "Traceback" in said) == (65, True, False)


def write_empty(file: Path) -> None:
    """A file without rows, as a job that writes many of them leaves some."""
    file.write_text("")
    if file.suffix == ".parquet":
        datasets.Dataset.from_dict({"input_ids": [], "labels": []}).to_parquet(file)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_without_rows_are_passed_over(kind, tmp_path):
    table = table_of(kind, tmp_path)
    place = tmp_path / kind
    write_empty(place / f"another.{kind}")

    status, said = tried_alone(table, tmp_path)
    write_empty(place / f"part.{kind}")
    nothing, reported = tried_alone(changed(table, run={"directory": str(tmp_path / "other")}), tmp_path)

    assert (status, nothing) == (0, 65), said
    assert "holds no rows" in reported


def test_rows_without_a_value_are_counted(tmp_path, monkeypatch):
    rows = [{"input_ids": [1] * 8, "labels": [1] * 8 if number else None} for number in range(40)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    table = changed(table_of("parquet", tmp_path), data={"path": str(tmp_path / "rows.parquet")})

    status, said = tried_alone(table, tmp_path)

    assert (status, "'labels' of" in said, "has 1 row without a value" in said) == (65, True, True), said


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_of_numbers_is_learned_by_an_own_loss(kind, tmp_path):
    chance = np.random.default_rng(2)
    houses = [
        {"area": area, "rooms": int(9 * area), "price": 2 * area} for area in chance.random(90).tolist()
    ]
    file = tmp_path / f"houses.{kind}"
    if kind == "parquet":
        datasets.Dataset.from_list(houses).to_parquet(file)
    else:
        file.write_text("".join(f"{json.dumps(house)}\n" for house in houses))

    exactly_resumed("own_table", {"path": str(file)}, tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": '{"day": "2026-01-31"}'},
            "'day' of ROOT holds only texts of dates, which are read as timestamp[s]",
        ),
        ({"a": '{"ids": [1, null]}'}, "'ids' of ROOT has 30 rows without a value; leave such rows out"),
        ({"train": '{"x": 1}', "val": ""}, "val.jsonl has no rows, so val would be empty"),
        ({"a": '{"ids": [[1], null]}'}, "'ids' of ROOT has 30 rows without a value; leave such rows out"),
        ({"a": '{"x": 1}', "b": '{"x": [1]}'}, "its files differ in their columns or types"),
        ({"a": '{"x": 1}', "b": '{"x": "007"}'}, "'x' is numbers in a.jsonl and text in b.jsonl"),
        ({"a": '{"x": [1]}', "b": '{"x": ["007"]}'}, "'x' is numbers in a.jsonl and text in b.jsonl"),
        ({"a": '{"x": [7, "007"]}'}, "'x' of ROOT holds values of different kinds, as 7 and '7'; write"),
        ({"a": '{"x": 1}', "b": '{"x": 1.5}'}, "types (Float value 1.500000 was truncated converting to"),
        ({"train": '{"x": true}', "val": '{"x": 7}'}, "is truth values in train.jsonl and numbers in val"),
        ({"a": f'{{"x": {{"y": [{2**63}]}}}}'}, f"'x' of ROOT has {2**63}, and a tensor holds whole"),
        ({"a": f'{{"x": {-(2**63) - 1}}}'}, f"'x' of ROOT has {-(2**63) - 1}, and a tensor holds whole"),
        ({"a": '{"x": [-1e300]}'}, "has 1e+300, and a tensor holds real numbers of 32 bits, up to 3.40282e"),
    ],
    ids=[
        "a day",
        "a gap",
        "an empty split",
        "a gap in a list",
        "two tables",
        "text",
        "text in a list",
        "text among numbers",
        "parts",
        "truth values",
        "large",
        "low",
        "inf",
    ],
)
def test_rows_that_would_be_left_out_or_bent_are_named(files, message, tmp_path):
    for name, row in files.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{row}\n" * 30 if row else "")

    with pytest.raises(DataError) as refused:
        [open_table(config.Data(path=str(tmp_path)), split, None) for split in ("train", "val")]

    assert message in str(refused.value).replace(str(tmp_path), "ROOT")


@pytest.mark.parametrize("rows", ['{"x": 2}\n{"x": "007"}\n', '{"x": 2}\n' * (10 << 17) + '{"x": "007"}\n'])
def test_a_later_text_among_numbers_is_named(rows, tmp_path):
    is_long = len(rows) > 10 << 20
    for name in ["b"] if is_long else ["a", "b"]:
        text = rows if name == "b" else '{"x": 1}\n' * 30
        (tmp_path / f"{name}.jsonl").write_text(text)

    with pytest.raises(DataError, match=r"'x' of .*b.jsonl holds values of different kinds, as 7 and '7'"):
        open_table(config.Data(path=str(tmp_path)), "train", None)


def test_lines_are_compared_once_for_each_choice_of_columns(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1, "m": 7}\n' * 30)
    looked: list[Path] = []
    reader = arrow_json.open_json
    monkeypatch.setattr(arrow_json, "open_json", lambda *said: looked.append(said[0]) or reader(*said))

    for columns in (["x"], ["x"], ["m"], []):
        open_table(config.Data(path=str(tmp_path), columns=columns), "train", None)

    assert [file.name for file in looked] == ["a.jsonl", "b.jsonl"] * 3


def test_a_column_of_several_kinds_may_be_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1, "m": 7}\n' * 30)
    (tmp_path / "b.jsonl").write_text('{"x": 2, "m": 7}\n{"x": 3, "m": "007"}\n')

    assert open_table(config.Data(path=str(tmp_path), columns=["x"]), "train", None) is not None


def test_a_gap_in_a_list_of_fixed_length_is_no_number(tmp_path):
    ids = pyarrow.array([[1, None]], pyarrow.list_(pyarrow.int64(), 2))
    parquet.write_table(pyarrow.table({"ids": ids}), tmp_path / "rows.parquet")

    with pytest.raises(DataError, match=r"'ids' of .* has 1 row without a value"):
        open_table(config.Data(path=str(tmp_path)), "train", None)


def test_lists_of_lists_are_samples(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"ids": [[1, 2], [3, 4]]}\n' * 30)

    table = open_table(config.Data(path=str(tmp_path)), "train", None)

    assert table.sample(0, np.random.default_rng(0))["ids"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("first", "later", "refused"),
    [
        ("bool", "int64", "'x' is truth values in a.parquet and int64 in b.parquet"),
        ("float32", "float64", "'x' is float32 in a.parquet and float64 in b.parquet: write it alike"),
        ("int32", "int64", "'x' is int32 in a.parquet and int64 in b.parquet"),
        ("int64", "float64", "'x' is int64 in a.parquet and float64 in b.parquet"),
        ("float64", "float32", ""),
        ("int64", "int32", ""),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_files_of_other_types_are_not_converted(nested, first, later, refused, tmp_path):
    for name, kind in {"a": first, "b": later}.items():
        values = np.array([1, 0] * 9).astype(kind).tolist()
        column = pyarrow.array(values, pyarrow.from_numpy_dtype(kind))
        rows = pyarrow.ListArray.from_arrays(range(19), column) if nested else column
        parquet.write_table(pyarrow.table({"x": rows}), tmp_path / f"{name}.parquet")

    with pytest.raises(DataError, match=refused) if refused else nullcontext():
        open_table(config.Data(path=str(tmp_path)), "train", None)


def test_a_column_is_chosen_once(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n' * 30)

    with pytest.raises(ConfigError, match=r"data\.columns: 'x' is there twice"):
        open_table(config.Data(path=str(tmp_path), columns=["x", "x"]), "train", None)


def test_a_number_that_would_become_negative_is_named(tmp_path):
    ids = pyarrow.array([[2**63 - 1], [2**64 - 1]], pyarrow.list_(pyarrow.uint64()))
    parquet.write_table(pyarrow.table({"ids": ids}), tmp_path / "rows.parquet")

    with pytest.raises(DataError, match=f"'ids' of .* has {2**64 - 1}, and a tensor holds whole numbers up"):
        open_table(config.Data(path=str(tmp_path)), "train", None)


def test_large_real_numbers_are_read(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"x": 1e19}\n{"x": Infinity}\n{"x": null}\n' * 10)

    table = open_table(config.Data(path=str(tmp_path)), "train", None)

    assert table is not None


def test_tfrecord_files_are_read_by_an_example(tmp_path):
    chance = np.random.default_rng(2)
    for split in ("train", "val"):
        for part in range(2):
            writer = TFRecordWriter(str(tmp_path / f"{split}-{part}.tfrecord"))
            for inputs in chance.normal(size=(40, 16)):
                features = {"inputs": (inputs.tolist(), "float"), "class": (int(inputs[0] > 0), "int")}
                writer.write(features)
            writer.close()

    exactly_resumed("own_tfrecord", {"options": {"folder": str(tmp_path)}}, tmp_path)


def exactly_resumed(name: str, data: dict[str, Any], folder: Path) -> None:
    """An example on two ranks, undisturbed and interrupted, ends with the same bits."""
    interrupted(2, lambda run: changed(example(name, folder / run, folder), data=data), stop_at=3)
