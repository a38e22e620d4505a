"""Loops with Accelerate: `for batch in FleetSteps(accelerator, "runs/mine").over(loader, steps=1000)`.

A resume is exact with the same number of processes, if the loader shuffles with its own seed:
`Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from gpu_fleet.data.generators import held_by
from gpu_fleet.data.resumable import NOT_SET, draws, seeded
from gpu_fleet.integrations.exactness import LoopWatch, frames_of_loop
from gpu_fleet.integrations.guard import Guard
from gpu_fleet.step.checks import check_of_model, check_of_switches
from gpu_fleet.step.state import capture_rng, restore_rng

# Written last: the seed of the samples' random numbers, epoch, batches done; IDLE before the first update.
DONE = "whole"
IDLE = "idle"


class FleetSteps:
    """Steps of a loop that begins at the newest checkpoint, saves every so often, and stops at a notice."""

    def __init__(
        self,
        accelerator: Any,
        directory: str | Path,
        *,
        uri: str = "",
        every_steps: int = 0,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Open the run in `directory`. Prepare or register all state with `accelerator` before `over`.

        `config` holds the values that decide the result, such as the learning rate. `uri` and `allow` mean
        the same as in Run.
        """
        self._accelerator, self._every_steps = accelerator, every_steps
        self._guard = Guard(
            directory, uri, pattern="step-*", mark=DONE, config=config, allow=allow, name="FleetSteps"
        )
        self.step = 0
        self._place: tuple[int, ...] = (0, 0)  # epoch, and its batches done
        self._seed = 0  # of the samples' random numbers

    def over(self, loader: Any, steps: int) -> Iterator[Any]:
        """Yield the batches of a prepared loader, epoch after epoch, until `steps` are done."""
        if not self._accelerator.dataloader_config.use_seedable_sampler:
            self._accelerator.print(
                "gpu-fleet: not exact: set use_seedable_sampler in DataLoaderConfiguration"
            )
        folder, samples, done = self._guard.newest(), getattr(loader, "dataset", None), IDLE
        place: list[int] = []
        self._guard.begin(self._deciding(loader), samples)
        self._reads = seeded(loader)
        if self._reads is None and draws(samples):
            self._accelerator.print(f"gpu-fleet: not exact: {NOT_SET}")
        self._seed = self._guard.where.gather(torch.initial_seed())[0]
        if folder is not None:
            self._accelerator.load_state(folder)
            self.step = int(Path(folder).name.removeprefix("step-"))
            words = (Path(folder) / DONE).read_text().split()
            done = words.pop() if words[-1:] == [IDLE] else ""
            self._seed, *place = [int(word) for word in words] or [self._seed]
        self._place = tuple(place) or divmod(self.step, len(loader))  # 0.2.0 wrote none
        if done == IDLE:
            self._guard.watch([each.optimizer for each in self._accelerator._optimizers])
        self._watch(frames_of_loop(), loader)
        while self.step < steps:
            yield from self._epoch(loader, steps)
        self._guard.end()

    def _watch(self, frames: Iterable[FrameType], loader: Any) -> None:
        """Note what a step may change, and what `accelerator` was not given."""
        accelerator = self._accelerator
        models = [accelerator.unwrap_model(model) for model in accelerator._models]
        wrapped = (*accelerator._models, *accelerator._optimizers, *accelerator._schedulers)
        inner = [getattr(thing, name, None) for thing in wrapped for name in ("optimizer", "scheduler")]
        saved = (*models, *wrapped, *inner, *accelerator._custom_objects)
        spared = [loader, *accelerator._dataloaders]
        self._attributes = [
            check_of_model(model, type(model).__name__, others=[*models, *accelerator._custom_objects])
            for model in models
        ] + [check_of_switches(model, type(model).__name__) for model in models]
        self._loop = LoopWatch(frames, saved, [*spared, *held_by(spared)])

    def _check_step(self) -> None:
        says = self._accelerator.is_main_process
        self._guard.look(self._attributes, says=says, saving=True)
        if says:
            self._loop.warn("accelerator.register_for_checkpointing")

    def _deciding(self, loader: Any) -> dict[str, Any]:
        accelerator = self._accelerator
        return {
            "batch_size": getattr(loader, "total_batch_size", None),
            "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
            "mixed_precision": str(accelerator.mixed_precision),
        }

    def _epoch(self, loader: Any, steps: int) -> Iterator[Any]:
        epoch, done = self._place
        loader.set_epoch(epoch)
        if self._reads is not None:
            self._reads.begin(self._seed, epoch)
        generators = capture_rng()
        rest = iter(self._accelerator.skip_first_batches(loader, done) if done else loader)
        due = False
        for number, batch in enumerate(rest):
            if done and number == 0:
                restore_rng(generators)  # the new iterator drew a seed, which an undisturbed run does not
            yield batch
            self.step += 1
            after = done + number + 1
            self._place = (epoch, after) if after < len(loader) else (epoch + 1, 0)
            if not all(check.is_done for check in self._attributes):
                self._check_step()
            stopping = self._guard.stopping()
            due = due or stopping or bool(self._every_steps and self.step % self._every_steps == 0)
            whole = self._accelerator.sync_gradients  # else a checkpoint lacks gradients of micro-batches
            if self.step == steps or (due and whole):
                self._save(ended=self.step == steps)
                due = False
            if stopping and whole:
                self._guard.end()
            if self.step == steps:
                return
        self._place = (epoch + 1, 0)  # of other data now, it may have had fewer batches than were done

    def _save(self, *, ended: bool) -> None:
        self._check_step()
        models, tried = self._accelerator._models, self._accelerator.optimizer_step_was_skipped
        idle = self._guard.check(models, self.step, ended=ended and not tried)
        folder = self._guard.directory / f"step-{self.step}"
        self._accelerator.save_state(str(folder))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            words = [self._seed, *self._place, *[IDLE] * (idle and not tried)]
            (folder / DONE).write_text(" ".join(map(str, words)))
        self._guard.saved()
