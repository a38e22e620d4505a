"""A user's mistake gets one message that names the key, the value and the allowed values."""

import errno
import re
import shutil
import struct
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from gpu_fleet.core import config, user_code
from gpu_fleet.core.errors import PeerError
from gpu_fleet.data.dataset import CorruptSampleError
from gpu_fleet.data.images import decode
from gpu_fleet.trainer import rank
from tests.ran import ran
from tests.training.commands import command, refused, tried_alone
from tests.training.examples import (
    changed,
    few_digits,
    gpt_table,
    resnet_table,
    section,
    train_on,
    without_pictures,
    write_tokens,
)


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"), count=128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (section("run", bach_size=3), "run.bach_size: unknown key; did you mean batch_size?"),
        (section("optimiser", name="sgd"), "optimiser: unknown key; did you mean optimizer?"),
        (section("run", batch_size="64"), "run.batch_size = '64': must be a whole number"),
        (section("optimizer", name="adam"), "optimizer.name = 'adam': must be 'adamw' or 'sgd'"),
        (section("run", epochs=2.0), "set one of epochs (now 2.0) and steps (now 12)"),
        (
            section("parallel", strategy="tensor", tensor=2, pipeline=2),
            "tensor = 2 and pipeline = 2 do not go together; strategy = 'tensor' or 'pipeline' alone fits",
        ),
        (section("data", workers=5000), "data.workers = 5000: must be less than or equal to 256"),
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
            section("model", options={"widths": [0]}),
            "model.options = {'widths': [0]}: resnet_small cannot be",
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
        (
            section("data", path=__file__),
            "test_bad_input.py': is a file; only .parquet and .jsonl are read; `prepare` converts others",
        ),
        (
            section("metrics", profile_steps=[50, 60]),
            "metrics.profile_steps = [50, 60]: the run has 12 steps",
        ),
        (section("data", path="~/digits"), "data.path = '~/digits': only a shell knows what ~ is; write the"),
        (section("metrics", progress="maybe"), "metrics.progress = 'maybe': must be true or false"),
        (section("model", options=3), "model.options = 3: must be a table"),
        (section("run", directory=""), "run.directory = '': must have at least 1 character"),
        (section("run", directory="~/runs"), "run.directory = '~/runs': only a shell knows what ~ is"),
        (
            section("data", collate="torch.utils.data:default_collate"),
            "data.collate = 'torch.utils.data:default_collate': is for data.name, tables and tars of any",
        ),
        (section("data", columns=["x"]), "data.columns = ('x',): is for data.name, tables and tars"),
        (section("data", options={"size": 3}), "data: options = {'size': 3} is for data.name"),
        (section("data", path="/nowhere"), "data.path = '/nowhere': is not a folder"),
        (section("checkpoint", uri="s3:/typo"), "checkpoint.uri = 's3:/typo': write s3://bucket/prefix"),
        (section("checkpoint", uri="s3://[a"), "s3://[a: cannot be written"),
        (
            section("checkpoint", uri="s3://a", endpoint="host"),
            "checkpoint.endpoint = 'host': Invalid endpoint",
        ),
        (section("run", epochs=float("inf"), steps=0), "run.epochs = inf: must be a finite number"),
        (section("run", seed=10**40), f"run.seed = {10**40}: must be less than"),
        (section("run", batch_size=2**62), f"run.batch_size = {2**62}: must be less than"),
        (section("optimizer", betas=[0.9, 1.5]), "optimizer.betas.1 = 1.5: must be less than 1"),
        (section("parallel", timeout_s=1e300), "parallel.timeout_s = 1e+300: must be less than"),
        (section("interrupt", agree_every_s=float("inf")), "interrupt.agree_every_s = inf: must be"),
        (without_pictures, "train/7: holds no pictures, so its class would be empty"),
        (
            section("schedule", warmup_steps=12),
            "schedule.warmup_steps = 12: the run has 12 steps and never reaches its rate",
        ),
        (section("run", batch_size=10**6), "run.batch_size = 1000000: the training data have "),
        (
            section("data", prefetch=10**6),
            "data.prefetch = 1000000: must be less than or equal to 1000",
        ),
        (section("average", name="ema", decay=1.0), "average.decay = 1.0: must be less than 1"),
        (
            section("optimizer", name="sgd", momentum=1.0),
            "optimizer.momentum = 1.0: must be less than",
        ),
        (
            section("schedule", name="step", step_factor=0.0),
            "schedule.step_factor = 0.0: must be great",
        ),
        (section("model", options={"blocks": 0}), "resnet_small cannot be built: it would have no layers"),
        (section("optimizer", momentum=0.5), "optimizer: momentum = 0.5 is not for adamw"),
        (section("optimizer", name="sgd", betas=[0.5, 0.9]), "optimizer: betas = (0.5, 0.9) is not for sgd"),
        (section("schedule", name="constant", final_fraction=0.5), "final_fraction = 0.5 is for 'cosine'"),
        (
            section("schedule", step_every=2),
            "schedule: step_every = 2 is for name = 'step', not for 'cosine'",
        ),
        (section("average", decay=0.5), "average: decay = 0.5 is for name = 'ema', not for 'none'"),
        (section("average", name="ema", start_step=3), "average: start_step = 3 is for name = 'swa'"),
        (
            section("average", name="swa", start_step=13),
            "average.start_step = 13: the run has 12 steps and averages none",
        ),
        (section("checkpoint", branch_uri="s3://a/b"), "checkpoint.branch_uri = 's3://a/b' is for a branch"),
        (
            section("parallel", strategy="fsdp", static_graph=True),
            "static_graph = True is for ddp, not for fsdp",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_one_message_that_says_what_would_do(change, message, pictures, tmp_path):
    table = change(resnet_table(pictures, tmp_path / "run"), tmp_path)

    assert message in refused(table, tmp_path)


@pytest.mark.parametrize("key", [{"augmentation": "shift"}, {"image_size": 32}])
def test_a_key_of_pictures_is_refused_for_tokens(key: dict[str, Any], tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "tokens")
    table = changed(gpt_table(data, tmp_path / "run"), data=key)

    assert f"is for pictures, and {data} is of kind tokens" in refused(table, tmp_path)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("writer", "error", "place"),
    [
        ("gpu_fleet.trainer.rank.train_model", OSError(*FULL.args, "big"), "big"),
        ("", None, "{run}"),  # the log
        ("safetensors.torch.save_file", FULL, "{run}/model"),
        ("safetensors.torch.save_file", SafetensorError(f"I/O error: {FULL.strerror}"), "{run}/model"),
    ],
    ids=["a file", "the log", "the model", "the model by safetensors"],
)
def test_a_full_disk_is_one_message_and_may_be_tried_again(
    *, writer, error, place, pictures, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    if writer:
        monkeypatch.setattr(writer, Mock(side_effect=error))
    else:
        run.mkdir()
        (run / "metrics.jsonl").symlink_to("/dev/full")

    status, said = tried_alone(resnet_table(pictures, run, steps=1), tmp_path)

    place = place.format(run=run)
    assert said == f"error: {place}: {FULL.strerror}; free some space, or another run.directory\n"
    assert status == 75


def test_all_wrong_keys_are_reported_at_once(pictures, tmp_path):
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
def test_overrides_are_checked_like_the_file(override, message, pictures, tmp_path):
    assert message in refused(resnet_table(pictures, tmp_path), tmp_path, *override)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[run", "is not TOML"),
        (b"\xff", "is not UTF-8, at byte 0"),
        (b"\xef\xbb\xbfrun = 3", "run = 3: is a section; write [run] and its keys below"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(content, message, tmp_path):
    file = tmp_path / "broken.toml"
    if content is not None:
        file.write_bytes(content)

    status, said = command(["start", str(file)])

    assert status == 65
    assert f"{file}: {message}" in said


def broken(pictures: Path, data: Path, count: int, split: str = "val") -> Path:
    """Copy the data set, and break the first `count` pictures of a split."""
    shutil.copytree(pictures, data, symlinks=False)
    for picture in sorted((data / split).glob("*/*.png"))[:count]:
        picture.write_bytes(b"not a picture")
    return data


def test_corrupt_held_out_samples_count_once_each_however_often_they_are_read(pictures, tmp_path):
    data = broken(pictures, tmp_path / "data", count=2)
    table = changed(resnet_table(data, tmp_path / "run", steps=1), run={"batch_size": 96, "accumulation": 1})

    enough, _ = tried_alone(changed(table, data={"corrupt_limit": 2}), tmp_path)
    status, said = tried_alone(changed(table, data={"corrupt_limit": 1}), tmp_path)

    assert (enough, status) == (0, 65)
    assert "2 corrupt samples, data.corrupt_limit allows 1" in said


def test_a_picture_counts_once_in_all_epochs_and_a_higher_limit_goes_on_from_the_last_step(digits, tmp_path):
    """A micro-batch is one picture here, so that a broken one leaves it without any other."""
    few = few_digits(digits, tmp_path / "few", count=30)
    data = broken(few, tmp_path / "data", count=1, split="train")
    sorted((data / "train").glob("*/*.png"))[9].write_bytes(b"not a picture")
    table = resnet_table(data, tmp_path / "run")
    del table["run"]["steps"]
    table = changed(table, run={"epochs": 2.5, "batch_size": 2}, data={"corrupt_limit": 2})
    other = changed(table, run={"directory": str(tmp_path / "other")})

    said = refused(changed(other, data={"corrupt_limit": 1}), tmp_path)
    whole, resumed = train_on(1, table), train_on(1, other)

    assert "error: at least 2 corrupt samples, data.corrupt_limit allows 1; last: " in said
    assert resumed["resumed_from_step"]
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]


def test_what_a_reader_process_says_is_reported_without_where_it_was_raised(pictures, tmp_path):
    data = broken(pictures, tmp_path / "data", count=64)
    table = changed(resnet_table(data, tmp_path / "run", steps=1), data={"workers": 1})

    assert (
        "error: a batch of 64 met only corrupt samples, 64 of them, and data.corrupt_limit allows 10"
        in refused(table, tmp_path)
    )


def test_a_picture_too_large_to_be_one_is_a_corrupt_sample():
    content = BytesIO()
    Image.new("RGB", (1, 1)).save(content, "bmp")
    header = bytearray(content.getvalue())
    header[18:26] = struct.pack("<ii", 30_000, 30_000)

    with pytest.raises(CorruptSampleError, match="exceeds limit"):
        decode(bytes(header), config.Data(path="pictures"), training=False, chance=np.random.default_rng())


def test_what_a_full_device_is_advised_is_accepted_by_a_run_with_checkpoints(tokens, tmp_path):
    """Try each line of the advice alone, as the user types it, on the directory of the run."""
    table = gpt_table(tokens, tmp_path / "run")
    train_on(1, table, stop_at=2)
    advice = str(rank.no_room(RuntimeError("full"), config.from_table(table, "test"))).splitlines()[1:]
    flags = [re.findall(r"--[a-z._]+ [a-z0-9._]+", line) for line in advice]
    assert [each[0] for each in flags] == [
        "--run.accumulation 4",
        "--precision.dtype bf16",
        "--precision.activation_checkpointing true",
        "--parallel.strategy fsdp",
    ]

    for number, chosen in enumerate(flags):
        copied = tmp_path / f"run-{number}"
        shutil.copytree(tmp_path / "run", copied)
        if "another run.directory" in advice[number]:
            shutil.rmtree(copied)
        words = [word for flag in chosen for word in flag.split()]
        status, said = tried_alone(table, tmp_path, *words, "--run.directory", str(copied))

        assert status == 0, said


@pytest.mark.parametrize(
    ("batch", "accumulation", "ranks", "advised"),
    [(8, 1, 1, 2), (6, 2, 1, 3), (12, 1, 4, 3), (8, 8, 1, None), (8, 4, 2, None)],
)
def test_the_advised_accumulation_divides_the_batch(*, batch, accumulation, ranks, advised, monkeypatch):
    sizes = {"batch_size": batch, "accumulation": accumulation}
    table = changed(gpt_table(Path("data"), Path("run")), run=sizes)
    monkeypatch.setenv("WORLD_SIZE", str(ranks))

    assert rank.finer_accumulation(config.from_table(table, "test")) == advised


def test_another_fault_of_torch_is_not_disguised():
    settings = config.from_table(resnet_table(Path("data"), Path("run")), "test")
    fault = RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    assert rank.explained(fault, settings) is fault


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (RuntimeError("gloo: Connection closed by peer [::1]:4711"), PeerError),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), torch.AcceleratorError),
    ],
)
def test_what_is_of_a_peer_or_a_device_is_no_mistake_of_the_code_that_it_came_to_light_in(fault, kind):
    """A loss may call all_reduce; as a mistake of its code, the run would not be retried."""
    settings = config.from_table(resnet_table(Path("data"), Path("run")), "test")

    with pytest.raises(type(fault)) as raised, user_code.explained("loss.name = 'mine.py:loss'"):
        raise fault

    error = rank.explained(raised.value, settings)
    assert isinstance(error, kind)
    assert getattr(error, "for_good", False) is False


def test_help_and_what_is_wrong_before_a_run_wait_for_no_torch():
    """An import of torch would take seconds, on each rank and for each wrong flag."""
    program = (
        "import sys; from click.testing import CliRunner; from gpu_fleet.cli import main\n"
        "for words in [['--help'], ['start', '--help'], ['bench', '--help'], ['run', '--help'],\n"
        "              ['start', 'no-such.toml'], ['launch', 'no-such.toml', '--dry-run']]:\n"
        "    print(CliRunner().invoke(main, words).exit_code, 'torch' in sys.modules)\n"
    )

    done = ran([sys.executable, "-c", program], check=True)

    assert done.stdout.splitlines() == ["0 False"] * 4 + ["65 False"] * 2
