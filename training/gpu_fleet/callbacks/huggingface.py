"""For the Trainer of transformers: `Trainer(..., callbacks=[callback])`.

    callback = FleetCallback(arguments.output_dir)
    trainer.train(resume_from_checkpoint=callback.newest())

Exact at the same number of processes: the Trainer restores generators, optimizer and schedule, and passes
over the batches that were read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gpu_fleet.callbacks.guard import Guard

DECIDING = (
    *(
        "learning_rate",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "warmup_ratio",
        "weight_decay",
        "max_grad_norm",
    ),
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "label_smoothing_factor"),
    *("seed", "data_seed", "bf16", "fp16", "neftune_noise_alpha", "dataloader_drop_last"),
)
UNBOUNDED = ("constant", "constant_with_warmup", "reduce_lr_on_plateau", "inverse_sqrt")
LENGTH = ("max_steps", "num_train_epochs")
WRITTEN_LAST = "trainer_state.json"  # a checkpoint of a killed save has none


class FleetCallback(TrainerCallback):
    """Saves and ends at a notice, and keeps the checkpoints of `output_dir` in the bucket."""

    def __init__(
        self,
        output_dir: str | Path,
        uri: str = "",
        *,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """What decides the result beside data, code and arguments is in `config`; `allow` as of Run."""
        self._guard = Guard(
            output_dir, uri, pattern="checkpoint-*", mark=WRITTEN_LAST, config=config, allow=allow
        )

    def newest(self) -> str | None:
        """The newest whole checkpoint, from the bucket where this disk has none; None for a new run."""
        return self._guard.newest()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        if args.ignore_data_skip:
            print("gpu-fleet: not exact: ignore_data_skip reads other batches after a resume")  # noqa: T201
        self._guard.begin(deciding(args), getattr(train_dataloader, "dataset", None))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._guard.stopping():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._guard.saved()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._guard.end()


def deciding(args: Any) -> dict[str, Any]:
    """Those of the Trainer's arguments that change its result; the length where the schedule asks for it."""
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    names = [*DECIDING, *([] if schedule in UNBOUNDED else LENGTH)]
    chosen = {name: getattr(args, name) for name in names if hasattr(args, name)}
    batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return chosen | {"lr_scheduler_type": schedule, "batch_size": batch_size}
