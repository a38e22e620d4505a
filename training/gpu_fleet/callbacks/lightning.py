"""For the Trainer of Lightning: `Trainer(callbacks=[callback])`, `fit(model, ckpt_path=callback.newest())`.

Lightning goes on in mid-epoch only with a loader that has `state_dict` and `load_state_dict`, such as
ResumableLoader here or StatefulDataLoader of torchdata; with any other it reads the first batches again, and
says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]  # an environment of its own
from torch.utils.data import DataLoader

from gpu_fleet.callbacks.guard import Guard
from gpu_fleet.state import capture_rng, restore_rng


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that knows how far it is; a resumed one reads what was read of the epoch and drops it."""

    _done = _begin = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator does, torch's hint is narrower
        self._done, self._begin = self._begin, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= self._done:
                self._done = number + 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        """Batches of this epoch that were given."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next epoch begins after those."""
        self._begin = state["done"] % len(self)


class FleetCallback(Callback):  # type: ignore[misc,unused-ignore]  # see above
    """Saves and ends at a notice, and keeps a folder of checkpoints in the bucket."""

    def __init__(
        self,
        directory: str | Path,
        *,
        uri: str = "",
        every_steps: int = 0,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """What decides the result beside data, code and hyperparameters is in `config`; `allow` as of Run."""
        self._guard = Guard(directory, uri, pattern="step-*.ckpt", config=config, allow=allow)
        self._every_steps = every_steps
        self._generators: dict[str, Any] | None = None
        self._step = 0  # of the optimizer, as Lightning counts: less often than batches where it accumulates

    def newest(self) -> str | None:
        """The newest checkpoint, from the bucket where this disk has none; None for a new run."""
        return self._guard.newest()

    def state_dict(self) -> dict[str, Any]:
        """The generators of every rank, which Lightning does not save; called by all ranks alike."""
        mine = capture_rng()
        if not dist.is_initialized():
            return {"generators": [mine]}
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        return {"generators": everyone}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["generators"]
        saved = saved if isinstance(saved, list) else [saved]  # of an earlier trainer: of rank 0 alone
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if len(saved) == ranks:
            self._generators = saved[rank]
        elif rank == 0:
            print(f"gpu-fleet: not exact: saved by {len(saved)} ranks, resumed by {ranks}")  # noqa: T201

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        loader = trainer.train_dataloader
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            trainer.print(
                f"gpu-fleet: not exact in the midst of an epoch: {type(loader).__name__} has no state_dict"
            )
        batch_size = getattr(loader, "batch_size", None)
        arguments = {
            "batch_size": batch_size and batch_size * trainer.world_size * trainer.accumulate_grad_batches,
            "gradient_clip_val": trainer.gradient_clip_val,
            "precision": str(trainer.precision),
            **{f"hparams.{name}": value for name, value in dict(pl_module.hparams).items()},
        }
        self._guard.begin(arguments, getattr(loader, "dataset", None))
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._generators is not None:  # only now: making the loader's iterator draws from them
            restore_rng(self._generators)
            self._generators = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._step = self._step, trainer.global_step
        step, stopping = self._step, self._guard.stopping()
        if step == before:  # gradients of some micro-batches, which no checkpoint holds
            return
        if stopping or (self._every_steps and step % self._every_steps == 0):
            staged = self._guard.directory / f"step-{step}.ckpt.part"
            trainer.save_checkpoint(staged)
            if trainer.is_global_zero:
                staged.rename(staged.with_suffix(""))
            self._guard.saved()
        trainer.should_stop = trainer.should_stop or stopping

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._guard.end()
