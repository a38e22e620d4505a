"""Labelled texts: rows of a CSV become padded samples, and a bad row is named with its mistake."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.dataset import CorruptSampleError, describe, open_split

CHANCE = np.random.default_rng(0)


@pytest.fixture
def table(tmp_path) -> Path:
    """Write forty rows of two classes, which differ in one word."""
    words = {"warm": "sun", "cold": "snow"}
    rows = [f'"number {n}, {words[label]}",{label}' for n in range(20) for label in words]
    file = tmp_path / "weather.csv"
    file.write_text("text,label\n" + "\n".join(rows) + "\n")
    return file


def prepare(table: Path, out: Path, *arguments: str):
    return CliRunner().invoke(cli.main, ["prepare", "text", str(table), str(out), *arguments])


def open_train(root: Path, length: int = 32):
    settings = config.Data(path=str(root), sequence_length=length)
    return open_split(settings, describe(root), "train")


def decode(ids: np.ndarray) -> str:
    return bytes((ids[ids > 0] - 1).astype(np.uint8)).decode()


def test_rows_become_bytes_padded_or_cut_and_a_tenth_of_each_class_is_held_out(table, tmp_path):
    result = prepare(table, out := tmp_path / "data")

    assert result.exit_code == 0, result.output
    padded, target = open_train(out, length=20).sample(0, CHANCE)
    assert (decode(padded), padded[13:].tolist()) == ("number 0, sun", [0] * 7)
    assert decode(open_train(out, length=6).sample(0, CHANCE)[0]) == "number"
    described = describe(out)
    assert described.classes[int(target)] == "warm"
    assert (described.baseline_name, described.baseline) == ("naive Bayes accuracy", 1.0)
    held_out = open_split(config.Data(path=str(out)), described, "val")
    assert (len(open_train(out)), len(held_out)) == (36, 4)
    assert sorted(int(held_out.sample(index, CHANCE)[1]) for index in range(4)) == [0, 0, 1, 1]


def tokenizer_of(**words: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 3, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def cutting() -> Tokenizer:
    """Return one that would cut and fill its texts, which is done here."""
    tokenizer = tokenizer_of(sun=4)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    return tokenizer


def framing() -> Tokenizer:
    tokenizer = tokenizer_of(**{"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}, sun=4, snow=5)
    around = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (tokenizer_of(sun=70_000), [3, 3, 3, 70_000, 0, 0, 0, 0]),  # kept whole
        (cutting(), [3, 3, 3, 4, 0, 0, 0, 0]),
        (framing(), [1, 3, 3, 3, 4, 2, 0, 0]),  # [CLS] number 0 , sun [SEP]
    ],
    ids=["a large id", "cuts and fills", "tokens around a text"],
)
def test_a_tokenizer_file_makes_the_ids(tokenizer, expected, table, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    result = prepare(table, tmp_path / "data", "--tokenizer", str(tmp_path / "tokenizer.json"))

    assert result.exit_code == 0, result.output
    assert open_train(tmp_path / "data", length=8).sample(0, CHANCE)[0].tolist() == expected


def test_a_word_that_would_be_padding_is_refused(table, tmp_path):
    tokenizer_of(sun=0).save(str(tmp_path / "tokenizer.json"))

    result = prepare(table, tmp_path / "data", "--tokenizer", str(tmp_path / "tokenizer.json"))

    assert result.exit_code == 65
    assert "makes id 0, 'sun', of part of a text, and 0 is padding" in result.output


def test_quoted_line_breaks_stay_inside_their_text_and_a_row_without_a_label_is_skipped_by_name(tmp_path):
    file = tmp_path / "lines.csv"
    file.write_text("text,label\n" + '"one\ntwo",a\nthree,b\n' * 4 + "nothing known,\n")

    result = prepare(file, tmp_path / "data")

    texts = {decode(open_train(tmp_path / "data").sample(n, CHANCE)[0]) for n in range(7)}
    assert texts == {"one\ntwo", "three"}
    assert result.exit_code == 0
    assert "lines.csv line 14: no text or no label" in result.output


@pytest.mark.parametrize("closed", ["good end", 'an end"'])
def test_an_unquoted_tsv_is_refused_by_line_and_read_with_its_own_option(closed, tmp_path):
    """A text that begins with a quotation mark took in all rows up to one that ends with such a mark."""
    texts = ['"a begin', "sun", closed, *(f"word {n}" for n in range(9))]
    file = tmp_path / "glue.tsv"
    file.write_text("label\ttext\n" + "".join(f"{n % 2}\t{text}\n" for n, text in enumerate(texts)))

    refused = prepare(file, tmp_path / "refused")
    read = prepare(file, tmp_path / "data", "--quoting", "none")

    assert refused.exit_code == 65
    assert "--quoting none" in refused.output
    assert ("glue.tsv lines 2 to 4: one field holds tabs" in refused.output) == closed.endswith('"')
    assert read.exit_code == 0, read.output
    assert "0 rows skipped; left out: nothing" in read.output
    settings = config.Data(path=str(tmp_path / "data"), sequence_length=32)
    splits = (open_split(settings, describe(tmp_path / "data"), split) for split in ("train", "val"))
    found = {decode(data.sample(n, CHANCE)[0]) for data in splits for n in range(len(data))}
    assert found == set(texts)


@pytest.mark.parametrize(
    ("rows", "flags", "says"),
    [
        (",cold\n" * 2, ("--corrupt-limit", "1"), ("2 samples cannot be read, --corrupt-limit allows 1",)),
        ("", ("--label-column", "lable"), ("--label-column = 'lable'", "did you mean label?")),
        ("", ("--text-column", "label"), ("--label-column = 'label': is the column of the texts too",)),
        (None, (), ("20 good rows of 1 classes",)),
    ],
    ids=["bad rows", "wrong column", "the answer as the question", "one class"],
)
def test_a_table_that_cannot_be_learned_from_is_refused(rows, flags, says, table, tmp_path):
    text = "text,label\n" + "word,a\n" * 20 if rows is None else table.read_text() + rows
    table.write_text(text)

    result = prepare(table, tmp_path / "data", *flags)

    assert result.exit_code == 65
    assert [each for each in says if each not in result.output] == []


def test_an_unnamed_class_is_a_corrupt_sample_and_files_that_do_not_fit_each_other_are_named(table, tmp_path):
    prepare(table, tmp_path / "data")
    folder = tmp_path / "data" / "train"
    classes = np.load(folder / "classes.npy")
    classes[3] = 9
    np.save(folder / "classes.npy", classes)

    with pytest.raises(CorruptSampleError, match="class 9 of 2"):
        open_train(tmp_path / "data").sample(3, CHANCE)
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-3])
    with pytest.raises(DataError, match=r"tokens.bin: has \d+ bytes, starts.npy wants \d+"):
        open_train(tmp_path / "data")
