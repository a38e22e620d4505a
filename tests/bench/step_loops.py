"""One loop over one small decoder, each of its steps beside one of a bare loop in the same process.

    python -m tests.bench.step_loops NAME DATA LOG_EVERY

NAME is one of LOOPS: the same model, loss, optimizer and batches for each, in the words of each library, with
a plain DataLoader but for our own. After every step of the loop the bare loop does one, so that both share
what else the instance does, and the answer is what BLOCKS blocks of both took.
"""

import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from gpu_fleet.core import config
from gpu_fleet.core.world import world
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.models import registry
from gpu_fleet.models.definitions import Facts
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption, sources
from gpu_fleet.preemption.watchdog import Watchdog
from gpu_fleet.trainer.initial_state import fresh_state, rehearse
from gpu_fleet.trainer.loop import train_steps
from gpu_fleet.trainer.prepared_run import opened

STEPS_A_BLOCK = 10  # an interval of the log
WARM_UP = 3  # blocks
BLOCKS = 40
FOREVER = 10**6  # steps; the process ends after those that are timed
BATCH, LENGTH, VOCABULARY = 8, 32, 256
OPTIONS = {"hidden_size": 64, "layers": 2, "heads": 4, "intermediate_size": 160}
LEARNING_RATE = 1e-3


Clock = Callable[[], float]


class BesideBare:
    """Calls of `step` end steps of a loop; after each, the bare loop does one, and both are timed.

    On the wall, and in processor time: of the bare loop that of its thread, of the other one all the rest.
    """

    def __init__(self, bare_steps: Iterator[None]) -> None:
        self._bare_steps = bare_steps
        self._blocks: list[dict[str, list[float]]] = []
        self._steps = 0
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), time.thread_time()

    def step(self) -> None:
        wall, _, thread = self._now()
        next(self._bare_steps)
        bare_wall, bare_cpu, bare_thread = self._now()
        if self._steps % STEPS_A_BLOCK == 0:
            self._blocks.append({"wall": [0.0, 0.0], "cpu": [0.0, 0.0]})
        self._steps += 1
        took = self._blocks[-1]
        bare_s = bare_thread - thread
        took["wall"][0] += wall - self._start[0]
        took["wall"][1] += bare_wall - wall
        took["cpu"][0] += bare_cpu - self._start[1] - bare_s
        took["cpu"][1] += bare_s
        if self._steps == STEPS_A_BLOCK * (WARM_UP + BLOCKS):
            print(json.dumps(self._blocks[WARM_UP:]), flush=True)  # noqa: T201 - read by the parent
            os._exit(0)  # out of a loop that knows no end
        self._start = self._now()


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """What a page of PyTorch reads token files with."""

    def __init__(self, data: Path, length: int) -> None:
        self._tokens = np.memmap(data / "train" / "tokens.bin", dtype="<u2", mode="r")
        self._length = length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return pair_of(self._tokens[index * self._length : (index + 1) * self._length + 1])


def pair_of(window: Any) -> tuple[Tensor, Tensor]:
    """Tokens and the next ones, from one more of them than a sample has."""
    tokens = torch.from_numpy(window.astype(np.int64))
    return tokens[:-1], tokens[1:]


def loader(data: Path) -> DataLoader[Any]:
    """Without reader processes, which gain nothing here: a batch is read in a tenth of a millisecond."""
    return DataLoader(Sequences(data, LENGTH), batch_size=BATCH, shuffle=True, drop_last=True)


def model() -> nn.Module:
    return registry.build("gpt", OPTIONS, Facts(0, VOCABULARY, LENGTH), "tokens", "")


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def endless(batches: DataLoader[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(batches for _ in itertools.count())


def bare_steps(data: Path, log_every: int) -> Iterator[None]:
    """What one writes oneself; yields after each step."""
    module = model().train()
    optimizer = optimizer_of(module)
    with tempfile.TemporaryFile("w") as log:
        for number, (inputs, targets) in enumerate(endless(loader(data)), start=1):
            loss = loss_of(module(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % log_every == 0:
                log.write(f"{number} {loss.item()}\n")
                log.flush()
            yield


def bare(data: Path, log_every: int, turns: BesideBare) -> None:
    """The bare loop once more: how far two equal loops lie apart."""
    for _ in bare_steps(data, log_every):
        turns.step()


def ours(data: Path, log_every: int, turns: BesideBare) -> None:
    """The loop of this repository as `train start` runs it: watchdog, interruption, metrics and all."""

    class Trace(StepTrace):
        def after_step(self, step: int) -> None:
            del step
            turns.step()

    with tempfile.TemporaryDirectory() as directory:
        table = {
            "run": {
                "directory": directory,
                "steps": FOREVER,
                "batch_size": BATCH,
                "log_every_steps": log_every,
            },
            "model": {"name": "gpt", "options": OPTIONS},
            "data": {"path": str(data), "sequence_length": LENGTH},
            "optimizer": {"learning_rate": LEARNING_RATE},
            "checkpoint": {"every_steps": 0, "every_s": 0.0},
            "metrics": {"progress": False},
        }
        settings = config.from_table(table, "bench")
        with (
            Interruption(sources(), settings.interrupt.poll_s) as interruption,
            world(settings.parallel) as where,
            opened(settings, where) as run,
        ):
            state = fresh_state(run)
            every_s, due = settings.interrupt.agree_every_s, run.checkpoints.due_by_time
            with Watchdog(
                where.rank, settings.parallel.timeout_s, Path(directory), lambda: state.step
            ) as dog:
                stop = Stop(where, interruption, every_s, due, dog.beat)
                rehearse(run, state)
                train_steps(replace(run, trace=Trace((), Path())), state, stop)


def accelerate(data: Path, log_every: int, turns: BesideBare) -> None:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415 - of the peers' environment

    accelerator = Accelerator(cpu=True)
    module = model().train()
    module, optimizer, batches = accelerator.prepare(module, optimizer_of(module), loader(data))
    with tempfile.TemporaryFile("w") as log:
        for number, (inputs, targets) in enumerate(endless(batches), start=1):
            loss = loss_of(module(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if number % log_every == 0:
                log.write(f"{number} {loss.item()}\n")
                log.flush()
            turns.step()


def lightning(data: Path, log_every: int, turns: BesideBare) -> None:
    """Lightning's Trainer, with everything off that it need not do."""
    import lightning  # noqa: PLC0415 - of the peers' environment
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logs = log_every < FOREVER

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def training_step(self, batch: Any, _number: int) -> Tensor:
            loss = loss_of(self.network(batch[0]), batch[1])
            if logs:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self)

    class Clock(lightning.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=FOREVER,
            logger=CSVLogger(folder) if logs else False,
            log_every_n_steps=log_every,
            callbacks=[Clock()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Module(), loader(data))


def hugging_face(data: Path, log_every: int, turns: BesideBare) -> None:
    """The Trainer of transformers."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415 - slow to load

    class Named(Sequences):
        def __getitem__(self, index: int) -> Any:
            inputs, targets = super().__getitem__(index)
            return {"inputs": inputs, "labels": targets}

    class Losing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.network(inputs), labels)}

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    with tempfile.TemporaryDirectory() as folder:
        logs = log_every < FOREVER
        arguments = TrainingArguments(
            folder,
            max_steps=FOREVER,
            per_device_train_batch_size=BATCH,
            learning_rate=LEARNING_RATE,
            max_grad_norm=0,
            logging_strategy="steps" if logs else "no",
            logging_steps=log_every,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            dataloader_drop_last=True,
        )
        Trainer(Losing(), arguments, train_dataset=Named(data, LENGTH), callbacks=[Clock()]).train()


LOOPS: dict[str, Callable[[Path, int, BesideBare], None]] = {
    "bare": bare,
    "ours": ours,
    "accelerate": accelerate,
    "lightning": lightning,
    "hugging_face": hugging_face,
}


def main(name: str, data: Path, log_every: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    LOOPS[name](data, log_every, BesideBare(bare_steps(data, log_every)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
