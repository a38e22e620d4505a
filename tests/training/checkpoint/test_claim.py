"""A folder of a callback is one run's: another process, configuration, data or arguments are refused."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpu_fleet.checkpoint import lease as leases
from gpu_fleet.checkpoint import local
from gpu_fleet.checkpoint.lease import RELEASED, Holder, RunLease
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.integrations.folder_copy.files import OURS
from gpu_fleet.integrations.folder_copy.sync import FolderSync
from gpu_fleet.integrations.guard import Guard
from gpu_fleet.integrations.huggingface import FleetCallback
from gpu_fleet.preemption.interrupt import Interruption
from gpu_fleet.storage.object_store import ObjectStore
from tests.training.ranks import run_ranks

ARGUMENTS = {"learning_rate": 0.1}
ELSEWHERE = Holder("elsewhere", "boot", 1)


@pytest.fixture(autouse=True)
def notices_end(monkeypatch) -> Iterator[None]:
    """Stop the listeners of guards whose process would have ended."""
    began, enter = list[Interruption](), Interruption.__enter__

    def entered(interruption: Interruption) -> Interruption:
        began.append(interruption)
        return enter(interruption)

    monkeypatch.setattr(Interruption, "__enter__", entered)
    yield
    for interruption in reversed(began):
        interruption.__exit__(None, None, None)


def points(seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)))


def trained(
    folder: Path, arguments: Any = None, samples: Any = None, *, saves: bool = True, **options: Any
) -> str | None:
    """Train once with a guard, which saves step 4; return the checkpoint from which it resumed."""
    guard = Guard(folder, pattern="step-*", **options)
    found = guard.newest()
    guard.begin(ARGUMENTS if arguments is None else arguments, points() if samples is None else samples)
    if saves:
        (folder / "step-4").mkdir(exist_ok=True)
    guard.end()
    return found


@pytest.mark.parametrize(
    ("other", "row"),
    [
        ({"config": {"width": 8}}, "run.width  4 -> 8"),
        ({"config": {}}, "run.width  4 -> (none)"),
        ({"arguments": {"learning_rate": 0.2}}, "arguments.learning_rate  0.1 -> 0.2"),
        ({"samples": points()[:8]}, "data.samples  9 -> 8"),
        ({"samples": points(seed=1)}, "data.content"),
    ],
    ids=["configuration", "a key gone", "arguments", "length", "content"],
)
def test_another_run_in_the_folder_is_refused_and_may_be_allowed(other, row, tmp_path, capsys):
    first = {"config": {"width": 4}}
    trained(tmp_path, **first)
    key = row.split(maxsplit=1)[0]
    allow = ["data.samples", "data.content"] if "data" in row else [key]

    with pytest.raises(SystemExit) as ended:
        trained(tmp_path, **first | other)
    said = capsys.readouterr().err
    went_on_from = trained(tmp_path, **first | other, allow=allow)
    again = trained(tmp_path, **first | other)

    assert (ended.value.code, row in said, "Traceback" in said) == (65, True, False), said
    assert f"checkpoint of step 4 in {tmp_path} is of another run" in said
    assert f"'{key}'" in said.partition("to go on all the same: FleetCallback(allow=[")[2]
    assert went_on_from == again == str(tmp_path / "step-4")


def test_a_folder_without_a_checkpoint_is_any_runs_and_that_of_an_earlier_trainer_is_resumed(tmp_path):
    """A kill before the first save leaves a folder without one."""
    trained(tmp_path, config={"width": 4}, saves=False)
    (tmp_path / "earlier/step-4").mkdir(parents=True)

    assert trained(tmp_path, config={"width": 8}) is None
    assert trained(tmp_path / "earlier", config={"width": 4}) == str(tmp_path / "earlier/step-4")


def test_samples_that_only_a_sampler_can_ask_for_are_not_compared(tmp_path, caplog):
    named = {"a": torch.zeros(1)}
    trained(tmp_path, samples=named)

    assert trained(tmp_path, samples=named) is not None
    assert "event=data-not-compared" in caplog.text


def refused_to(folder: str) -> tuple[Any, str]:
    """Return how a guard of another process on this folder ends, and what it says."""
    with redirect_stderr(StringIO()) as said, pytest.raises(SystemExit) as ended:
        Guard(Path(folder), pattern="step-*").newest()
    return ended.value.code, said.getvalue()


def test_a_second_process_in_the_folder_is_refused_until_the_first_has_ended(tmp_path):
    first = Guard(tmp_path, pattern="step-*")
    first.newest()

    ((status, said),) = run_ranks(refused_to, 1, str(tmp_path))
    first.end()

    assert status == 75
    assert f"{tmp_path} is in use by process {os.getpid()} on " in said
    assert trained(tmp_path) is None


@pytest.fixture
def uri(bucket, monkeypatch) -> str:
    monkeypatch.setattr(leases, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(leases, "WAIT_S", 0.5)
    return f"s3://{bucket}/mine"


def test_a_second_instance_is_refused_until_the_lease_is_released_and_leaves_the_lock_to_the_holder(
    uri, tmp_path, capsys
):
    """One process may lock a file twice: its own lock stands for that of a holder whose server gave it up."""
    store = CheckpointStore(uri)
    first = RunLease(store, ELSEWHERE, renew_every_s=0.05)
    first.acquire()
    (tmp_path / OURS).mkdir()
    held = local.lock(tmp_path / OURS)
    held.mark()

    with pytest.raises(SystemExit) as ended:
        trained(tmp_path, uri=uri)
    first.release()
    held.check()
    held.close()
    trained(tmp_path / "there", uri=uri)

    assert ended.value.code == 75
    assert f"{uri} is in use by process 1 on elsewhere" in capsys.readouterr().err
    lease = store.newest_lease()
    assert lease.content == RELEASED


@pytest.mark.parametrize("midst", [False, True], ids=["before", "in the midst of an upload"])
def test_a_run_that_is_taken_over_commits_nothing(midst, uri, tmp_path, monkeypatch, capsys):
    guard, put = Guard(tmp_path, uri, pattern="step-*"), ObjectStore.put
    guard.newest()
    guard.begin(ARGUMENTS, points())
    (tmp_path / "step-4").mkdir()
    (tmp_path / "step-4/state").write_text("late")

    def taken_over(*given: Any) -> None:
        CheckpointStore(uri).claim_lease(2, json.dumps(vars(ELSEWHERE)))
        if given:
            put(*given)

    if midst:
        monkeypatch.setattr(ObjectStore, "put", taken_over)
    else:
        taken_over()
    with pytest.raises(SystemExit) as ended:
        guard.saved()

    assert ended.value.code == 75
    assert "was taken over by process 1 on elsewhere" in capsys.readouterr().err
    assert ObjectStore(uri).get("folder.json") is None
    assert midst or CheckpointStore(uri).sizes("contents") == {}


def test_the_identity_travels_with_the_checkpoints(uri, tmp_path, capsys):
    (tmp_path / "here/step-4").mkdir(parents=True)
    (tmp_path / "here/step-4/state").write_text("whole")
    trained(tmp_path / "here", uri=uri, config={"width": 4})

    with pytest.raises(SystemExit) as ended:
        trained(tmp_path / "there", uri=uri, config={"width": 8})

    assert ended.value.code == 65
    assert "run.width  4 -> 8" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"])
def test_another_rank_claims_nothing(variable, tmp_path, monkeypatch):
    """Lightning's own launcher, which starts the others, sets no RANK."""
    monkeypatch.setenv(variable, "1")

    trained(tmp_path, config={"width": 4})

    assert not (tmp_path / "gpu-fleet.json").exists()


def began(directory: str) -> Any:
    """Return the exit status of a rank if only one disk has the newest checkpoint."""
    own = Path(directory) / os.environ["RANK"]
    (own / f"step-{4 * int(os.environ['RANK'])}").mkdir(parents=True)
    dist.init_process_group("gloo")
    guard = Guard(own, pattern="step-*")
    guard.newest()
    said = StringIO()
    try:
        with redirect_stderr(said):
            guard.begin(ARGUMENTS, points())
    except SystemExit as ended:
        return ended.code, said.getvalue()
    return "went on"


def test_ranks_that_would_go_on_from_different_checkpoints_all_end(tmp_path):
    first, second = run_ranks(began, 2, str(tmp_path))

    assert (first[0], second) == (75, (75, ""))
    assert "different checkpoints (rank 0: step-0, rank 1: step-4)" in first[1]


def chosen_beside_a_holder(uri: str, directory: str, with_group: bool) -> str:
    """Return this rank's checkpoint to resume from, if rank 0 finds a holder that saves and then ends."""
    if with_group:
        dist.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        ended_at_the_second_look(uri, Path(directory))
    else:
        told_at_its_first_wait(Path(directory) / "come")
    return Path(str(Guard(Path(directory) / "here", uri, pattern="step-*").newest())).name


def ended_at_the_second_look(uri: str, directory: Path) -> None:
    """Make the holder end once rank 1 waits, or has read the bucket without waiting."""
    holder, former, looks = RunLease(CheckpointStore(uri), ELSEWHERE), directory / "former", count(1)
    holder.acquire()
    leases.LOOK_EVERY_S = 0.0
    look = CheckpointStore.newest_lease

    def newest_lease(store: CheckpointStore) -> Any:
        if next(looks) == 2:
            (directory / "come").read_text()  # a pipe
            (former / "step-8").mkdir()
            (former / "step-8/state").write_text("newer")
            FolderSync(former, ObjectStore(uri)).up(last=True, final=True)
            holder.release()
        return look(store)

    CheckpointStore.newest_lease = newest_lease  # type: ignore[method-assign]


def told_at_its_first_wait(pipe: Path) -> None:
    def telling(action: Any, *, before: bool) -> Any:
        def waits_or_has_looked(*arguments: Any, **named: Any) -> Any:
            result = None if before else action(*arguments, **named)
            if not calls:
                calls.append(pipe.write_text("waits, or has looked"))
            return action(*arguments, **named) if before else result

        return waits_or_has_looked

    calls: list[int] = []
    FolderSync.down = telling(FolderSync.down, before=False)  # type: ignore[method-assign]
    dist.barrier = telling(dist.barrier, before=True)
    dist.TCPStore.wait = telling(dist.TCPStore.wait, before=True)  # type: ignore[method-assign]


@pytest.mark.parametrize("with_group", [False, True], ids=["before the ranks have met", "in a group"])
def test_all_ranks_go_on_from_what_the_holder_before_saved_last(with_group, uri, tmp_path):
    (tmp_path / "former/step-4").mkdir(parents=True)
    (tmp_path / "former/step-4/state").write_text("older")
    FolderSync(tmp_path / "former", ObjectStore(uri)).up(last=True, final=True)
    os.mkfifo(tmp_path / "come")

    assert run_ranks(chosen_beside_a_holder, 2, uri, str(tmp_path), with_group) == ["step-8", "step-8"]


def hugging_face(**changed: Any) -> Callable[[Path], None]:
    arguments = {
        "learning_rate": 0.1,
        "lr_scheduler_type": "linear",
        "max_steps": 9,
        "num_train_epochs": 3.0,
        "train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "world_size": 2,
        "logging_steps": 5,
    }

    def train(folder: Path) -> None:
        callback = FleetCallback(folder)
        callback.newest()
        args: Any = SimpleNamespace(ignore_data_skip=False, **arguments | changed)
        loader = SimpleNamespace(dataset=points())
        callback.on_train_begin(args, None, None, torch.nn.Linear(1, 1), train_dataloader=loader)
        (folder / "checkpoint-4").mkdir(exist_ok=True)
        (folder / "checkpoint-4/trainer_state.json").touch()
        callback.on_train_end(args, None, None)

    return train


@pytest.mark.parametrize(
    ("before", "now", "row"),
    [
        ({}, {"learning_rate": 0.2}, "arguments.learning_rate"),
        ({}, {"max_steps": 12}, "arguments.max_steps"),
        ({}, {"world_size": 1}, "arguments.batch_size  16 -> 8"),
        ({}, {"world_size": 1, "gradient_accumulation_steps": 2}, ""),
        ({}, {"logging_steps": 1}, ""),
        ({"lr_scheduler_type": "constant"}, {"lr_scheduler_type": "constant", "max_steps": 12}, ""),
    ],
)
def test_of_the_trainers_arguments_those_count_that_change_the_result(before, now, row, tmp_path, capsys):
    hugging_face(**before)(tmp_path)

    if not row:
        hugging_face(**now)(tmp_path)
        return
    with pytest.raises(SystemExit) as ended:
        hugging_face(**now)(tmp_path)

    assert (ended.value.code, row in capsys.readouterr().err) == (65, True)


class KilledTrainer:
    """Trainer that evaluates at the start, as its checkpoint asks, and is killed while it saves again."""

    def __init__(self, folder: Path) -> None:
        self.callback = FleetCallback(folder)
        self.optimizer = self.model = None
        self.callback_handler = self.callback
        self.found = self.callback.newest()
        self.args: Any = SimpleNamespace(
            ignore_data_skip=False, lr_scheduler_type="constant", train_batch_size=8,
            gradient_accumulation_steps=1, world_size=1, output_dir=str(folder),
        )  # fmt: skip
        self.state = SimpleNamespace(
            global_step=4,
            max_steps=9,
            stateful_callbacks={"TrainerControl": {"args": {"should_evaluate": True}}},
        )

    def train(self) -> None:
        control = SimpleNamespace(should_training_stop=False)
        self.callback.on_train_begin(self.args, self.state, control, torch.nn.Linear(1, 1))

    def _save_checkpoint(self, _model: Any, _trial: Any) -> None:
        weights = Path(self.args.output_dir) / "checkpoint-4/model.safetensors"
        weights.parent.mkdir(exist_ok=True)
        weights.write_text("to")
        raise KeyboardInterrupt

    def _evaluate(self, *_: Any) -> dict[str, float]:
        return {}

    def _load_rng_state(self, _checkpoint: str) -> None: ...

    def _determine_best_metric(self, **_: Any) -> None: ...


def test_a_checkpoint_is_whole_after_a_kill_while_it_was_written_again(tmp_path):
    weights = tmp_path / "checkpoint-4/model.safetensors"
    weights.parent.mkdir()
    weights.write_text("whole")
    (tmp_path / "checkpoint-4/trainer_state.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        KilledTrainer(tmp_path).train()

    found = FleetCallback(tmp_path).newest()

    assert (found, weights.read_text()) == (str(weights.parent), "whole")
    assert [path.name for path in (tmp_path / ".gpu-fleet").iterdir()] == ["lock"]
