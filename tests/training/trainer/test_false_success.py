"""A run that ends well has trained, is finite, resumes to the same bits, and is in the bucket."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
import torch
from torch import Tensor, nn

from gpu_fleet import Run
from gpu_fleet.checkpoint import local, names
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core.containers import plain
from gpu_fleet.core.errors import CheckpointError, UnreadableError
from gpu_fleet.core.exit_codes import FAILED_FOR_GOOD
from gpu_fleet.step import checks
from tests.training.commands import tried_alone
from tests.training.examples import changed, few_digits, gpt_table, interrupted, resnet_table, train_on
from tests.training.ranks import run_ranks

HERE = "tests.training.trainer.test_false_success"
URI = "s3://checkpoints/runs/a"


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    """Link a few digits."""
    return few_digits(digits, tmp_path_factory.mktemp("pictures"))


class Followed(nn.Module):
    """Model that pulls each output to a mean of this rank's own samples, as a codebook does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, pictures: Tensor) -> Tensor:
        outputs = self.layer(pictures.float().reshape(len(pictures), -1)[:, :64] / 255)
        self.mean.lerp_(outputs.detach().mean(0), 0.3)
        return outputs - 0.5 * self.mean


def followed(pictures: Path, directory: Path, strategy: str = "ddp", **run: Any) -> dict[str, Any]:
    table = resnet_table(pictures, directory, steps=6)
    del table["data"]["augmentation"]
    model = {"name": f"{HERE}:Followed", "options": {}}
    return changed(table, run=run) | {"model": model, "parallel": {"strategy": strategy}}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_rank_resumes_with_its_own_buffers(strategy, pictures, tmp_path):
    interrupted(2, lambda run: followed(pictures, tmp_path / run, strategy), stop_at=3)


def test_an_evaluation_changes_no_later_step(pictures, tmp_path):
    watched, straight = (
        followed(pictures, tmp_path / name, evaluate_every_steps=every)
        for name, every in (("a", 2), ("b", 0))
    )

    assert train_on(2, watched)["parameters_sha256"] == train_on(2, straight)["parameters_sha256"]


@dataclass
class Note:
    """A value of a class that a checkpoint cannot name."""

    value: float


class Phase(Enum):
    """Enum whose values are neither numbers nor text."""

    FIRST = "first"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((value, type(value).__name__) for value in (deque([1]), Note(1.0), Phase.FIRST, lambda: 1)),
        (torch.Generator(), "Generator"),
        (torch.eye(2).to_sparse(), "sparse tensor"),
        (torch.zeros(2, device="meta"), "meta tensor"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_no_checkpoint_gives_back_is_named_with_its_place(value, kind):
    with pytest.raises(UnreadableError) as caught:
        plain({"state": {0: {"kept": value}}}, "optimizer.name = 'mine:Own'")

    said = f"optimizer.name = 'mine:Own': its state_dict holds a {kind} at ['state'][0]['kept']"
    assert str(caught.value).startswith(said)


class Remembering(torch.optim.SGD):
    """Optimizer that keeps the last gradients in a deque."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("last", deque(maxlen=3)).append(float(weight.detach().sum()))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_optimizer_that_cannot_be_resumed_is_refused_after_its_first_step(strategy, tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path / "run"), parallel={"strategy": strategy})
    table["optimizer"] = {"name": f"{HERE}:Remembering", "learning_rate": 0.1}

    refused(table, f"optimizer.name = '{HERE}:Remembering': its state_dict holds a deque")


def test_a_loop_whose_optimizer_cannot_be_resumed_ends_with_its_first_step(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = Remembering(model.parameters(), lr=0.1)
    done = []

    def loop() -> None:
        with Run(tmp_path, model=model, optimizer=optimizer) as run:
            for step in run.steps(9):
                model(torch.ones(2)).backward()
                optimizer.step()
                done.append(step)

    with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
        loop()

    assert done == [0]


def detached_loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]).detach().requires_grad_()


def refused(table: dict[str, Any], message: str, saved: Sequence[int] = ()) -> str:
    """Train, which is to end for good with this message and these checkpoints; return all that is said."""
    run = Path(table["run"]["directory"])

    status, heard = tried_alone(table, run.parent)

    assert (status, message in heard) == (FAILED_FOR_GOOD, True), heard
    assert local.steps(run / "checkpoints") == list(saved)
    return heard


def test_steps_without_a_gradient_are_refused(pictures, tmp_path):
    table = changed(resnet_table(pictures, tmp_path / "run"), loss={"name": f"{HERE}:detached_loss"})

    refused(table, "no parameter has a gradient after the first step")


class WithList(Followed):
    """Model with a layer in a list, where neither the optimizer nor a checkpoint finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.others = [nn.Linear(10, 10)]

    def forward(self, pictures: Tensor) -> Tensor:
        return self.others[0](super().forward(pictures))


def test_a_model_that_hides_a_layer_in_a_list_is_refused_at_the_first_step(pictures, tmp_path):
    table = followed(pictures, tmp_path / "run")
    table["model"]["name"] = f"{HERE}:WithList"

    refused(table, f"model.name = '{HERE}:WithList': others holds parameters that get gradients")


@pytest.mark.parametrize("detached", [True, False])
def test_a_loop_that_trains_nothing_does_not_finish(detached, tmp_path, capsys):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # as at the begin of a warm-up

    def loop() -> None:
        with Run(tmp_path, model=model, optimizer=optimizer) as run:
            for _ in run.steps(2):
                loss = model(torch.ones(2))
                (loss.detach().requires_grad_() if detached else loss).backward()
                optimizer.step()

    if detached:
        with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
            loop()
    else:
        loop()

    assert (tmp_path / "result.json").exists() is not detached
    assert ("no parameter has got a gradient or changed" in capsys.readouterr().err) is detached


@pytest.fixture
def loop(tmp_path) -> Callable[..., None]:
    """Give a loop with a new `Run` at each call, which updates in some steps only, and may leave."""

    def loop(count: int, updates: Sequence[int] = (), leave: int = -1, **run: Any) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Run(tmp_path, model=model, optimizer=optimizer, **run) as now:
            for step in now.steps(count):
                model(torch.ones(2)).backward()
                if step in updates:
                    optimizer.step()
                if step == leave:
                    break

    return loop


@pytest.mark.parametrize(("count", "leave"), [(3, -1), (9, 2)])
def test_a_loop_that_updates_nothing_does_not_finish(count, leave, loop, tmp_path, capsys):
    with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
        loop(count, leave=leave)

    assert (
        "compute gradients, and none has changed a parameter: call optimizer.step()"
        in capsys.readouterr().err
    )
    assert local.steps(tmp_path / "checkpoints") == []


def test_a_loop_may_wait_for_its_update_but_not_for_ever(loop, tmp_path, monkeypatch):
    loop(3, updates=[2], every_steps=1)
    loop(5, every_steps=1)  # the rest of a resumed run
    monkeypatch.setattr(checks, "MOST_WITHOUT_UPDATE", 2)

    with pytest.raises(SystemExit, match=str(FAILED_FOR_GOOD)):
        loop(9, every_steps=1)

    assert local.steps(tmp_path / "checkpoints")[-1] == 6


class OneBad(nn.Module):
    """Model whose running mean breaks when batch-norm statistics are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.norm = nn.BatchNorm1d(10)
        self.register_buffer("mask", torch.full((10,), -torch.inf))  # as of attention: no fault

    def forward(self, pictures: Tensor) -> Tensor:
        outputs = self.layer(pictures.float().reshape(len(pictures), -1)[:, :64] / 255)
        broken = self.training and self.norm.momentum is None  # update_bn takes the plain mean
        return self.norm(outputs * torch.nan if broken else outputs)


def test_an_average_that_is_not_finite_is_neither_exported_nor_a_success(pictures, tmp_path):
    table = followed(pictures, tmp_path / "run") | {"average": {"name": "ema", "batch_norm_batches": 2}}
    table["model"]["name"] = f"{HERE}:OneBad"

    heard = refused(table, "are no finite numbers in the averaged model of step 6", saved=[6])

    assert "the first is norm.running_mean" in heard
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize(
    ("upload", "words"),
    [
        (Mock(side_effect=KeyError("ETag")), "step 1 cannot be uploaded: KeyError: 'ETag'"),
        (Mock(), "step 1 is not whole after its upload: state.pt"),
    ],
)
def test_a_checkpoint_that_is_not_in_the_bucket_is_no_success(upload, words, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(CheckpointStore, "upload_files", upload)
    saver = Saver(tmp_path, CheckpointStore(URI), keep=1)
    saver.save(local.Manifest(1, "model", 1), {})

    with pytest.raises(CheckpointError, match=words):
        saver.close()


@pytest.mark.parametrize(
    ("value", "kind", "message", "left"),
    [
        (lambda: 1, CheckpointError, "step 1 cannot be written", ["step-1.tmp"]),
        (Path(), UnreadableError, "what was saved cannot be read again", ["step-1.unreadable"]),
    ],
)
def test_a_save_that_fails_or_that_a_restore_would_refuse_is_reported(value, kind, message, left, tmp_path):
    saver = Saver(tmp_path, None, keep=1)
    saver.save(local.Manifest(1, "model", 1), {"kept": value})

    with pytest.raises(kind, match=message):
        saver.close()

    assert [path.name for path in tmp_path.iterdir()] == left


def test_a_run_whose_checkpoint_is_gone_from_the_bucket_at_its_end_does_not_finish(
    bucket, tokens, tmp_path, monkeypatch
):
    uploaded = CheckpointStore.commit

    def emptied(self: CheckpointStore, manifest: local.Manifest, *given: Any) -> None:
        uploaded(self, manifest, *given)
        key = f"runs/a/{names.step_name(manifest.step)}/state.pt"
        boto3.client("s3").delete_object(Bucket=bucket, Key=key)

    monkeypatch.setattr(CheckpointStore, "commit", emptied)
    table = changed(gpt_table(tokens, tmp_path / "run", steps=2), checkpoint={"uri": URI})

    status, heard = tried_alone(table, tmp_path)

    assert status != 0
    assert "step 2 is not whole after its upload: state.pt" in heard
    assert not (tmp_path / "run/result.json").exists()


def buffers_after(directory: str, steps: int) -> list[float]:
    """Train with a user's own loop; return the running statistics of this rank at the end."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = Followed()
    parallel = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(directory, model=parallel, optimizer=optimizer) as run:
        for step in run.steps(steps):
            optimizer.zero_grad()
            parallel(torch.full((4, 64), float(step + rank))).sum().backward()
            optimizer.step()
    torch.distributed.destroy_process_group()
    return [float(value) for value in model.mean]


def test_each_rank_of_a_users_own_loop_resumes_with_its_own_buffers(tmp_path):
    run_ranks(buffers_after, 2, str(tmp_path / "broken"), 3)

    resumed = run_ranks(buffers_after, 2, str(tmp_path / "broken"), 5)

    assert resumed == run_ranks(buffers_after, 2, str(tmp_path / "straight"), 5)
    assert resumed[0] != resumed[1]
