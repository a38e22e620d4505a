"""Token files: the trainer reads the text that `prepare tokens` wrote, and damage is named."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gpu_fleet import cli
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data import tokens
from gpu_fleet.data.dataset import CorruptSampleError, describe, open_split
from gpu_fleet.data.loader import Reader
from gpu_fleet.data.order import SampleOrder

CHANCE = np.random.default_rng(0)


def write_texts(folder: Path, count: int = 20) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.py").write_text(f"print({number})  # line {number}\n" * (number + 1))
    return folder


def prepare(source: Path, out: Path, *arguments: str):
    command = ["prepare", "tokens", str(out), "--source", str(source), *arguments]
    return CliRunner().invoke(cli.main, command)


def settings(path: Path, length: int) -> config.Data:
    return config.Data(path=str(path), sequence_length=length)


def read_all(out: Path, split: str, length: int) -> bytes:
    """Join the samples of a split to its text again."""
    dataset = open_split(settings(out, length), describe(out), split)
    ids = np.concatenate([dataset.sample(index, CHANCE)[0] for index in range(len(dataset))])
    return bytes(ids[ids < 256].astype(np.uint8))


def test_samples_put_together_are_the_text_and_the_held_out_text_gives_the_baseline(tmp_path):
    source, out = write_texts(tmp_path / "texts"), tmp_path / "data"

    result = prepare(source, out)

    assert result.exit_code == 0, result.output
    text, held_out = (
        b"".join(
            file.read_bytes() for n, file in enumerate(sorted(source.iterdir())) if (n % 10 == 0) is held
        )
        for held in (False, True)
    )
    assert text.startswith(read_all(out, "train", length=7))
    assert len(text) - len(read_all(out, "train", length=7)) <= 8
    described = describe(out)
    assert described.baseline_name == "gzip -9 bits per byte"
    assert described.baseline == pytest.approx(8 * len(gzip.compress(held_out, 9)) / len(held_out), rel=0.01)
    assert described.bytes_per_token == len(held_out) / (len(held_out) + 2)  # the ends of two files


@pytest.fixture
def out(tmp_path) -> Path:
    """Prepare texts."""
    prepare(write_texts(tmp_path / "texts"), tmp_path / "data")
    return tmp_path / "data"


def test_a_tokenizer_file_sets_the_vocabulary_and_may_have_the_token_that_ends_a_file(tmp_path):
    source, out = write_texts(tmp_path / "texts"), tmp_path / "data"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<|endoftext|>"])
    tokenizer.train([str(file) for file in source.iterdir()], trainer)
    tokenizer.save(str(file := tmp_path / "tokenizer.json"))

    plain = prepare(source, tmp_path / "plain", "--tokenizer", str(file))
    result = prepare(source, out, "--tokenizer", str(file), "--end-token", "<|endoftext|>")
    wrong = prepare(source, tmp_path / "other", "--tokenizer", str(file), "--end-token", "</s>")

    assert (plain.exit_code, result.exit_code) == (0, 0), plain.output + result.output
    assert describe(tmp_path / "plain").vocabulary == tokenizer.get_vocab_size() + 1
    assert describe(tmp_path / "plain").bytes_per_token > 1
    assert describe(out).vocabulary == tokenizer.get_vocab_size()
    assert np.fromfile(out / "val/tokens.bin", dtype="<u2")[-1] == tokenizer.token_to_id("<|endoftext|>")
    assert (wrong.exit_code, "has no such token" in wrong.output) == (65, True)


def test_unreadable_files_are_named_up_to_the_limit(tmp_path):
    source = write_texts(tmp_path / "texts")
    (source / "03.py").unlink()
    (source / "03.py").symlink_to("/proc/self/mem")

    result = prepare(source, tmp_path / "data", "--corrupt-limit", "0")

    assert result.exit_code == 65
    assert "03.py: Input/output error" in result.output
    assert "--corrupt-limit allows 0" in result.output


@pytest.mark.parametrize(
    ("count", "present", "message"),
    [
        (3, (), "3 files of --pattern '*.py'; at least 10 are needed"),
        (20, ("precious",), "is not empty"),
    ],
)
def test_too_few_files_and_a_full_output_folder_are_refused(count, present, message, tmp_path):
    (tmp_path / "data").mkdir()
    for name in present:
        (tmp_path / "data" / name).touch()

    result = prepare(write_texts(tmp_path / "texts", count), tmp_path / "data")

    assert (result.exit_code, message in result.output) == (65, True)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [*present]


def test_a_token_file_that_was_cut_off_is_named(out):
    file = out / "train" / "tokens.bin"
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(DataError, match=r"tokens.bin: \d+ bytes are not whole uint16 tokens"):
        open_split(settings(out, 16), describe(out), "train")


def test_a_token_beyond_the_vocabulary_is_a_corrupt_sample(out):
    file = out / "train" / "tokens.bin"
    ids = np.fromfile(file, dtype="<u2")
    ids[20] = 999
    ids.tofile(file)
    dataset = open_split(settings(out, 16), describe(out), "train")

    with pytest.raises(CorruptSampleError, match="token 20 is 999, the vocabulary ends at 257"):
        dataset.sample(1, CHANCE)
    assert dataset.name(1).endswith("tokens 16 to 32")


def test_samples_that_are_read_at_once_are_those_that_are_read_one_by_one(tmp_path):
    dataset = tokens.TokenFile(write_ids(tmp_path / "tokens.bin", range(50)), vocabulary=50, length=7)

    inputs, targets = dataset.stacked([4, 0, 6])

    one_by_one = [dataset.sample(index, CHANCE) for index in (4, 0, 6)]
    assert inputs.tolist() == [sample[0].tolist() for sample in one_by_one]
    assert targets.tolist() == [sample[1].tolist() for sample in one_by_one]


def test_a_batch_names_its_corrupt_sample_and_keeps_the_others(tmp_path):
    ids = [*range(20), 99, *range(29)]
    dataset = tokens.TokenFile(write_ids(tmp_path / "tokens.bin", ids), vocabulary=50, length=7)

    batch = Reader(dataset, seed=0)[SampleOrder(3, 0, shuffle=False).slice(0, 3)]

    ((named, defect),) = batch.corrupt.items()
    assert named.endswith("tokens 14 to 21")
    assert defect == "token 20 is 99, the vocabulary ends at 50"
    assert batch.inputs[0].tolist() == list(range(7))
    assert batch.counted == 14


def write_ids(file, ids):
    np.array(ids, dtype="<u2").tofile(file)
    return file


def test_the_target_is_the_token_that_follows_also_in_a_reader_process_that_gets_no_copy(out):
    dataset = open_split(settings(out, 16), describe(out), "train")
    first, second = dataset.sample(0, CHANCE), dataset.sample(1, CHANCE)

    copy = pickle.dumps(dataset)

    assert (first[0][1:] == first[1][:-1]).all()
    assert first[1][-1] == second[0][0]
    assert len(copy) < 1000
    assert (pickle.loads(copy).sample(1, CHANCE)[0] == second[0]).all()


def test_the_description_is_written_last(tmp_path, monkeypatch):
    out = tmp_path / "data"
    monkeypatch.setattr("gpu_fleet.data.preparation.tokens.write_description", lambda *_: None)

    prepare(write_texts(tmp_path / "texts"), out)

    assert (out / "val" / "tokens.bin").exists()
    assert not (out / "dataset.json").exists()


@given(st.integers(1, 1 << 20))
def test_the_type_holds_every_id_of_the_vocabulary(vocabulary):
    dtype = tokens.dtype_of(vocabulary)

    assert np.asarray([vocabulary - 1]).astype(dtype)[0] == vocabulary - 1
