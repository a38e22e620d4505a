"""For the Trainer of transformers: `Trainer(..., callbacks=[callback])`.

    callback = FleetCallback(arguments.output_dir)
    trainer.train(resume_from_checkpoint=callback.newest())

Exact at the same number of processes: the Trainer restores generators, optimizer and schedule, and passes
over the batches that were read.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gpu_fleet.callbacks.guard import Guard, newest

WRITTEN_LAST = "trainer_state.json"  # a checkpoint of a killed save has none


class FleetCallback(TrainerCallback):
    """Saves and ends at a notice, and keeps the checkpoints of `output_dir` in the bucket."""

    def __init__(self, output_dir: str | Path, uri: str = "") -> None:
        self._guard = Guard(output_dir, uri)

    def newest(self) -> str | None:
        """The newest whole checkpoint, from the bucket where this disk has none; None for a new run."""
        self._guard.bring()
        return newest(self._guard.directory, "checkpoint-*", WRITTEN_LAST)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.ignore_data_skip:
            print("gpu-fleet: not exact: ignore_data_skip reads other batches after a resume")  # noqa: T201
        self._guard.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._guard.stopping():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._guard.saved()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._guard.end()
