"""Run, for a user's own training loop: exact resume, stops for notices, checkpoints on disk and in a bucket.

    from gpu_fleet import Run

    with Run("runs/mine", model=model, optimizer=optimizer) as run:
        batches = run.batches(dataset, batch_size=64, workers=2)
        for step in run.steps(1000):
            inputs, targets = next(batches)
            ...

A run that resumes on the same number of ranks ends with the same bits as an undisturbed run. On more than two
ranks there is one exception: the first step of DistributedDataParallel sums gradients in other buckets than
later steps, so rounding may differ.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from gpu_fleet.checkpoint import local, names, run_identity
from gpu_fleet.checkpoint.engine import CheckpointEngine
from gpu_fleet.checkpoint.store import CheckpointStore
from gpu_fleet.core import config, outcome, user_code
from gpu_fleet.core.containers import mapping_like, plain, shaped
from gpu_fleet.core.errors import ConfigError, IdentityError, TrainingError, a_kind, counted
from gpu_fleet.core.instance_file import place_of_checkpoints
from gpu_fleet.core.world import World, of_script
from gpu_fleet.data.generators import (
    SHARED,
    SavedGenerator,
    is_generator,
    restore_generators,
    states_of_generators,
)
from gpu_fleet.data.loader import RankShare, batches, end_readers, reader_ended, training_slices
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.own_data import ENDLESS, Collate, OwnData, OwnReader, Stream, adapted
from gpu_fleet.data.resumable import LOADERS, READ, Readers, Taken
from gpu_fleet.integrations.exactness import ExactnessCheck, frames_of_loop
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption, Reason, sources
from gpu_fleet.step.checks import GradientWatch
from gpu_fleet.step.optimization import load_exactly
from gpu_fleet.step.state import (
    buffers_of_ranks,
    capture_rng,
    of_ranks,
    parameters_sha256,
    restore_buffers,
    restore_rng,
    seed_rng,
    tensors_of,
)

AGREE_EVERY_S = 0.25
TIMEOUT_S = 600.0  # longest wait of a rank for another; less than that of torch's process groups
SWITCHES = "switches"  # see state.switches
DATA = "data"  # section of the data in the keys of an identity
log = logging.getLogger(__name__)


class Saveable(Protocol):
    """A model, an optimizer, a schedule, a scaler: any object with these two methods."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Run:
    """Context of one run in one directory, from its newest checkpoint to its end or to a notice."""

    def __init__(
        self,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        uri: str = "",
        every_steps: int = 0,
        every_s: float = 1800.0,
        keep: int = 3,
        allow: Sequence[str] = (),
        **objects: Saveable,
    ) -> None:
        """Note the objects; the context reads and writes files only when it is entered.

        Args:
            directory: folder of the run's files; each run needs its own.
            config: values that decide the result, such as the learning rate. A run does not resume with other
                values. The values of rank 0 count.
            uri: s3://bucket/prefix or oss://bucket/prefix; empty: the stack's bucket, or none without one.
            every_steps: steps between two checkpoints; 0: by time alone.
            every_s: seconds between two checkpoints; 0: none by time.
            keep: number of checkpoints that stay.
            allow: keys that may differ from the checkpoint, such as "code.train.py" or "data.content".
            objects: objects to save and restore, by name, also random generators; of DistributedDataParallel,
                its inner model.
        """
        self.directory, self.step = Path(directory).expanduser(), 0
        self._readers, self._saved = Readers(), dict[str, Any]()  # what the loop needs of the checkpoint
        self._config, self._uri, self._allow = dict(config or {}), uri, allow
        self._every_steps, self._every_s, self._keep = every_steps, every_s, keep
        self._objects = {name: _inner(thing) for name, thing in objects.items()}
        self._modules = [thing for thing in self._objects.values() if isinstance(thing, nn.Module)]
        alike = (nn.Module, torch.optim.Optimizer)  # on all ranks; the others may differ
        self._others = [name for name, thing in self._objects.items() if not isinstance(thing, alike)]
        self._entered = self._in_step = self._in_loop = False
        self._data_sets: list[dict[str, Any]] = []  # identities of those before the first step
        self._resumed_from: int | None = None
        self._watch: GradientWatch | None = None

    def __enter__(self) -> Self:
        """Restore the newest checkpoint. A TrainingError ends the process with one message."""
        self._interruption = Interruption(sources())
        self._where = _where(self._objects)
        logging.basicConfig(level=logging.INFO if self._where.leads else logging.WARNING)
        try:
            _check_saveable(self._objects)
            _check_numbers(1, keep=self._keep)
            _check_numbers(0, Real, every_steps=self._every_steps, every_s=self._every_s)
            self._exactness = ExactnessCheck(self._objects)
            with ExitStack() as held:
                held.enter_context(self._interruption)  # first, so that a notice does not cut a restore off
                self._open(held)
                self._held = held.pop_all()
        except TrainingError as error:
            outcome.leave(self.directory, error, self._where.rank)
        self._entered = True
        return self

    def _check_entered(self) -> None:
        if not self._entered:
            raise ConfigError("Run: is used outside of its context; write: with Run(...) as run:")

    def _open(self, held: ExitStack) -> None:
        where = self._where
        # rank 0's counts, which checkpoints hold; on other ranks it may name their rank or device
        known = where.on_first(lambda: run_identity.of_script(self._config, self.directory))
        self._identity = run_identity.ScriptIdentity(known, self._allow, "Run(allow=[{keys}])", later=(DATA,))
        uri = place_of_checkpoints(self._uri, "", self.directory)
        engine = self._engine = CheckpointEngine(
            where,
            self.directory,
            where.together(lambda: CheckpointStore(uri) if uri else None),
            keep=self._keep,
            every_s=self._every_s,
            timeout_s=TIMEOUT_S,
            code=user_code.archive(user_code.files(self.directory, with_main=True)),
            stopping=lambda: self._interruption.reason is not Reason.NONE,
        )
        held.callback(engine.release)
        held.callback(engine.abandon)  # a save that has begun is finished under lock and lease
        held.callback(end_readers)
        self._stop = Stop(
            where, self._interruption, AGREE_EVERY_S, save_due=engine.due_by_time, moved=lambda: None
        )
        if (manifest := engine.newest()) is not None:
            engine.resume(manifest, self._check_same, self._apply)
            self._resumed_from = self.step = manifest.step

    def _check_same(self, manifest: local.Manifest) -> None:
        self._identity.compare_with(manifest.identity, manifest.step, str(self.directory / names.CHECKPOINTS))

    def _identify(self, data: OwnData, batch_size: int, seed: int) -> None:
        """Add data from before the first step to the identity, on each rank that reads them."""
        if self._in_loop:
            return
        known = run_identity.of_data(data, says=self._where.leads)
        self._data_sets.append(known)
        section = f"{DATA}-{len(self._data_sets)}" if len(self._data_sets) > 1 else DATA
        described = {**known, "batch_size": batch_size, "seed": seed}
        table = dict(run_identity.flattened({section: described}))
        try:
            self._identity.add(table)
        except IdentityError as error:
            error.shared = True
            raise

    def _apply(self, saved: Any, _folder: Path) -> None:
        _restore_objects(self._objects, saved, self._where)
        restore_buffers(self._modules, saved["buffers"], self._where)
        self._saved = {name: saved.get(name, []) for name in ("rng", SWITCHES)}
        same = len(saved[LOADERS]) == self._where.size  # else no rank has places in its own loader
        self._readers.saved = {READ: _of_rank(saved.get(READ), self._where)}
        self._readers.saved |= {LOADERS: saved[LOADERS][self._where.rank]} if same else {}

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the remaining steps, counted from 0; a step is done when the next one begins.

        It saves when a checkpoint is due, and after the last step. After a notice it saves and ends the
        process: with 85, or with 0 under torchrun, which would otherwise start it again at once. A `break`
        on all ranks counts its step as done, and saves it.
        """
        self._check_entered()
        _check_numbers(0, Real, steps=total)
        self._begin()
        while self.step < total:
            if self._stop.agreed_soon():
                self._end_for_notice()
            self._in_step = True
            yield self.step
            self._in_step = False
            self.step += 1
            self._check_step(ended=self.step >= total)
            due = self._every_steps and self.step % self._every_steps == 0
            if self._stop.take_save_request() or due:
                self.save()
        self.save()

    def _begin(self) -> None:
        if self._in_loop:
            return
        run_identity.check_alike(self._where.gather(self._data_sets), "run.batches(samples)")
        if self._where.local_rank == 0:
            outcome.remove(self.directory, outcome.RESULT)
        self._readers.begin()
        if self._saved:  # only now, so that code before the loop draws and sets the same at each start
            _restore_rng(self._saved["rng"], self._where, self.step)
        self._exactness.begin(frames_of_loop(), dict(_of_rank(self._saved.get(SWITCHES), self._where)))
        optimizers = [o for o in self._objects.values() if isinstance(o, torch.optim.Optimizer)]
        self._watch = GradientWatch(optimizers, self._modules, self._where, anywhere=False)
        self._in_loop = True

    def batches(
        self,
        samples: Any,
        batch_size: int,
        *,
        workers: int = 0,
        accumulation: int = 1,
        seed: int = 0,
        collate: Collate = default_collate,
    ) -> Iterator[Any]:
        """Yield batches on the CPU without end, from the present step on, in the order of seed and epoch.

        Args:
            samples: any object with `__len__` and `__getitem__`, or an iterable.
            batch_size: samples of a step over all ranks; each rank gets its share of them.
            workers: reader processes of this rank.
            accumulation: batches that a step takes on each rank.
            seed: seed of the order, and of the generators of torch, numpy and random for each sample.
            collate: function from a list of samples to a batch.

        Raises:
            ConfigError: the sizes do not divide, or `samples` is no data set.
            IdentityError: before the first step, if the run resumes from a checkpoint of other data.
        """
        self._check_entered()
        where = self._where
        _check_sizes(batch_size, where.size, accumulation)
        _check_numbers(0, workers=workers, seed=seed)
        data = adapted(samples, "samples", collate, lambda problem: ConfigError(f"samples: {problem}"))
        self._identify(data, batch_size, seed)
        self._exactness.reads(samples)
        stream = isinstance(data, Stream)
        order = SampleOrder(ENDLESS if stream else len(data), seed, shuffle=not stream)
        share = RankShare(where.rank, where.size, batch_size, accumulation)
        taken = Taken(batch_size, batch_size // accumulation, self.step, self._readers.next(READ))
        self._readers.note(READ, taken)
        slices = training_slices(order, share, taken.first)
        read = batches(
            OwnReader(data, seed), slices, config.Data(path="samples", workers=workers), pinned=False
        )
        return taken.counted(batch.inputs for batch in read)

    def batches_of(self, loader: Any, *, accumulation: int = 1) -> Iterator[Any]:
        """Yield the batches of a DataLoader of your own without end, from the present step on.

        The loader decides the order, the batch size and the share of a rank; epoch and index decide a
        sample's random numbers. A step takes `accumulation` batches.

        Raises:
            ConfigError: the loader is of another kind, or reads a stream.
            IdentityError: before the first step, if the run resumes from a checkpoint of other data.
        """
        self._check_entered()
        passes, is_known = self._readers.passes(loader, accumulation, self.step)
        data = adapted(loader.dataset, "loader", loader.collate_fn, ConfigError)
        self._identify(data, (loader.batch_size or 0) * self._where.size, 0)
        self._exactness.reads(loader.dataset, loader)
        if self.step and not (is_known or self._in_loop):
            log.warning(
                "not exact: the checkpoint has no position in this DataLoader, or has another number of "
                "ranks: its epoch starts again"
            )
        return passes.counted(passes.read())

    def _check_step(self, *, ended: bool) -> None:
        done = self.step - (self._resumed_from or 0)
        self._readers.passed()
        if self._watch is not None:  # the last steps of a resumed run may wait for an update
            self._watch.passed(done, ended=ended and self._resumed_from is None)
        if done == 1:  # fail early: the first step creates most states
            self._where.together(self._checked_states)
        self._exactness.check(self._where, self.step, done)

    def save(self) -> None:
        """Save a checkpoint of this step on all ranks, if there is none; raises CheckpointError."""
        self._check_entered()
        if self._engine.is_saved(self.step):
            return
        if self._watch is not None and self.step > (self._resumed_from or 0):
            self._watch.check(self.step)
        self._exactness.check_save(self._where)
        self._readers.warn(says=self._where.leads)
        objects = self._where.together(self._checked_states)
        state = {
            "objects": objects,
            "own": of_ranks({name: objects[name] for name in self._others}, self._where),
            "rng": self._where.gather({**capture_rng(), SHARED: states_of_generators()}),
            "buffers": buffers_of_ranks(self._modules, self._where),
            **{kind: self._where.gather(places) for kind, places in self._readers.places().items()},
            SWITCHES: self._where.gather(self._exactness.switched()),
            "step": self.step,
        }
        manifest = local.Manifest(self.step, "", self._where.size, identity=self._identity.known)
        self._engine.begin_save(manifest, state)
        self._engine.before_change()

    def _checked_states(self) -> dict[str, Any]:
        self._engine.check_earlier()
        names = self._objects if self._where.leads else self._others
        return {name: plain(self._objects[name].state_dict(), f"Run({name}=...)") for name in names}

    def _end_for_notice(self) -> None:
        self.save()
        self._close("stopped", self._stop.reason.label, self._stop.detail())
        outcome.leave_stopped()

    def _end_of_loop(self) -> str:
        """Save the step that a `break` has left, if any. Return the reason for the end of the loop."""
        if not self._in_step:
            return "all steps done"
        self._in_step = False
        self.step += 1
        self._check_step(ended=True)
        self.save()
        return "left the loop"

    def _close(self, how: Literal["finished", "stopped"], reason: str, detail: str) -> None:
        self._engine.flush()
        modules = sorted(self._modules, key=lambda module: not any(True for _ in module.parameters()))
        digest = parameters_sha256(modules[0], self._where) if modules else ""
        self._engine.conclude(
            outcome.Outcome(
                outcome=how,
                reason=reason,
                detail=detail,
                step=self.step,
                epoch=0.0,
                parameters_sha256=digest,
                resumed_from_step=self._resumed_from,
                checkpoint=self._engine.location,
            )
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:  # signals are still caught: a second notice must not cut the last upload off
            try:
                known = error and (reader_ended(error) or error)
                if isinstance(known, TrainingError):
                    raise known
                if error is None:
                    self._close("finished", self._end_of_loop(), "")
            except TrainingError as failure:
                outcome.leave(self.directory, failure, self._where.rank)


def _inner(thing: Any) -> Any:
    if is_generator(thing):
        return SavedGenerator(thing)
    return thing.module if isinstance(thing, DistributedDataParallel) else thing


def _check_numbers(least: int, kind: type = Integral, **numbers: Any) -> None:
    for name, value in numbers.items():
        fits = isinstance(value, kind)
        if not fits or not value >= least:  # a NaN is neither more nor less
            what = "whole number" if kind is Integral else "number"
            raise ConfigError(f"{name} = {value!r}: write a {what}, {least} or more")


def _check_sizes(batch_size: int, ranks: int, accumulation: int) -> None:
    _check_numbers(1, batch_size=batch_size, accumulation=accumulation)
    if batch_size % (ranks * accumulation):
        raise ConfigError(
            f"batch_size = {batch_size}: does not divide into {counted(ranks, 'rank')} x "
            f"{counted(accumulation, 'batch', 'batches')}"
        )


def _check_saveable(objects: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        if isinstance(thing, nn.Module) and any(isinstance(p, DTensor) for p in thing.parameters()):
            raise ConfigError(
                f"Run({name}=...): is sharded, and Run saves only whole models; use a configuration "
                "with parallel.strategy = 'fsdp'"
            )
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(f"Run({name}=...): {a_kind(thing)} has no state_dict to save")


def _restore_objects(objects: Mapping[str, Any], saved: Mapping[str, Any], where: World) -> None:
    own = saved.get("own", [])  # what each rank held otherwise than rank 0; 0.2.0 has none
    names = ", ".join(sorted(set(chain.from_iterable(own))))
    if names and where.leads and len(own) != where.size:
        log.warning("not exact: the ranks held different %s, and their number is another now", names)
    states = saved["objects"] | (own[where.rank] if where.rank < len(own) else {})
    # generators last: another object may draw from one as it loads
    for name, thing in sorted(objects.items(), key=lambda item: isinstance(item[1], SavedGenerator)):
        try:
            state = shaped(states[name], _uncopied(thing))
            if isinstance(thing, torch.optim.Optimizer):
                load_exactly(thing, state)
            else:
                thing.load_state_dict(state)
        except Exception as error:  # a user's object may raise anything; no other try can succeed
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise IdentityError(f"Run({name}=...): the checkpoint does not fit it: {reason}") from error


def _of_rank(saved: Sequence[Any] | None, where: World) -> Any:
    """Return what this rank has saved, or rank 0 if their number was another; empty for 0.2.0."""
    return saved[where.rank if len(saved) == where.size else 0] if saved else []


def _restore_rng(saved: Sequence[Any], where: World, step: int) -> None:
    if where.rank < len(saved):
        restore_rng(saved[where.rank])
        restore_generators(saved[where.rank][SHARED])
    else:
        seed_rng(0, where.rank, step)


def _uncopied(thing: Any) -> Any:
    """Return the state of an object without what a module copies itself, from any device."""
    state, copied = thing.state_dict(), tensors_of(thing) if isinstance(thing, nn.Module) else {}
    if not copied or not isinstance(state, Mapping):
        return state
    return mapping_like(state, {name: value for name, value in state.items() if name not in copied})


def _where(objects: Mapping[str, Any]) -> World:
    modules = (thing for thing in objects.values() if isinstance(thing, nn.Module))
    tensors = (tensor for module in modules for tensor in chain(module.parameters(), module.buffers()))
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.exit("error: Run: call torch.distributed.init_process_group before it, on every rank")
    return of_script(device)
