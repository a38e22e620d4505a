"""What a user gets wrong is told in one message that names the key, the value and what would do."""

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.training.examples import changed, few_digits, gpt_table, resnet_table, write_tokens
from tests.training.ranks import run_ranks
from training import config, train
from training.cli import main

Change = Callable[[dict[str, Any], Path], dict[str, Any]]


@pytest.fixture(scope="module")
def pictures(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"), count=64)


def tried(ranks: int, table: dict[str, Any], folder: Path, *overrides: str) -> list[tuple[int, str]]:
    """Exit status and standard error of every rank of `train` with this configuration."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(table))
    return run_ranks(command, ranks, ["train", str(file), *overrides])


def tried_alone(table: dict[str, Any], folder: Path, *overrides: str) -> tuple[int, str]:
    """The same for one process, this one."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(table))
    return command(["train", str(file), *overrides])


def command(arguments: list[str]) -> tuple[int, str]:
    """Runs `python -m training ARGUMENTS` on this rank."""
    heard = StringIO()
    with redirect_stderr(heard):
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0), heard.getvalue()
    return 0, heard.getvalue()


def section(name: str, /, **keys: Any) -> Change:
    return lambda table, _: changed(table, **{name: keys})


def without_pictures(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    data = folder / "empty"
    for split in ("train", "val"):
        (data / split / "7").mkdir(parents=True)
    return changed(table, data={"path": str(data)})


def directory_under_a_file(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("")
    return changed(table, run={"directory": str(folder / "file" / "run")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (section("run", bach_size=3), "run.bach_size: unknown key; did you mean batch_size?"),
        (section("optimiser", name="sgd"), "optimiser: unknown key; did you mean optimizer?"),
        (section("run", batch_size="64"), "run.batch_size = '64': input should be a valid integer"),
        (section("optimizer", name="adam"), "optimizer.name = 'adam': input should be 'adamw' or 'sgd'"),
        (section("run", epochs=2.0), "set one of epochs (now 2.0) and steps (now 12)"),
        (
            section("parallel", strategy="tensor", tensor=2, pipeline=2),
            "tensor = 2 and pipeline = 2 do not go together; strategy = 'tensor' or 'pipeline' alone fits",
        ),
        (section("parallel", tensor=2), "tensor = 2 needs strategy = 'tensor', not 'ddp'"),
        (
            section("model", name="resnet_smal"),
            "model.name = 'resnet_smal': unknown; did you mean resnet_small?",
        ),
        (
            section("model", options={"width": [8]}),
            "model.options.width: unknown for resnet_small; did you mean",
        ),
        (
            section("model", options={"widths": ["a"]}),
            "model.options = {'widths': ['a']}: resnet_small cannot be",
        ),
        (
            section("model", options={"dropout": 7.0}),
            "model.options = {'dropout': 7.0}: resnet_small cannot be",
        ),
        (section("model", name="gpt"), "model.name = 'gpt': takes tokens, the data is images"),
        (
            section("model", weights="/nowhere"),
            "model.weights = '/nowhere': /nowhere/model.safetensors cannot be",
        ),
        (section("data", path="/nowhere"), "data.path = '/nowhere': is not a folder"),
        (section("checkpoint", uri="s3:/typo"), "checkpoint.uri = 's3:/typo': write s3://bucket/prefix"),
        (without_pictures, "holds no samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_one_message_that_says_what_would_do(
    change: Change, message: str, pictures: Path, tmp_path: Path
) -> None:
    table = change(resnet_table(pictures, tmp_path / "run"), tmp_path)

    status, said = tried_alone(table, tmp_path)

    assert status == 1
    assert message in said
    assert said.startswith("error: ")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            section("run", batch_size=66),
            "run.batch_size = 66 does not divide into 2 ranks x run.accumulation = 2",
        ),
        (
            section("parallel", strategy="tensor", tensor=3),
            "= 3 does not divide 2 processes; sizes that fit: 1, 2",
        ),
        (section("parallel", strategy="tensor", tensor=2), "can spread the model 'gpt' only"),
        (section("run", bach_size=3), "run.bach_size: unknown key; did you mean batch_size?"),
        (directory_under_a_file, "cannot be written: Not a directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rank_0_says_it_once_and_no_rank_hangs(
    change: Change, message: str, pictures: Path, tmp_path: Path
) -> None:
    table = change(resnet_table(pictures, tmp_path / "run"), tmp_path)

    (status, said), (other_status, other_said) = tried(2, table, tmp_path)

    assert (status, other_status) == (1, 1)
    assert message in said
    assert said.count("error: ") == 1
    assert other_said == ""


def test_all_wrong_keys_are_told_at_once(pictures: Path, tmp_path: Path) -> None:
    table = changed(resnet_table(pictures, tmp_path), run={"sed": 1, "batch_size": 0}, data={"workers": -1})

    _, said = tried_alone(table, tmp_path)

    assert [key for key in ("run.sed", "run.batch_size", "data.workers") if key not in said] == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["--run.bach_size", "3"], "run.bach_size: unknown key; did you mean batch_size?"),
        (["--run.batch_size"], "--run.batch_size: needs a value"),
        (["--seed", "3"], "--seed: is not an override; write --section.key value"),
        (["--run.seed.x", "3"], "run.seed"),
    ],
)
def test_overrides_are_checked_like_the_file(
    override: list[str], message: str, pictures: Path, tmp_path: Path
) -> None:
    status, said = tried_alone(resnet_table(pictures, tmp_path), tmp_path, *override)

    assert status == 1
    assert message in said


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[run", "is not TOML"), (b"\xff", "is not TOML"), (None, "cannot be read: No such file")],
)
def test_a_file_that_is_no_configuration_is_named(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "broken.toml"
    if content is not None:
        file.write_bytes(content)

    status, said = command(["train", str(file)])

    assert status == 1
    assert f"{file}: {message}" in said


def test_a_missing_bucket_is_told_before_the_first_step(bucket: str, pictures: Path, tmp_path: Path) -> None:
    table = changed(resnet_table(pictures, tmp_path / "run"), checkpoint={"uri": "s3://absent/runs"})

    status, said = tried_alone(table, tmp_path)

    assert status == 1
    assert "s3://absent/runs: cannot be written: NoSuchBucket" in said
    assert (tmp_path / "run/metrics.jsonl").exists() is False


@pytest.mark.parametrize(
    ("options", "parallel", "message"),
    [
        ({"heads": 1}, {"strategy": "tensor", "tensor": 2}, "parallel.tensor = 2 does not divide 1 heads"),
        ({"layers": 1}, {"strategy": "pipeline", "pipeline": 2}, "2 stages need as many layers"),
        ({}, {"strategy": "pipeline", "pipeline": 2}, "set run.accumulation to 2 or more"),
    ],
)
def test_a_model_that_cannot_be_cut_is_told(
    options: dict[str, int], parallel: dict[str, Any], message: str, tmp_path: Path
) -> None:
    table = gpt_table(write_tokens(tmp_path / "tokens"), tmp_path / "run")
    table["model"]["options"].update(options)
    if not options:
        table["run"]["accumulation"] = 1

    (status, said), (_, other_said) = tried(2, changed(table, parallel=parallel), tmp_path)

    assert status == 1
    assert message in said
    assert other_said == ""


def test_corrupt_samples_past_the_limit_end_the_run_on_every_rank(pictures: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures, data, symlinks=False)
    broken = min((data / "train").glob("*/*.png"))
    broken.write_bytes(b"not a picture")
    table = changed(resnet_table(data, tmp_path / "run", steps=3), data={"corrupt_limit": 0})

    statuses = tried(2, table, tmp_path)

    assert [status for status, _ in statuses] == [1, 1]
    assert "corrupt samples, data.corrupt_limit allows 0" in statuses[0][1]
    assert str(broken) in statuses[0][1]


def test_a_corrupt_sample_below_the_limit_is_skipped_and_counted(pictures: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures, data, symlinks=False)
    min((data / "train").glob("*/*.png")).write_bytes(b"not a picture")

    status, _ = tried_alone(resnet_table(data, tmp_path / "run", steps=1), tmp_path)

    assert status == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["outcome"] == "finished"


def test_a_full_device_is_told_with_the_knobs_that_help() -> None:
    settings = config.from_table(resnet_table(Path("data"), Path("run")), "test")

    error = train.explained(
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), settings
    )

    for knob in ("--run.accumulation 4", "--precision.dtype bf16", "--parallel.strategy fsdp"):
        assert knob in str(error)


def test_another_fault_of_torch_is_not_disguised() -> None:
    settings = config.from_table(resnet_table(Path("data"), Path("run")), "test")
    fault = RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    assert train.explained(fault, settings) is fault
