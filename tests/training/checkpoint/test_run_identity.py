"""A run resumes from its own checkpoints only, whatever their folder is called."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet.checkpoint import local, manager, names, run_identity
from gpu_fleet.core import config
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.data.dataset import describe, open_split
from tests.training import ranks
from tests.training.commands import refused, tried_alone
from tests.training.examples import (
    await_checkpoint,
    changed,
    gpt_table,
    killed_rank,
    train_on,
    train_rank,
    write_tokens,
)

DATA = Path("data")


@pytest.fixture
def table(tokens, tmp_path) -> dict[str, Any]:
    """Return a configuration of three steps of a small decoder."""
    return gpt_table(tokens, tmp_path / "run", steps=3)


def identity_of(table: dict[str, Any]) -> run_identity.Identity:
    settings = config.from_table(table, "test")
    description = describe(Path(settings.data.path))
    return run_identity.of_run(settings, description, open_split(settings.data, description, "train"), {})


DIFFERENT: dict[str, Any] = {
    "optimizer.learning_rate": 0.5,
    "run.seed": 9,
    "run.batch_size": 16,
    "model.options": {"hidden_size": 64, "layers": 2, "heads": 4},
    "precision.dtype": "bf16",
    "data.sequence_length": 8,
}


def test_a_checkpoint_of_another_configuration_is_refused_with_what_differs(table, tmp_path):
    train_rank(table)

    for key, value in DIFFERENT.items():
        section, name = key.split(".")
        said = refused(changed(table, **{section: {name: value}}), tmp_path)

        assert [word for word in (key, f"--allow {key}", "--branch") if word not in said] == []


def test_other_data_of_equal_length_are_refused(table, tmp_path):
    train_rank(table)
    other = write_tokens(tmp_path / "other")
    stored = other / "train" / "tokens.bin"
    stored.write_bytes(stored.read_bytes()[::-1])

    assert "data.content" in refused(changed(table, data={"path": str(other)}), tmp_path)


def test_the_same_data_elsewhere_are_the_same(table, tmp_path):
    moved = write_tokens(tmp_path / "moved")

    assert identity_of(changed(table, data={"path": str(moved)})) == identity_of(table)


def test_an_allowed_key_may_differ_and_no_other(table, tmp_path):
    train_rank(table, stop_at=2)
    faster = changed(table, optimizer={"learning_rate": 0.5})

    allow = ("--allow", "optimizer.learning_rate")

    resumed, _ = tried_alone(faster, tmp_path, *allow)
    said = refused(changed(faster, run={"seed": 9}), tmp_path, *allow)
    unknown = refused(faster, tmp_path, "--allow", "run.sed")

    assert resumed == 0
    assert "run.seed" in said
    assert "optimizer.learning_rate  " not in said
    assert "'run.sed'" in unknown
    assert "did you mean run.seed?" in unknown


def test_seed_and_data_can_be_allowed_too(table, tmp_path):
    """The table of differences says so; the order continues from the same number of samples."""
    train_rank(table, stop_at=2)
    other = write_tokens(tmp_path / "other", tokens=3000)
    changed_keys = ("run.seed", "data.samples", "data.content")
    flags = [word for key in changed_keys for word in ("--allow", key)]

    status, said = tried_alone(changed(table, run={"seed": 9}, data={"path": str(other)}), tmp_path, *flags)

    assert (status, said) == (0, said)


def test_a_branch_with_weights_of_another_shape_fails_for_good(table, tmp_path):
    train_rank(table)
    wider = changed(table, model={"options": {"hidden_size": 64, "layers": 2, "heads": 4}})

    assert "the weights do not fit model.options" in refused(wider, tmp_path, "--branch", "second")


@pytest.mark.parametrize(("schedule", "another"), [("cosine", True), ("constant", False)])
def test_a_longer_run_is_another_where_the_schedule_asks_for_its_length(
    *, schedule, another, table, tmp_path
):
    table = changed(table, schedule={"name": schedule})
    train_rank(table)

    status, said = tried_alone(changed(table, run={"steps": 5}), tmp_path)

    assert ((status != 0), "run.steps" in said) == (another, another)


@given(st.sampled_from(sorted(key for key in run_identity.HARMLESS if "*" not in key)), st.integers(2, 9))
def test_a_harmless_key_is_no_part_of_the_identity(key, value):
    section, name = key.split(".")
    plain = {"run": {"seed": 0, "steps": 3}, "schedule": {"name": "cosine"}}

    known = run_identity.of_configuration({**plain, section: {**plain.get(section, {}), name: value}})

    assert known == run_identity.of_configuration({**plain, section: plain.get(section, {})})


def test_every_harmless_key_is_a_key_of_the_configuration():
    sections = config.Config.model_fields
    names = {
        f"{section}.{key}"
        for section, field in sections.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]  # each is a section
    }

    assert {key for key in run_identity.HARMLESS if "*" not in key} <= names


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_branch_begins_with_the_weights_and_at_step_one(strategy, table, tmp_path):
    table = changed(table, parallel={"strategy": strategy})
    trained = train_on(2, table)
    nothing = changed(table, optimizer={"learning_rate": 1e-30, "weight_decay": 0.0}, run={"steps": 1})
    branched = config.branched(config.from_table(nothing, "test"), "second").model_dump(mode="json")

    begun = train_on(2, branched)

    assert begun["resumed_from_step"] is None
    assert begun["step"] == 1
    assert begun["parameters_sha256"] == trained["parameters_sha256"]
    assert local.steps(tmp_path / "second" / "checkpoints") == [1]


def test_a_branch_needs_a_name_of_its_own_and_something_to_begin_with(table, tmp_path):
    empty, said = tried_alone(table, tmp_path, "--branch", "")
    assert (empty, "Invalid value for '--branch': is empty" in said) == (2, True), said
    for name in ("run", "a/b", ".."):
        status, said = tried_alone(table, tmp_path, "--branch", name)
        assert (status, f"--branch = {name!r}" in said) == (65, True), said

    assert "has no checkpoint" in refused(table, tmp_path, "--branch", "second")


@pytest.mark.parametrize(
    ("uri", "beside"),
    [
        ("s3://bucket/first", "s3://bucket/second"),
        ("oss://bucket/a/first/", "oss://bucket/a/second"),
        ("s3://bucket", "s3://bucket/second"),  # not s3://second, which is somebody else's bucket
        ("s3://bucket/", "s3://bucket/second"),
    ],
)
def test_an_explicit_place_branches_beside_itself(uri, beside):
    table = gpt_table(DATA, Path("runs/first"))
    settings = config.from_table(changed(table, checkpoint={"uri": uri}), "test")

    branch = config.branched(settings, "second")

    assert (branch.checkpoint.uri, branch.run.directory) == (beside, "runs/second")
    before = manager.origin(branch)
    assert (before.checkpoint.uri, before.run.directory) == (uri, "runs/first")


def test_two_owners_and_two_runs_of_one_owner_share_no_place(tmp_path, monkeypatch):
    instance = tmp_path / "instance.toml"
    instance.write_text('checkpoint_uri = "s3://bucket/pool"\n')
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(instance))

    def place(directory: str, owner: str = "alice") -> str:
        run = {"owner": owner, "directory": directory}
        return manager.location(config.from_table(changed(gpt_table(DATA, Path()), run=run), "test"))

    assert place("sweep/low/run") == place("./sweep//low/run/") == "s3://bucket/pool/alice/sweep/low/run"
    assert place("sweep/high/run", "bob") == "s3://bucket/pool/bob/sweep/high/run"
    # on another instance it may be another disk
    assert place("/disk/sweep/run") == place("../run") == "s3://bucket/pool/alice/run"


def test_a_run_beside_one_with_the_same_last_part_has_checkpoints_of_its_own(
    table, bucket, tmp_path, monkeypatch
):
    instance = tmp_path / "instance.toml"
    instance.write_text(f'checkpoint_uri = "s3://{bucket}/pool"\n')
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(instance))
    monkeypatch.chdir(tmp_path)
    train_rank(changed(table, run={"directory": "run"}))
    others = {"directory": "high/run", "seed": 7}

    train_rank(changed(table, run=others))
    again = train_rank(changed(table, run=others))

    assert again["resumed_from_step"] == again["step"]
    assert again["checkpoint"].endswith("/high/run")


def test_a_resumed_checkpoint_reaches_a_bucket_that_never_had_it(table, bucket):
    train_rank(table)

    finished = train_rank(changed(table, checkpoint={"uri": f"s3://{bucket}/run"}))

    keys = [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket=bucket)["Contents"]]
    assert finished["checkpoint"] == f"s3://{bucket}/run"
    assert f"run/step-{finished['step']}/{names.MANIFEST}" in keys


def test_a_second_process_in_the_same_directory_is_refused(table, tmp_path):
    endless = changed(table, run={"steps": 1_000_000}, checkpoint={"every_steps": 5})
    first = ranks.context.Process(target=train_rank, args=(endless,))
    ranks.server_loaded()
    first.start()
    try:
        await_checkpoint(tmp_path / "run")
        assert first.is_alive()
        status, said = tried_alone(table, tmp_path)
    finally:
        first.kill()
        first.join()

    assert status != 0
    assert f"in use by process {first.pid}" in said


def test_a_manifest_with_a_flipped_letter_vouches_for_nothing(table, tmp_path):
    train_rank(table)
    manifest = tmp_path / "run" / "checkpoints" / "step-3" / names.MANIFEST
    manifest.write_text(manifest.read_text().replace('"world_size": 1', '"world_size": 2'))

    with pytest.raises(CheckpointError, match="own checksum"):
        local.verify(manifest.parent)


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": {"seed": 9}},
        {"run": {"batch_size": 7, "accumulation": 2}},
        {"model": {"options": {"hidden_size": "wide"}}},
        {"data": {"path": "no/such/data"}},
    ],
    ids=["another run", "sizes", "options", "data"],
)
def test_a_start_that_is_refused_leaves_the_result_of_a_finished_run(wrong, table, tmp_path):
    train_rank(table)
    result = (tmp_path / "run/result.json").read_bytes()

    status, said = tried_alone(changed(table, **wrong), tmp_path)

    assert (status, said.startswith("error: ")) == (65, True)
    assert (tmp_path / "run/result.json").read_bytes() == result


def test_a_resumed_run_has_no_result_before_its_last_step(table, tmp_path):
    train_rank(table, stop_at=2)

    with pytest.raises(AssertionError, match="ended without a word"):
        ranks.run_ranks(killed_rank, 1, table, 1)

    assert not (tmp_path / "run/result.json").exists()
