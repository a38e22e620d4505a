"""Loops that make no update, and loops that only seem to make none; run in an environment with the libraries.

python updates.py LIBRARY DIRECTORY: prints the name of each loop, and how each of its tries ended.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from loops import BATCH, STEPS, Net, Notified, Stateful, points, stop_by_count
from torch.optim import LBFGS, SGD, Optimizer
from torch.utils.data import TensorDataset

from gpu_fleet.integrations import accelerate as with_accelerate
from gpu_fleet.integrations import lightning as with_lightning


class Unheard(Optimizer):
    """Optimizer that torch's own class has not made, so that no hook hears of its updates."""

    def __init__(self, inner):
        self.param_groups, self.state, self.defaults = inner.param_groups, {}, {}

    def step(self, closure=None):
        pass

    def state_dict(self):
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state_dict):
        pass


def sgd(net, rate=0.0):
    return [SGD(net.parameters(), lr=rate)]


def one(_net, optimizers, _done):
    optimizers[0].step()


def none(_net, optimizers, _done):
    optimizers[0].zero_grad()


def early(_net, optimizers, done):
    if done <= 2:
        optimizers[0].step()


def skipped(net, optimizers, _done):
    for parameter in net.parameters():
        parameter.grad.fill_(torch.inf)
    optimizers[0].step()


def by_hand(net, _optimizers, _done):
    with torch.no_grad():
        net.layers[2].bias.sub_(0.1)


class Loop(NamedTuple):
    """A loop: what it does after each gradient, with which optimizers, and where its tries hear a notice."""

    after: Callable[..., None]
    make: Callable[..., list[Any]] = sgd
    stops: tuple[int, ...] = (0,)
    computes: bool = True  # gradients
    scales: bool = False  # them, by GradScaler
    automatic: Callable[[int], bool] | None = None  # the steps in which Lightning's own updates have a loss


LOOPS = {
    "idle": Loop(none),
    "idle to the end": Loop(none, stops=(STEPS, 0)),
    "idle and resumed": Loop(none, stops=(4, 7, 0)),
    "updates": Loop(one, lambda net: sgd(net, 0.1)),
    "rate of 0": Loop(one),
    "rate of 0 and finished": Loop(one, stops=(0, 0)),
    "late": Loop(lambda net, optimizers, done: done == 10 and optimizers[0].step()),
    "early and resumed": Loop(early, stops=(2, 0)),
    "early and stopped at once": Loop(early, stops=(2, 1)),
    "resumed": Loop(one, lambda net: sgd(net, 0.1), stops=(4, 0)),
    "warm-up": Loop(one, lambda net: [SGD(net.layers[n].parameters(), lr=0.0) for n in (0, 2)]),
    "not prepared": Loop(lambda *_: SGD([torch.zeros(1, requires_grad=True)], lr=0.0).step()),
    "inner": Loop(lambda net, optimizers, done: optimizers[0].optimizer.step()),
    "by hand": Loop(by_hand),
    "unheard": Loop(one, lambda net: [Unheard(SGD(net.parameters()))]),
    "closure": Loop(
        lambda net, optimizers, done: optimizers[0].step(lambda: torch.zeros(())),
        lambda net: [LBFGS(net.parameters(), lr=0.0)],
    ),
    "evaluation": Loop(none, computes=False),
    "frozen": Loop(none, lambda net: sgd(net.requires_grad_(False)), computes=False),
    "skipped": Loop(skipped, scales=True),
    "automatic": Loop(none, automatic=lambda index: index > 5),
    "automatic without a loss": Loop(none, automatic=lambda index: False),
    "smoke test": Loop(none),
}
FOR_LIGHTNING = ("automatic", "automatic without a loss", "smoke test")
FOR_ACCELERATE = ("skipped", "idle to the end", "idle and resumed")


def accelerate(name, directory):
    loop, net = LOOPS[name], Net()
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu") if loop.scales else None
    loader = Stateful(TensorDataset(*points()), BATCH)
    model, loader, *optimizers = accelerator.prepare(net, loader, *loop.make(net))
    fleet = with_accelerate.FleetSteps(accelerator, directory)
    for batch in fleet.over(loader, STEPS):
        with torch.set_grad_enabled(loop.computes):
            loss = model(*batch)["loss"]
        if loop.computes:
            accelerator.backward(loss)
        loop.after(net, optimizers, fleet.step + 1)


class Module(LightningModule):
    def __init__(self, loop):
        super().__init__()
        self.loop, self.net = loop, Net()
        self.automatic_optimization = loop.automatic is not None

    def training_step(self, batch, index):
        loss = self.net(*batch)["loss"]
        if self.automatic_optimization:
            return loss if self.loop.automatic(index) else None
        if self.loop.computes:
            self.manual_backward(loss)
        done, optimizers = self.trainer.current_epoch * 6 + index + 1, self.optimizers()
        self.loop.after(self.net, optimizers if isinstance(optimizers, list) else [optimizers], done)
        return loss

    def configure_optimizers(self):
        return self.loop.make(self.net)


def lightning(name, directory):
    callback = with_lightning.FleetCallback(directory, every_steps=4)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, fast_dev_run=name == "smoke test",
        default_root_dir=str(directory),
    )  # fmt: skip
    loader = Stateful(TensorDataset(*points()), BATCH)
    trainer.fit(Module(LOOPS[name]), loader, ckpt_path=callback.newest())


def main(library, directory):
    stop_by_count()
    train, left_out = {
        "accelerate": (accelerate, FOR_LIGHTNING), "lightning": (lightning, FOR_ACCELERATE),
    }[library]  # fmt: skip
    for name in [name for name in LOOPS if name not in left_out]:
        statuses = []
        for Notified.stop_at in LOOPS[name].stops:
            Notified.asked = 0
            try:
                train(name, Path(directory) / name)
                statuses.append(0)
            except SystemExit as end:
                statuses.append(end.code)
        sys.stdout.write(",".join(map(str, ["ended", name, *statuses])) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
