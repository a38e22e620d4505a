"""`from gpu_fleet import Run` in a user's own loop."""

import json
import logging
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from gpu_fleet import Run
from gpu_fleet.checkpoint import local, run_identity
from gpu_fleet.checkpoint.lease import RunClaim
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, ConfigError, DataError, RunLeaseError
from gpu_fleet.integrations import run as library
from gpu_fleet.step import state as states
from gpu_fleet.step.state import parameters_sha256
from tests.releases import run as released
from tests.training.examples import CountingInterruption
from tests.training.programs import ROOT
from tests.training.ranks import run_ranks

LOOP = ROOT / "training/examples/own_loop.py"
RELEASES = sorted(path.parents[0] for path in (ROOT / "tests/releases").glob("*/run"))


def loop_rank(directory: str, stop_at: int = 0, workers: int = 0) -> int:
    """Run the example on this rank, and stop it after so many steps; return its exit status."""
    os.environ |= {"STEPS": "8", "WORKERS": str(workers)}
    rank = int(os.environ["RANK"])
    library.Interruption = lambda *_: CountingInterruption(stop_at if rank else 0)  # type: ignore[misc,assignment]
    library.AGREE_EVERY_S = 0.0
    sys.argv = ["own_loop.py", directory]
    try:
        runpy.run_path(str(LOOP))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.prove), 2])
def test_a_loop_that_is_interrupted_on_two_ranks_ends_with_the_same_bits(workers, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"

    assert run_ranks(loop_rank, 2, str(straight), 0, 0) == [0, 0]
    assert run_ranks(loop_rank, 2, str(broken), 3, workers) == [85, 85]
    stopped = result(broken)
    assert run_ranks(loop_rank, 2, str(broken), 0, workers) == [0, 0]

    assert (stopped["outcome"], stopped["step"], result(broken)["resumed_from_step"]) == ("stopped", 4, 4)
    assert result(broken)["parameters_sha256"] == result(straight)["parameters_sha256"]
    assert result(broken)["parameters_sha256"] != stopped["parameters_sha256"]


def points(count: int, seed: int = 0) -> list[torch.Tensor]:
    """Return `count` samples, the same for the same seed."""
    return list(torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)))


def small(
    directory: Path, steps: int, data: list[torch.Tensor] | None = None, batch_size: int = 2, **options: Any
) -> nn.Module:
    """Train in this process, with random numbers in every step; return the model."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Run(directory, model=model, optimizer=optimizer, **options) as run:
        batches = run.batches(data if data is not None else points(9), batch_size=batch_size)
        for _ in run.steps(steps):
            model(next(batches) + torch.randn(3)).mean().backward()
            optimizer.step()
    return model


def test_a_finished_run_is_in_the_bucket_and_not_trained_again(bucket, tmp_path):
    uri = f"s3://{bucket}/mine"
    torch.manual_seed(0)
    first = small(tmp_path / "here", 4, uri=uri)

    again = small(tmp_path / "there", 4, uri=uri)

    assert torch.equal(first.weight, again.weight)
    assert result(tmp_path / "there")["resumed_from_step"] == 4
    assert result(tmp_path / "there")["checkpoint"] == uri


# what the configuration was, is now, and what is said of it
OTHER: list[tuple[dict[str, Any], dict[str, Any] | None, str]] = [
    ({"lr": 0.1}, {"lr": 0.2}, "run.lr  0.1 -> 0.2"),
    ({"lr": 0.1}, {"lr": 0.1, "decay": 0.9}, "run.decay  (none) -> 0.9"),
    ({"lr": 0.1, "decay": 0.9}, {"lr": 0.1}, "run.decay  0.9 -> (none)"),
    ({}, {"lr": 0.1}, "run.lr  (none) -> 0.1"),
    ({"lr": 0.1}, None, "run.lr  0.1 -> (none)"),
]


def test_a_run_with_another_configuration_is_refused_until_its_key_is_allowed(tmp_path, capsys):
    for number, (before, now, row) in enumerate(OTHER):
        folder, key = tmp_path / str(number), row.split(maxsplit=1)[0]
        small(folder, 2, config=before)
        finished = (folder / "result.json").read_bytes()

        with pytest.raises(SystemExit) as end:
            small(folder, 3, config=now)
        hopeless = (folder / outcome.FAILURE).exists()  # which `train run` around torchrun reads
        kept = (folder / "result.json").read_bytes() == finished
        small(folder, 3, config=now, allow=[key])

        assert (end.value.code, hopeless, kept) == (65, True, True)
        assert row in (said := capsys.readouterr().err)
        assert f"to go on all the same: Run(allow=['{key}'])" in said
        assert "Traceback" not in said


def rank_with_its_number_in_config(directory: str, steps: int) -> None:
    """Run with the rank in `config`, as `config=vars(arguments)` may have it."""
    dist.init_process_group("gloo")
    small(Path(directory), steps, config={"rank": dist.get_rank()})


def test_a_configuration_that_names_its_rank_resumes_on_all_ranks(tmp_path):
    for steps in (2, 4):
        run_ranks(rank_with_its_number_in_config, 2, str(tmp_path), steps)

    assert (result(tmp_path)["resumed_from_step"], result(tmp_path)["step"]) == (2, 4)


def test_a_value_of_a_configuration_is_written_the_same_in_every_process():
    """The order of a set and the address of a function or an object differ by process."""
    values = {"set": {"b", "c", "a"}, "function": points, "objects": [object()]}

    written = dict(run_identity.flattened({"run": values}))

    assert written == {
        "run.set": '["a", "b", "c"]',
        "run.function": '"<function points>"',
        "run.objects": '["<object object>"]',
    }


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"data": points(8)}, "data.samples  9 -> 8"),
        ({"data": points(9, seed=1)}, "data.content"),
        ({"batch_size": 4}, "data.batch_size  2 -> 4"),
    ],
)
def test_a_run_with_other_data_is_refused_and_leaves_the_result(changed, row, tmp_path, capsys):
    small(tmp_path, 2)
    before = (tmp_path / "result.json").read_bytes()

    with pytest.raises(SystemExit) as end:
        small(tmp_path, 3, **changed)
    said, left = capsys.readouterr().err, (tmp_path / "result.json").read_bytes()
    small(tmp_path, 3, **changed, allow=["data.samples", "data.content", "data.batch_size"])

    assert (end.value.code, row in said, "Traceback" in said, left == before) == (65, True, False, True)
    assert result(tmp_path)["step"] == 3


def test_data_that_draw_from_a_generator_of_their_own_are_resumed(tmp_path, caplog):
    class Drawn:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> torch.Tensor:
            chance = torch.Generator()
            chance.seed()
            return torch.randn(3, generator=chance)

    data: Any = Drawn()
    small(tmp_path, 2, data)

    small(tmp_path, 3, data)

    assert result(tmp_path)["resumed_from_step"] == 2
    assert "not exact: samples draws from a generator of its own" in caplog.text


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_a_run_of_an_earlier_release_goes_on(release: Path, tmp_path: Path) -> None:
    shutil.copytree(release / "run", tmp_path / "run")

    found = released.loop(tmp_path / "run", released.STEPS + 1)

    assert found == json.loads((release / "facts.json").read_text())["run"]
    assert result(tmp_path / "run")["resumed_from_step"] == released.STEPS


def test_what_the_loop_reads_on_the_way_is_no_part_of_the_run(tmp_path):
    """Held-out data may be opened at some steps only."""

    def evaluated(steps: int, at: int) -> None:
        with Run(tmp_path, model=nn.Linear(3, 1)) as run:
            run.batches(points(9), batch_size=2)
            for step in run.steps(steps):
                if step == at:
                    run.batches(points(4, seed=step), batch_size=2)

    evaluated(2, at=1)
    evaluated(4, at=3)

    assert result(tmp_path)["step"] == 4


def test_a_checkpoint_that_does_not_fit_fails_for_good(tmp_path, capsys):
    with Run(tmp_path, model=nn.Linear(3, 1)) as run:
        list(run.steps(1))

    with pytest.raises(SystemExit) as end, Run(tmp_path, model=nn.Linear(4, 1)):
        pass

    assert end.value.code == 65
    assert "error: Run(model=...): the checkpoint does not fit it: " in capsys.readouterr().err


class Growing(nn.Linear):
    """Layer with a buffer that its first pass makes longer."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("held", torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.held = torch.ones(2)
        return super().forward(inputs)


def test_a_loop_whose_buffers_could_not_be_loaded_again_ends_with_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Growing()

    def loop() -> None:
        with Run(tmp_path, model=model) as run:
            for _ in run.steps(3):
                model(torch.ones(1, 3))

    with pytest.raises(SystemExit) as end:
        loop()

    assert end.value.code == 65
    said = capsys.readouterr().err
    assert "error: Run(model=...): buffer held changes its shape in a step, from [1] to [2]" in said


class Scored(nn.Linear):
    """Layer with a best score so far, and a mean of its inputs."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("best", torch.tensor(0.0))
        self.register_buffer("mean", torch.tensor(0.0))


@pytest.mark.parametrize("name", ["weight", "mean"])
def test_a_loop_that_diverges_is_no_success_and_saves_nothing(name, tmp_path, capsys):
    model = Scored()

    def loop() -> None:
        with Run(tmp_path, every_steps=2, model=model) as run:
            for step in run.steps(6):
                model.best.fill_(-torch.inf)
                if step == 2:
                    model.state_dict()[name].fill_(torch.nan)

    with pytest.raises(SystemExit) as end:
        loop()

    assert end.value.code == 65
    expected = (
        rf"error: the weights of rank 0 are no finite numbers after step 4, which is not saved; .* {name}$"
    )
    assert re.search(expected, capsys.readouterr().err, re.MULTILINE)
    assert local.steps(tmp_path / "checkpoints") == [2]


def test_a_model_that_learns_its_shape_in_its_first_step_resumes(tmp_path):
    def trained(folder: Path, count: int) -> list[float]:
        model = nn.LazyLinear(1)
        optimizer = torch.optim.Adam(model.parameters())
        torch.manual_seed(0)
        with Run(folder, model=model, optimizer=optimizer) as run:
            for _ in run.steps(count):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
        return model.weight.flatten().tolist()

    trained(tmp_path / "stopped", 1)

    assert trained(tmp_path / "stopped", 3) == trained(tmp_path / "straight", 3)


def is_free(directory: Path) -> bool:
    """Return whether another process may lock the folder of a run."""
    try:
        local.lock(directory / "checkpoints").close()
    except CheckpointError:
        return False
    return True


class Pair(NamedTuple):
    low: int
    high: int


class Keeper:
    """An object whose state has containers of many kinds."""

    def __init__(self, step: int = 0) -> None:
        self.state: dict[str, Any] = {
            "counter": Counter({3: step}),
            "ordered": OrderedDict(first=[step]),
            "lists": defaultdict(list, {step: [step]}),
            "betas": (0.9, 0.99 + step),
            "pair": Pair(step, 2),
            "seen": {step, "start"},
            "best": np.float64(0.5) if step else 0.0,
            "size": torch.Size([step, 2]),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def kinds(state: dict[str, Any]) -> dict[str, Any]:
    return {key: (type(value), value) for key, value in state.items()}


def test_a_state_comes_back_with_the_kinds_of_its_containers(tmp_path):
    saved, read = Keeper(7), Keeper()
    with Run(tmp_path, keeper=saved) as run:
        list(run.steps(1))

    with Run(tmp_path, keeper=read):
        pass

    assert kinds(read.state) == kinds(saved.state | {"best": 0.5})
    assert isinstance(read.state["lists"], defaultdict)
    assert read.state["lists"]["new"] == []


class Summed(nn.Module):
    """A module that takes one part of its state as it is, as torchmetrics do, and copies the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sum = nn.Linear(2, 2), torch.zeros(3)

    def get_extra_state(self) -> torch.Tensor:
        return self.sum

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.sum = state


def test_what_an_object_takes_as_it_is_comes_back_on_its_device_and_weights_are_not_moved_twice(
    tmp_path, monkeypatch
):
    """On an H100 the first update of a meter after a resume failed: its sum lay on the CPU."""
    with Run(tmp_path, meter=Summed()) as run:
        list(run.steps(1))
    moved, to = [], torch.Tensor.to

    def recorded(tensor: torch.Tensor, *where: Any) -> torch.Tensor:
        moved.append((*tensor.shape, *where))
        return to(tensor, *where)

    monkeypatch.setattr(torch.Tensor, "to", recorded)

    with Run(tmp_path, meter=Summed()):
        pass

    assert (3, torch.device("cpu")) in moved
    assert all(each[:-1] in ((), (3,)) for each in moved)


def scheduled(directory: Path, steps: int) -> list[float]:
    """Return the learning rate of each step of a run whose schedule has a warm-up and milestones."""
    parameter = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(parameter.parameters(), lr=1.0)
    warm_up = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3)
    milestones = lr_scheduler.MultiStepLR(optimizer, [1, 2, 2])
    schedule = lr_scheduler.SequentialLR(optimizer, [warm_up, milestones], [4])
    rates = []
    with Run(directory, model=parameter, optimizer=optimizer, schedule=schedule) as run:
        for _ in run.steps(steps):
            parameter(torch.ones(1)).backward()
            optimizer.step()
            schedule.step()
            rates += schedule.get_last_lr()
    return rates


def test_a_resumed_schedule_reaches_its_milestones_after_its_first_part(tmp_path):
    undisturbed = scheduled(tmp_path / "straight", 8)

    resumed = scheduled(tmp_path / "resumed", 2) + scheduled(tmp_path / "resumed", 8)

    assert resumed == undisturbed
    assert undisturbed[-1] < 0.01


def test_a_module_without_parameters_may_come_first(tmp_path):
    model = nn.Linear(3, 1)

    with Run(tmp_path, loss=nn.CrossEntropyLoss(weight=torch.ones(2)), model=model) as run:
        list(run.steps(1))

    assert result(tmp_path)["parameters_sha256"] == parameters_sha256(model, run._where)


def test_a_folder_is_another_processes_once_the_loop_is_over(tmp_path):
    with Run(tmp_path, model=nn.Linear(3, 1)) as run:
        meanwhile = run_ranks(is_free, 1, tmp_path)

    assert (meanwhile, run_ranks(is_free, 1, tmp_path)) == ([False], [True])
    assert run is not None  # it is over, and not yet collected
    lock = local.lock(tmp_path)
    lock.close()
    with pytest.raises(RunLeaseError):
        lock.check()


def test_a_step_is_saved_every_so_often(tmp_path):
    small(tmp_path, 7, every_steps=3)

    assert local.steps(tmp_path / "checkpoints") == [3, 6, 7]


def test_a_signal_does_not_cut_the_last_upload_off(tmp_path, monkeypatch):
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    close = Saver.close

    def signalled(saver: Saver, within_s: float | None = None) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return close(saver, within_s)

    monkeypatch.setattr(Saver, "close", signalled)
    try:
        small(tmp_path, 2)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (heard, result(tmp_path)["outcome"]) == ([], "finished")


def test_a_step_that_the_loop_is_left_in_is_saved_and_gone_on_from(tmp_path):
    model = nn.Linear(3, 1)
    with Run(tmp_path, model=model) as run:
        for step in run.steps(7):
            nn.init.constant_(model.weight, float(step))
            if step == 4:
                break
    left = result(tmp_path)
    with Run(tmp_path, model=model) as run:
        found = model.weight[0, 0].item()
        rest = list(run.steps(7))

    assert (left["outcome"], left["reason"], left["step"]) == ("finished", "left the loop", 5)
    assert (found, rest) == (4.0, [5, 6])
    assert result(tmp_path)["reason"] == "all steps done"


def test_a_save_that_has_begun_is_committed_when_the_loop_fails(tmp_path, monkeypatch):
    released = threading.Event()
    commit, close, release = local.commit, Saver.close, RunClaim.release

    def committed(*arguments: Any) -> local.Manifest:
        """Commit only once the loop waits for it, or lock and lease are released, as with a large model."""
        released.wait()
        return commit(*arguments)

    def closed(saver: Saver, within_s: float | None = None) -> bool:
        released.set()
        return close(saver, within_s)

    def freed(claim: RunClaim) -> None:
        release(claim)
        released.set()
        for thread in threading.enumerate():
            if thread.name == "checkpoint-write":
                thread.join(60)

    monkeypatch.setattr(local, "commit", committed)
    monkeypatch.setattr(Saver, "close", closed)
    monkeypatch.setattr(RunClaim, "release", freed)

    def fails() -> None:
        with Run(tmp_path, model=nn.Linear(3, 1), every_steps=1) as run:
            for step in run.steps(10):
                if step == 1:
                    raise DataError("no such sample")

    with pytest.raises(SystemExit) as end:
        fails()

    assert end.value.code == DataError().exit_status
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-1"]


class OwnTensor(torch.Tensor):
    pass


class Odd:
    """Object whose state cannot be read again without running code."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"path": self.value}

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("objects", "batch_size", "message"),
    [
        ({"odd": 1}, 2, "Run(odd=...): an int has no state_dict to save"),
        ({"odd": Odd(Path())}, 2, "Run(odd=...): its state_dict holds a PosixPath"),
        ({"odd": Odd(torch.ones(1).as_subclass(OwnTensor))}, 2, "Run(odd=...): its state_dict holds an OwnT"),
        ({}, 0, "batch_size = 0: write a whole number, 1 or more"),
        ({"keep": -1}, 2, "keep = -1: write a whole number, 1 or more"),
        ({"every_s": float("nan")}, 2, "every_s = nan: write a number, 0 or more"),
    ],
)
def test_what_cannot_be_is_reported_in_one_message(objects, batch_size, message, tmp_path, capsys):
    def attempt() -> None:
        with Run(tmp_path, **objects) as run:
            run.batches([1, 2], batch_size)
            run.save()

    with pytest.raises(SystemExit):
        attempt()

    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("use", [lambda run: next(run.steps(1)), lambda run: run.batches([1], 1), Run.save])
def test_a_run_that_was_not_entered_says_so(use, tmp_path):
    with pytest.raises(ConfigError, match=r"write: with Run\(...\) as run:"):
        use(Run(tmp_path))


def sharded_rank(directory: str) -> str:
    dist.init_process_group("gloo")
    fully_shard(model := nn.Linear(3, 1))
    with redirect_stderr(StringIO()) as said, pytest.raises(SystemExit), Run(directory, model=model):
        pass
    return said.getvalue()


def test_a_sharded_model_is_refused(tmp_path):
    (said,) = run_ranks(sharded_rank, 1, str(tmp_path))

    assert said.startswith("error: Run(model=...): is sharded, and Run saves only whole models")


def rank_alone(directory: str, seed_by_rank: int) -> str:
    """Run steps of a model without DistributedDataParallel; return the warnings of this rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(seed_by_rank * dist.get_rank())
    heard = StringIO()
    logging.getLogger("gpu_fleet.integrations").addHandler(logging.StreamHandler(heard))
    with Run(directory, net=nn.Linear(3, 1)) as run:
        list(run.steps(2))
    return heard.getvalue()


class Meter:
    """An object of a user's that each rank fills with its own values."""

    def __init__(self) -> None:
        self.seen = [torch.zeros(())]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def rank_that_draws(directory: str, steps: int) -> list[float]:
    """Return what a meter of this rank holds of a generator that each rank seeds by its own number."""
    dist.init_process_group("gloo")
    chance, meter = torch.Generator().manual_seed(dist.get_rank()), Meter()
    with Run(directory, net=nn.Linear(3, 1), chance=chance, meter=meter) as run:
        for _ in run.steps(steps):
            meter.seen.append(torch.rand((), generator=chance))
    return [float(value) for value in meter.seen]


def test_each_rank_goes_on_with_its_own_generator_and_its_own_objects(tmp_path):
    straight = run_ranks(rank_that_draws, 2, str(tmp_path / "straight"), 4)
    run_ranks(rank_that_draws, 2, str(tmp_path / "resumed"), 2)

    resumed = run_ranks(rank_that_draws, 2, str(tmp_path / "resumed"), 4)

    assert resumed == straight
    assert straight[0] != straight[1]


class Alike:
    """Two ranks that hold the same."""

    size = 2

    def gather(self, mine: Any) -> list[Any]:
        return [mine, mine]


def test_what_all_ranks_hold_alike_is_copied_one_tensor_at_a_time(monkeypatch):
    """An average of all weights may be as large as the model."""
    copies, at_once = [], []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        copies.append(weakref.ref(copy))
        at_once.append(sum(each() is not None for each in copies))
        return copy

    monkeypatch.setattr(states, "whole", copied)

    held = {"average": [torch.zeros(4) for _ in range(3)], "sum": torch.ones(2)}
    assert states.of_ranks(held, Alike()) == []
    assert at_once == [1, 1, 1, 1]


class Asked(Meter):
    """An object that notes when its state is asked for, which may be a call of all ranks."""

    def __init__(self, name: str, asked: list[str]) -> None:
        super().__init__()
        self.name, self.asked = name, asked

    def state_dict(self) -> dict[str, Any]:
        self.asked.append(self.name)
        return super().state_dict()


def rank_that_is_asked(directory: str) -> list[str]:
    dist.init_process_group("gloo")
    asked: list[str] = []
    with Run(directory, **{name: Asked(name, asked) for name in "hgfedcba"}) as run:
        run.save()
    return asked


def test_every_rank_asks_own_objects_for_their_states_in_the_order_of_the_run(tmp_path):
    assert run_ranks(rank_that_is_asked, 2, str(tmp_path)) == [[*"hgfedcba"]] * 2


class Drawing(Meter):
    """An object that draws from a generator as it loads."""

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()
        self.source = source

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.rand((), generator=self.source)


def test_a_generator_goes_on_where_it_was_also_if_an_object_draws_from_it_as_it_loads(tmp_path):
    source, other = torch.Generator().manual_seed(1), torch.Generator()
    with Run(tmp_path, source=source, drawing=Drawing(source)) as run:
        list(run.steps(1))

    with Run(tmp_path, source=other, drawing=Drawing(other)):
        pass

    assert torch.rand((), generator=other) == torch.rand((), generator=source)


def test_an_object_that_differs_by_rank_is_named_where_the_number_of_ranks_is_another(tmp_path, caplog):
    run_ranks(rank_that_draws, 2, str(tmp_path), 2)

    with Run(tmp_path, net=nn.Linear(3, 1), chance=torch.Generator(), meter=Meter()) as run:
        list(run.steps(3))

    assert "not exact: the ranks held different chance, meter, and their number is another now" in caplog.text


def test_ranks_that_hold_different_weights_are_named_once(tmp_path):
    for seed_by_rank in (0, 1):
        first, second = run_ranks(rank_alone, 2, str(tmp_path / str(seed_by_rank)), seed_by_rank)

        assert first.count("Run(net=...): the ranks hold different weights") == seed_by_rank
        assert "different weights" not in second


def taken(folder: Path, steps: int, how: str) -> list[float]:
    """Return what a loop has read that takes batches in another way than one a step."""
    read, more = Meter(), {"more": Meter()} if how else {}
    with Run(folder, net=nn.Linear(3, 1), read=read, **more) as run:
        first = run.batches(points(9), batch_size=2)
        second = run.batches_of(DataLoader(points(6, seed=1), 2, shuffle=True))
        ahead = next(first) if how == "ahead" else None  # as a prefetcher does
        noise = torch.randn(3)  # the same at each start
        for step in run.steps(steps):
            for _ in range(1 if how == "in turn" else 2):
                reader = second if how == "in turn" and step % 2 else first
                batch, ahead = (next(reader), None) if ahead is None else (ahead, next(reader))
                read.seen.append((batch * noise).sum())
    return [float(value) for value in read.seen]


def taken_within(folder: Path, steps: int) -> list[float]:
    """Return what a loop has read by a reader that its first step opened, and by others opened anew."""
    torch.manual_seed(0)
    read, reader, held_out = Meter(), None, DataLoader(points(6, seed=2), 2)
    with Run(folder, net=nn.Linear(3, 1), read=read) as run:
        for step in run.steps(steps):
            reader = reader or run.batches_of(DataLoader(points(6, seed=1), 2, shuffle=True))
            read.seen.append(next(reader).sum())
            if step % 2 == 0:
                scored = run.batches_of(held_out)
                read.seen.append((next(scored) + next(scored)).sum())
    return [float(value) for value in read.seen]


def test_a_loop_that_opens_its_readers_itself_resumes_where_it_was(tmp_path):
    whole = taken_within(tmp_path / "straight", 8)

    for steps in (3, 4, 6, 8):
        again = taken_within(tmp_path / "stopped", steps)

    assert again == whole


@pytest.mark.parametrize("how", ["two", "in turn", "ahead"])
def test_a_loop_that_takes_batches_in_its_own_way_resumes_where_it_was(how, tmp_path, caplog):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    torch.manual_seed(0)
    whole = taken(straight, 8, how)

    for steps in (3, 5, 8):
        torch.manual_seed(0)
        again = taken(stopped, steps, how)

    assert again == whole
    assert "not exact" not in caplog.text


def test_a_first_step_that_may_have_read_ahead_is_named(tmp_path, caplog):
    taken(tmp_path, 1, "two")

    assert "a step took 2 batches, and it is unknown which of them it read ahead" in caplog.text


def test_ranks_that_have_not_met_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(SystemExit, match="init_process_group before it"):
        Run(tmp_path).__enter__()
