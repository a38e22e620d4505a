"""One loop over one small decoder, in a process of its own, for bench_trainer_overhead to run by turns.

    python -m tests.bench.step_loops NAME DATA LOG_EVERY

NAME is one of LOOPS: the same model, loss, optimizer and batches for each, in the words of each library, with
a plain DataLoader but for our own. It does STEPS_A_TURN steps for every line on its input and answers with
the seconds that a step took.
"""

import itertools
import logging
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

from gpu_fleet import config
from gpu_fleet.loop import train_steps
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.models import registry
from gpu_fleet.models.definitions import Facts
from gpu_fleet.prepared_run import fresh_state, opened, rehearse
from gpu_fleet.stopping.agreement import Stop
from gpu_fleet.stopping.interrupt import Interruption, sources
from gpu_fleet.stopping.watchdog import Watchdog
from gpu_fleet.world import world

STEPS_A_TURN = 20
FOREVER = 10**6  # steps; the process ends when nobody gives it another turn
BATCH, LENGTH, VOCABULARY = 8, 32, 256
OPTIONS = {"hidden_size": 64, "layers": 2, "heads": 4, "intermediate_size": 160}
LEARNING_RATE = 1e-3


class Turns:
    """Calls of `step` end steps; between two turns it waits for a line on standard input."""

    def __init__(self) -> None:
        self._done = 0
        self._begin = 0.0, 0.0

    def step(self) -> None:
        self._done += 1
        if self._done % STEPS_A_TURN == 0:
            wall_s, cpu_s = (now - then for now, then in zip(_now(), self._begin, strict=True))
            answer = f"took {wall_s / STEPS_A_TURN:.9f} {cpu_s / STEPS_A_TURN:.9f}"
            print(answer, flush=True)  # noqa: T201 - read by the parent
            if not sys.stdin.readline():
                sys.exit()
            self._begin = _now()


def _now() -> tuple[float, float]:
    """Seconds of the clock on the wall, and of the processor for all threads of this process."""
    return time.perf_counter(), time.process_time()


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """What a page of PyTorch reads token files with."""

    def __init__(self, data: Path) -> None:
        self._tokens = np.memmap(data / "train" / "tokens.bin", dtype="<u2", mode="r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self._tokens[index * LENGTH : (index + 1) * LENGTH + 1].astype(np.int64)
        tokens = torch.from_numpy(window)
        return tokens[:-1], tokens[1:]


def loader(data: Path) -> DataLoader[Any]:
    """Without reader processes, which gain nothing here: a batch is read in a tenth of a millisecond."""
    return DataLoader(Sequences(data), batch_size=BATCH, shuffle=True, drop_last=True)


def model() -> nn.Module:
    return registry.build("gpt", OPTIONS, Facts(0, VOCABULARY, LENGTH), "tokens", "")


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def endless(batches: DataLoader[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(batches for _ in itertools.count())


def bare(data: Path, log_every: int, turns: Turns) -> None:
    """What one writes oneself."""
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
            turns.step()


def ours(data: Path, log_every: int, turns: Turns) -> None:
    """The loop of this repository as `train` runs it: watchdog, interruption, metrics and all."""

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


def accelerate(data: Path, log_every: int, turns: Turns) -> None:
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


def lightning(data: Path, log_every: int, turns: Turns) -> None:
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


def hugging_face(data: Path, log_every: int, turns: Turns) -> None:
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
        Trainer(Losing(), arguments, train_dataset=Named(data), callbacks=[Clock()]).train()


LOOPS: dict[str, Callable[[Path, int, Turns], None]] = {
    "bare": bare,
    "ours": ours,
    "accelerate": accelerate,
    "lightning": lightning,
    "hugging_face": hugging_face,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    LOOPS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), Turns())
