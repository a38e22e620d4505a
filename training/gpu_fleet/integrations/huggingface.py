"""Callback for the Trainer of transformers: `Trainer(..., callbacks=[callback])`.

    callback = FleetCallback(arguments.output_dir)
    trainer.train(resume_from_checkpoint=callback.newest())

A resume is exact with the same number of processes. A notice during an evaluation stops it after the present
batch. The resumed run repeats that evaluation, and so finds the same best checkpoint.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gpu_fleet.data.resumable import NOT_SET, draws, seeded
from gpu_fleet.integrations.guard import Guard
from gpu_fleet.step.checks import check_of_model, check_of_switches
from gpu_fleet.step.state import capture_rng, restore_rng

DECIDING = (
    *("learning_rate", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "weight_decay"),
    *("max_grad_norm", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("label_smoothing_factor", "seed", "data_seed", "bf16", "fp16", "neftune_noise_alpha"),
    "dataloader_drop_last",
)
UNBOUNDED = ("constant", "constant_with_warmup", "reduce_lr_on_plateau", "inverse_sqrt")
LENGTH = ("max_steps", "num_train_epochs")
WRITTEN_LAST = "trainer_state.json"  # a checkpoint of a killed save has none


class FleetCallback(TrainerCallback):
    """Callback that saves and ends the run at a notice, and copies `output_dir` to the bucket."""

    def __init__(
        self,
        output_dir: str | Path,
        uri: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Open the folder of checkpoints.

        `config` holds the values that decide the result in addition to data, code and the Trainer's
        arguments; `uri` and `allow` mean the same as in Run.
        """
        self._guard = Guard(
            output_dir, uri, pattern="checkpoint-*", mark=WRITTEN_LAST, config=config, allow=allow
        )
        self._trainer: Any = None  # set while it trains
        self._generators: dict[str, Any] | None = None  # their state before the evaluation that is due
        self._done = False  # all steps are done: the rest of an epoch is skipped

    def newest(self) -> str | None:
        """Return the newest whole checkpoint, from the bucket if this disk has none; None for a new run."""
        return self._guard.newest()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **_: Any
    ) -> None:
        self._attributes = [
            check(model, type(model).__name__) for check in (check_of_model, check_of_switches)
        ]
        if args.ignore_data_skip:
            print("gpu-fleet: not exact: ignore_data_skip reads other batches after a resume")  # noqa: T201
        samples = getattr(train_dataloader, "dataset", None)
        self._guard.begin(deciding(args), samples)
        self._reads = seeded(train_dataloader)
        if self._reads is None and draws(samples):
            print(f"gpu-fleet: not exact: {NOT_SET}")  # noqa: T201
        self._trainer, self._done = _calling_trainer(), False
        if self._trainer is None:
            return
        saved = state.stateful_callbacks.get("TrainerControl") or {}
        if saved.get("args", {}).get("should_evaluate"):  # the checkpoint is from during an evaluation
            self._evaluate(args, state, control)
        if control.should_training_stop or 0 < state.max_steps <= state.global_step:
            self._done = control.should_training_stop = True
            # the Trainer checks the flag only after a step
            self._trainer.get_batch_samples = lambda *_: ([], None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._reads is not None:
            seed = args.seed if args.data_seed is None else args.data_seed
            self._reads.begin(seed, int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._guard.look(self._attributes, says=state.is_world_process_zero)
        if self._guard.stopping():
            control.should_save = control.should_training_stop = True
        if control.should_save or control.should_training_stop:
            self._guard.check([model], state.global_step)
        self._note_generators(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._done:  # an earlier try has ended that epoch
            control.should_evaluate = control.should_save = False
        self._note_generators(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop at a notice; the Trainer gathers after each batch, so all ranks make the same calls."""
        if self._trainer is not None and self._guard.stopping():
            if self._generators is not None:  # the repeated evaluation draws the same numbers
                restore_rng(self._generators)
            control.should_evaluate = True  # the checkpoint keeps this flag
            self._save(args, state, control)
            self._guard.end()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._guard.look(self._attributes, says=state.is_world_process_zero, saving=True)
        self._guard.saved()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._done:
            del self._trainer.get_batch_samples
        self._trainer, self._done = None, False
        self._guard.end()

    def _note_generators(self, control: Any) -> None:
        self._generators = capture_rng() if control.should_evaluate else None

    def _evaluate(self, args: Any, state: Any, control: Any) -> None:
        """Repeat the evaluation in which an earlier try has ended, and save the checkpoint of its step."""
        trainer = self._trainer
        trainer._load_rng_state(str(Path(args.output_dir) / f"checkpoint-{state.global_step}"))
        self._generators = capture_rng()
        trainer._determine_best_metric(metrics=trainer._evaluate(None, None), trial=None)
        control.should_evaluate = False
        self._save(args, state, control)

    def _save(self, args: Any, state: Any, control: Any) -> None:
        trainer = self._trainer
        if callable(getattr(trainer.optimizer, "train", None)):  # a schedule-free optimizer has two sets
            trainer.optimizer.train()
        with self._guard.replacing(f"checkpoint-{state.global_step}"):
            trainer._save_checkpoint(trainer.model, None)
        trainer.callback_handler.on_save(args, state, control)


def _calling_trainer() -> Any:
    """Find the Trainer that called this callback, as it passes no reference; None outside of one."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if hasattr(caller, "_save_checkpoint") and hasattr(caller, "callback_handler"):
            return caller
        frame = frame.f_back
    return None


def deciding(args: Any) -> dict[str, Any]:
    """Return the Trainer's arguments that change its result; the length only if the schedule uses it."""
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    names = [*DECIDING, *([] if schedule in UNBOUNDED else LENGTH)]
    chosen = {name: getattr(args, name) for name in names if hasattr(args, name)}
    batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return chosen | {"lr_scheduler_type": schedule, "batch_size": batch_size}
