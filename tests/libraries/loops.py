"""One small training with each library, as a user writes it; run in an environment that has them.

python loops.py KIND DIRECTORY WORKERS STOP_AT: writes DIRECTORY/weights.txt at its end.
"""

import hashlib
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpu_fleet.integrations import guard
from gpu_fleet.preemption.interrupt import Interruption, Reason

RATE = float(os.environ.get("RATE", "0.05"))  # of learning
FORGETFUL = "FORGETFUL" in os.environ  # the model keeps a mean in no checkpoint
IDLE = "IDLE" in os.environ  # the loop computes gradients and makes no update
UNCOUNTED = "UNCOUNTED" in os.environ  # Lightning counts no update of the loop
HIDDEN = "HIDDEN" in os.environ  # the model keeps a layer in a list
ACCUMULATED = int(os.environ.get("ACCUMULATED", "1"))  # micro-batches of an update
STEPS, BATCH, SAMPLES = 11, 8, 48  # six steps an epoch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 2))
        self.mean = torch.zeros(4)
        self.others = [nn.Linear(2, 2)] if HIDDEN else []

    def forward(self, x, labels=None):
        if FORGETFUL:
            self.mean = 0.9 * self.mean + x.detach().mean(0)
        logits = self.layers(x - self.mean)
        for other in self.others:
            logits = other(logits)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Notified(Interruption):
    """Hears a notice after so many steps."""

    stop_at = 0
    asked = 0

    @property
    def reason(self):
        return Reason.SPOT_NOTICE if 0 < self.stop_at <= self.asked else Reason.NONE


class Noisy(Dataset):
    """Samples that draw from three generators, as augmentation does."""

    def __init__(self):
        self.x, self.labels = points()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = torch.rand(4) + np.random.random() + random.random()
        return {"x": self.x[index] + noise, "labels": self.labels[index]}


def noisy_hugging_face(directory, workers):
    return hugging_face(directory, workers, data=Noisy(), remove_unused_columns=False)


def noisy_accelerate(directory, workers):
    return accelerate(directory, workers, Noisy())


def noisy_lightning(directory, workers):
    """A new loader in each epoch, of which the reader processes stay."""
    from gpu_fleet.integrations.lightning import ResumableLoader

    def kind(data, batch, num_workers):
        stays = num_workers > 0
        return ResumableLoader(
            Noisy(), batch, shuffle=True, num_workers=num_workers, persistent_workers=stays
        )

    return lightning(directory, workers, kind, reload_dataloaders_every_n_epochs=1)


def points():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 4, generator=generator)
    return x, (x.sum(1) > 0).long()


def hugging_face(directory, workers, data=None, **further):
    from datasets import Dataset as Table
    from transformers import Trainer, TrainingArguments

    from gpu_fleet.integrations.huggingface import FleetCallback

    x, labels = points()
    held_out = Table.from_dict({"x": x.tolist(), "labels": labels.tolist()}).with_format("torch")
    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=STEPS, per_device_train_batch_size=BATCH, report_to=[],
        dataloader_num_workers=workers, seed=0, use_cpu=True, disable_tqdm=True,
        learning_rate=RATE, gradient_accumulation_steps=ACCUMULATED, **({"save_strategy": "no"} | further),
    )  # fmt: skip
    torch.manual_seed(0)
    model, callback = Net(), FleetCallback(directory)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data or held_out,
        eval_dataset=held_out,
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.newest())
    scores = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    best = Path(trainer.state.best_model_checkpoint or "").name
    words = [trainer.state.global_step, best, trainer.state.best_metric, *scores]
    (directory / "scores.txt").write_text(" ".join(map(str, words)))
    return model


def evaluated_hugging_face(directory, workers):
    """Six batches of evaluation each so many steps; the best weights are those of the end."""
    every = int(os.environ["EVALUATE_EVERY"])
    return hugging_face(
        directory, workers, eval_strategy="steps", save_strategy="steps", eval_steps=every, save_steps=every,
        load_best_model_at_end=True, per_device_eval_batch_size=BATCH,
    )  # fmt: skip


def accelerate(directory, workers, data=None):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from gpu_fleet.integrations.accelerate import FleetSteps

    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )  # fmt: skip
    loader = DataLoader(data or TensorDataset(*points()), BATCH, shuffle=True, num_workers=workers)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in FleetSteps(accelerator, directory, config={"rate": RATE}).over(loader, STEPS):
        x, labels = batch.values() if data else batch
        with accelerator.accumulate(model):
            accelerator.backward(model(x, labels)["loss"])
            if not IDLE:
                optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model)


class Stateful(DataLoader):
    """A loader in a fixed order that knows how far it is."""

    done = 0
    begin = 0

    def __iter__(self):
        self.done, self.begin = self.begin, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= self.done:
                self.done = number + 1
                yield batch

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.begin = state["done"] % len(self)


def lightning(directory, workers, loader_kind=Stateful, **further):
    from lightning.pytorch import LightningModule, Trainer

    from gpu_fleet.integrations.lightning import FleetCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.automatic_optimization = not (IDLE or UNCOUNTED)

        def training_step(self, batch, _index):
            loss = self.net(*(batch.values() if isinstance(batch, dict) else batch))["loss"]
            if not self.automatic_optimization:
                self.manual_backward(loss)
            if UNCOUNTED:
                optimizer = self.optimizers(use_pl_optimizer=False)
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def train_dataloader(self):
            return loader_kind(TensorDataset(*points()), BATCH, num_workers=workers)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    torch.manual_seed(0)
    model, callback = Module(), FleetCallback(directory, config={"rate": RATE})
    trainer = Trainer(
        max_steps=STEPS, max_epochs=3 if IDLE or UNCOUNTED else None, accumulate_grad_batches=ACCUMULATED,
        accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(directory), **further,
    )  # fmt: skip
    trainer.fit(model, ckpt_path=callback.newest())
    return model


def plain_lightning(directory, workers):
    return lightning(directory, workers, DataLoader)


def validated_lightning(directory, workers):
    """A shuffled loader, and a rate that follows the validation, of which ranks have uneven parts."""
    from lightning.pytorch import LightningModule, Trainer

    from gpu_fleet.integrations.lightning import FleetCallback, ResumableLoader

    rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _index):
            return self.net(*batch)["loss"]

        def validation_step(self, batch, _index):
            self.log("val", self.net(*batch)["loss"], sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
            rates = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=0.5, patience=0, threshold=10
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "monitor": "val"}}

    torch.manual_seed(rank)
    model, callback = Module(), FleetCallback(directory)
    x, labels = points()
    loader = ResumableLoader(TensorDataset(x, labels), BATCH, shuffle=True, num_workers=workers)
    part = slice(0, 2 * BATCH if rank else SAMPLES)
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", devices=ranks, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(directory),
    )  # fmt: skip
    held_out = DataLoader(TensorDataset(x[part], labels[part]), BATCH)
    trainer.fit(model, loader, held_out, ckpt_path=callback.newest())
    return model


def stop_by_count():
    """Have each guard hear a notice when it has asked `Notified.stop_at` times."""
    guard.Interruption = Notified
    asked = guard.Guard.stopping

    def counted(self):
        Notified.asked += 1
        return asked(self)

    guard.Guard.stopping = counted


def main(kind, directory, workers, stop_at):
    Notified.stop_at = int(stop_at)
    stop_by_count()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    model = globals()[kind](folder, int(workers))
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().numpy().tobytes())
    (folder / "weights.txt").write_text(digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
