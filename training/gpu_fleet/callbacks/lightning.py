"""For the Trainer of Lightning: `Trainer(callbacks=[callback])`, `fit(model, ckpt_path=callback.newest())`.

Lightning goes on in mid-epoch only with a loader that has `state_dict` and `load_state_dict`, such as
ResumableLoader here or StatefulDataLoader of torchdata; with any other it reads the first batches again, and
says so.

A step that a validation or the end of an epoch follows is over with the next one: a resumed run would pass
over what Lightning does between them, such as the schedule that looks at a validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]  # an environment of its own
from torch import Tensor
from torch.utils.data import DataLoader

from gpu_fleet.callbacks.guard import Guard
from gpu_fleet.state import capture_rng, restore_rng

ORDER = "order"  # in what is saved of a rank: see ResumableLoader.begun_with


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that knows how far it is; a resumed one reads what was read of the epoch and drops it."""

    _done = _begin = 0
    begun_with: Tensor | None = None  # what the order of this epoch was drawn from; FleetCallback keeps it

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator does, torch's hint is narrower
        self._done, self._begin = self._begin, 0
        generator = self.generator or torch.default_generator
        if self._done and self.begun_with is not None:
            generator.set_state(self.begun_with)
        self.begun_with = generator.get_state()
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
        self._loader: Any = None
        self._step = 0  # of the optimizer, as Lightning counts: less often than batches where it accumulates
        self._due = False  # a checkpoint that waits for the next step
        self._cut = False  # a checkpoint is of the midst of what Lightning does in a step

    def newest(self) -> str | None:
        """The newest checkpoint, from the bucket where this disk has none; None for a new run."""
        return self._guard.newest()

    def state_dict(self) -> dict[str, Any]:
        """The generators of every rank, which Lightning does not save; called by all ranks alike."""
        mine = capture_rng()
        if isinstance(self._loader, ResumableLoader) and self._loader.begun_with is not None:
            mine[ORDER] = self._loader.begun_with
        if not dist.is_initialized():
            return {"generators": [mine], "cut": self._cut}
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        return {"generators": everyone, "cut": self._cut}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._cut = bool(state_dict.get("cut"))
        saved = state_dict["generators"]
        saved = saved if isinstance(saved, list) else [saved]  # of an earlier trainer: of rank 0 alone
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if len(saved) == ranks:
            self._generators = saved[rank]
        elif rank == 0:
            print(f"gpu-fleet: not exact: saved by {len(saved)} ranks, resumed by {ranks}")  # noqa: T201

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        loader = self._loader = trainer.train_dataloader
        if isinstance(loader, ResumableLoader) and self._generators is not None:
            loader.begun_with = self._generators.get(ORDER)
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            trainer.print(
                f"gpu-fleet: not exact in the midst of an epoch: {type(loader).__name__} has no state_dict"
            )
        if self._cut:
            trainer.print(
                "gpu-fleet: not exact: the checkpoint is of before a validation or the end of an epoch, "
                "which the notice left no time for, and which is passed over"
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
        if trainer.fit_loop.restarting:  # until the epoch's end, where it would pass over ReduceLROnPlateau
            trainer.fit_loop.restarting = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._step = self._step, trainer.global_step
        step, stopping = self._step, self._guard.stopping()
        if step == before:  # gradients of some micro-batches, which no checkpoint holds
            return
        waited, self._due = self._due, False
        if not (waited or stopping or (self._every_steps and step % self._every_steps == 0)):
            return
        # agreed, as a rank may have nothing to validate
        self._cut = trainer.strategy.reduce_boolean_decision(_goes_on_in_step(trainer), all=False)
        last = _is_last(trainer)
        self._due = self._cut and not waited and not last  # where each step is such a one it waits no longer
        if stopping or not self._due:
            self._save(trainer)
        if stopping and not self._due and not last:
            self._guard.end()

    def _save(self, trainer: Any) -> None:
        staged = self._guard.directory / f"step-{self._step}.ckpt.part"
        trainer.save_checkpoint(staged)
        if trainer.is_global_zero:
            staged.rename(staged.with_suffix(""))
        self._guard.saved()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Of a training that has ended by itself: what the program does next is its own, notice or not."""
        self._guard.finish()


def _goes_on_in_step(trainer: Any) -> bool:
    """Whether more than the next batch follows this one: a validation, the end of an epoch, a schedule."""
    fit = trainer.fit_loop
    plateau = any(
        schedule.reduce_on_plateau and schedule.interval == "step"
        for schedule in trainer.lr_scheduler_configs
    )
    loop = fit.epoch_loop
    return bool(plateau or loop._num_ready_batches_reached() or loop._should_check_val_fx(fit._data_fetcher))


def _is_last(trainer: Any) -> bool:
    """Whether no other step comes, by what is known before a validation."""
    epochs = trainer.max_epochs
    of_epochs = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
    of_steps = 0 <= trainer.max_steps <= trainer.global_step
    return of_steps or (of_epochs and trainer.fit_loop.epoch_loop._num_ready_batches_reached())
