"""Callback for Lightning: `Trainer(callbacks=[callback])`, `fit(model, ckpt_path=callback.newest())`.

Lightning resumes in mid-epoch only with a loader that has `state_dict` and `load_state_dict`, such as
ResumableLoader. After some steps it does more before the next one: a validation, the end of an epoch, or a
schedule. A resumed run would skip that, so the checkpoint of such a step waits for the next step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule  # type: ignore[import-not-found,unused-ignore]  # an environment of its own

from gpu_fleet.data.generators import SHARED, restore_generators, states_of_generators
from gpu_fleet.data.resumable import NOT_SET, ResumableLoader, draws
from gpu_fleet.integrations.guard import Guard
from gpu_fleet.step.checks import check_of_model, check_of_switches
from gpu_fleet.step.state import capture_rng, restore_rng

__all__ = ["FleetCallback", "ResumableLoader"]
ORDER = "order"  # key in the saved state of a rank: see ResumableLoader.begun_with


class FleetCallback(Callback):  # type: ignore[misc,unused-ignore]  # see above
    """Callback that saves and ends the run at a notice, and copies a folder of checkpoints to the bucket."""

    def __init__(
        self,
        directory: str | Path,
        *,
        uri: str = "",
        every_steps: int = 0,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Open the folder of checkpoints.

        `config` holds the values that decide the result in addition to data, code and hyperparameters;
        `uri` and `allow` mean the same as in Run.
        """
        self._guard = Guard(directory, uri, pattern="step-*.ckpt", config=config, allow=allow)
        self._every_steps = every_steps
        self._generators: dict[str, Any] | None = None
        self._trainer: Any = None  # set while it trains; its loader may be another one in each epoch
        self._due = False  # a checkpoint waits for the next step
        self._cut = False  # the checkpoint is from before the end of Lightning's work in a step

    def newest(self) -> str | None:
        """Return the newest checkpoint, from the bucket if this disk has none; None for a new run."""
        return self._guard.newest()

    def state_dict(self) -> dict[str, Any]:
        """Return the generator states of every rank, which Lightning does not save; all ranks call it."""
        mine: dict[str, Any] = {**capture_rng(), SHARED: states_of_generators()}
        loader = getattr(self._trainer, "train_dataloader", None)
        if isinstance(loader, ResumableLoader) and loader.begun_with is not None:
            mine[ORDER] = loader.begun_with
        return {"generators": self._guard.where.gather(mine), "cut": self._cut}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._cut = bool(state_dict.get("cut"))
        saved, where = state_dict["generators"], self._guard.where
        if len(saved) == where.size:
            self._generators = saved[where.rank]
        elif where.leads:
            print(f"gpu-fleet: not exact: saved by {len(saved)} ranks, resumed by {where.size}")  # noqa: T201

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._trainer, loader = trainer, trainer.train_dataloader
        if isinstance(loader, ResumableLoader) and self._generators is not None:
            loader.begun_with = self._generators.get(ORDER)
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            trainer.print(
                f"gpu-fleet: not exact in the middle of an epoch: {type(loader).__name__} has no state_dict"
            )
        elif not isinstance(loader, ResumableLoader) and draws(getattr(loader, "dataset", None)):
            trainer.print(f"gpu-fleet: not exact: {NOT_SET}")
        if self._cut:
            trainer.print(
                "gpu-fleet: not exact: the notice left no time for a validation or the end of an epoch, "
                "and the resumed run skips it"
            )
        batch_size = getattr(loader, "batch_size", None)
        arguments = {
            "batch_size": batch_size and batch_size * trainer.world_size * trainer.accumulate_grad_batches,
            "gradient_clip_val": trainer.gradient_clip_val,
            "precision": str(trainer.precision),
            **{f"hparams.{name}": value for name, value in dict(pl_module.hparams).items()},
        }
        self._guard.begin(arguments, getattr(loader, "dataset", None))
        self._step = trainer.global_step  # of the optimizer: fewer than batches if it accumulates
        self._updated = False
        for each in [o for o in trainer.optimizers if hasattr(o, "_optimizer_step_post_hooks")]:
            each.register_step_post_hook(self._note_update)
        if not (pl_module.automatic_optimization or trainer.ckpt_path or trainer.fast_dev_run):
            self._guard.watch(trainer.optimizers)
        name = type(pl_module).__name__
        self._attributes = [check_of_model(pl_module, name, vars(LightningModule()))]
        self._attributes.append(check_of_switches(pl_module, name))

    def _note_update(self, *_: object) -> None:
        self._updated = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._generators is not None:  # only now: making the loader's iterator draws from them
            restore_rng(self._generators)
            restore_generators(self._generators[SHARED])
            self._generators = None
        if trainer.fit_loop.restarting:  # if it stays set, the epoch's end skips ReduceLROnPlateau
            trainer.fit_loop.restarting = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, updated, self._updated = self._step, self._updated, False
        # Lightning counts no step of an optimizer that the module gets by use_pl_optimizer=False
        uncounted = trainer.fit_loop.epoch_loop.total_batch_idx + 1 if updated else before
        self._step = trainer.global_step or uncounted
        step, stopping = self._step, self._guard.stopping()
        self._guard.look(self._attributes, says=trainer.is_global_zero)
        if step == before:  # a checkpoint would lack the gradients of the micro-batches so far
            return
        waited, self._due = self._due, False
        if not (waited or stopping or (self._every_steps and step % self._every_steps == 0)):
            return
        # all ranks agree on it, as a rank may have nothing to validate
        self._cut = trainer.strategy.reduce_boolean_decision(_goes_on_in_step(trainer), all=False)
        last = _is_last(trainer)
        self._due = self._cut and not waited and not last  # wait for one step only: each may be like this
        if stopping or not self._due:
            self._save(trainer)
        if stopping and not self._due and not last:
            self._guard.end()

    def _save(self, trainer: Any) -> None:
        self._guard.check([trainer.lightning_module], self._step)
        self._guard.look(self._attributes, says=trainer.is_global_zero, saving=True)
        staged = self._guard.directory / f"step-{self._step}.ckpt.part"
        trainer.save_checkpoint(staged)
        if trainer.is_global_zero:
            staged.rename(staged.with_suffix(""))
        self._guard.saved()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Upload and release the folder; the program continues."""
        self._trainer = None
        self._guard.check([pl_module], self._step, ended=not self._step)  # it counts tried updates too
        self._guard.finish()


def _goes_on_in_step(trainer: Any) -> bool:
    """Return whether Lightning does more before the next batch: a validation, an epoch's end, a schedule."""
    fit, schedules = trainer.fit_loop, trainer.lr_scheduler_configs
    plateau = any(each.reduce_on_plateau and each.interval == "step" for each in schedules)
    loop = fit.epoch_loop
    return bool(plateau or loop._num_ready_batches_reached() or loop._should_check_val_fx(fit._data_fetcher))


def _is_last(trainer: Any) -> bool:
    """Return whether this is the last step, as far as it is known before a validation."""
    epochs = trainer.max_epochs
    of_epochs = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
    of_steps = 0 <= trainer.max_steps <= trainer.global_step
    return of_steps or (of_epochs and trainer.fit_loop.epoch_loop._num_ready_batches_reached())
