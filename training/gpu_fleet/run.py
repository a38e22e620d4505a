"""One run, put together: data, model, optimizer, checkpoints and writers, checked before the first step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim.swa_utils import AveragedModel, update_bn

from gpu_fleet import config, optimization, outcome, precision
from gpu_fleet.checkpoint.manager import Checkpoints
from gpu_fleet.data.dataset import Dataset, Description, check_parts, describe, open_split
from gpu_fleet.data.loader import Batch, Reader, Share, batches, training_slices
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.prefetch import to_device
from gpu_fleet.errors import ConfigError, ParallelError
from gpu_fleet.evaluation import Evaluated
from gpu_fleet.identity import of_run
from gpu_fleet.metrics.flops import Utilisation, utilisation
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.metrics.records import MetricsWriter
from gpu_fleet.metrics.writers import Writers, open_writers
from gpu_fleet.models import registry
from gpu_fleet.models.definitions import Facts
from gpu_fleet.parallel.pipeline import cut
from gpu_fleet.parallel.replicas import Replicas
from gpu_fleet.parallel.spread import Spread, Whole, shard
from gpu_fleet.parallel.world import World, check_sizes, ranks_per_replica
from gpu_fleet.state import State, capture_rng, restore_rng, seed_rng


@dataclass(frozen=True)
class Run:
    """What stays the same from the first step to the last."""

    settings: config.Config
    where: World
    description: Description
    training: Dataset
    held_out: Dataset
    share: Share
    checkpoints: Checkpoints
    writer: MetricsWriter
    trace: StepTrace

    @property
    def directory(self) -> Path:
        return Path(self.settings.run.directory)

    def epoch(self, state: State) -> float:
        """Passes over the training data so far."""
        return state.position / len(self.training)

    def steps_left(self, state: State) -> int:
        """Optimizer steps from `state` to the end of the run."""
        run = self.settings.run
        if run.steps:
            return max(0, run.steps - state.step)
        samples = round(run.epochs * len(self.training)) - state.position
        return max(0, -(-samples // run.batch_size))

    def evaluated(self, state: State) -> Evaluated:
        """The model that is measured and kept: the average as soon as it is one of any weights."""
        average = state.averaged
        if average is None:
            return Evaluated(state.model, state.spread.predict)
        module = average.module
        return Evaluated(module, Whole(module, module, self.settings, self.where.device).predict)

    def settle_batch_norm(self, average: AveragedModel) -> None:
        """Sets the batch-norm statistics of averaged weights: the mean of those that each rank finds."""
        if self.settings.average.batch_norm_batches:
            order = SampleOrder(len(self.training), self.settings.run.seed)
            count = self.settings.average.batch_norm_batches
            slices = islice(training_slices(order, self.share, position=0), count)
            read = batches(
                Reader(self.training, self.settings.run.seed), slices, self.settings.data, pinned=False
            )
            inputs = (batch.to(self.where.device).inputs for batch in read)
            update_bn(inputs, average.module, self.where.device)
            statistics = ("running_mean", "running_var")
            found = (value for name, value in average.module.named_buffers() if name.endswith(statistics))
            self.where.average(found)
        self.where.share_buffers(average.module)

    def batches(self, state: State) -> Iterator[Batch]:
        """The micro-batches of this rank from the position of `state` on, on the device."""
        order = SampleOrder(len(self.training), self.settings.run.seed)
        slices = training_slices(order, self.share, state.position)
        reader = Reader(self.training, self.settings.run.seed)
        pinned = self.where.device.type == "cuda"
        read = batches(reader, slices, self.settings.data, pinned)
        return to_device(read, self.where.device, self.settings.data.prefetch)


@contextmanager
def opened(settings: config.Config, where: World) -> Iterator[Run]:
    """Checks and opens everything a run needs; every fault is raised on every rank before the first step."""
    readers = where.together(lambda: check_sizes(settings, where.size))
    description = where.together(lambda: describe(Path(settings.data.path)))
    training = where.together(lambda: open_split(settings.data, description, "train"))
    held_out = where.together(lambda: open_split(settings.data, description, "val"))
    where.together(lambda: check_parts(training, readers, settings.data.workers))
    where.together(lambda: check_length(settings, len(training)))
    where.on_first(lambda: _make_directory(Path(settings.run.directory)))
    place = where.rank // ranks_per_replica(settings.parallel)
    share = Share(place, readers, settings.run.batch_size, settings.run.accumulation)
    identity = where.on_first(lambda: of_run(settings, description, training))
    checkpoints = Checkpoints(settings, where, len(training), identity)
    directory = Path(settings.run.directory)
    trace = where.together(lambda: StepTrace(settings.metrics.profile_steps, directory, active=where.leads))
    writer = where.together(
        lambda: (
            open_writers(settings.metrics, directory, all_steps(settings, len(training)))
            if where.leads
            else Writers([])
        )
    )
    try:
        with trace:
            yield Run(settings, where, description, training, held_out, share, checkpoints, writer, trace)
    finally:
        checkpoints.abandon()
        writer.close()


def all_steps(settings: config.Config, samples: int) -> int:
    """Optimizer steps of the whole run on so many samples."""
    run = settings.run
    return run.steps or -(-round(run.epochs * samples) // run.batch_size)


def check_length(settings: config.Config, samples: int) -> None:
    """Raises ConfigError for a batch that the data cannot fill, or a warm-up that never ends."""
    run, steps, warmup = settings.run, all_steps(settings, samples), settings.schedule.warmup_steps
    if run.batch_size > samples:
        raise ConfigError(f"run.batch_size = {run.batch_size}: the training data have {samples} samples")
    if warmup >= steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps = {warmup}: the run has {steps} steps, and never its learning rate"
        )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not outcome.restarted():
            outcome.remove(directory)
    except OSError as error:
        raise ConfigError(
            f"run.directory = {str(directory)!r}: cannot be written: {error.strerror}"
        ) from error


def fresh_state(run: Run) -> State:
    """The state before step 1: the same weights on every rank, another dropout on each."""
    settings, where = run.settings, run.where
    precision.set_matrix_format(settings.precision)
    seed_rng(settings.run.seed, rank=0, step=0)
    model = where.together(lambda: build_model(run)).to(where.device)
    if settings.precision.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from its hints
    average = optimization.build_average(model, settings.average)
    used = utilisation_of(run, model)
    model, spread = where.together(lambda: spread_model(model, settings, where))
    if settings.precision.compile and not isinstance(model, FSDPModule):  # its layers are compiled one by one
        model.compile()
    seed_rng(settings.run.seed, where.rank, step=0)
    return State(
        model=model,
        spread=spread,
        optimizer=optimization.build_optimizer(model, settings.optimizer),
        scaler=precision.scaler(settings.precision, where.device),
        average=average,
        utilisation=used,
    )


def rehearse(run: Run, state: State) -> None:
    """Passes before the first step, where it would matter whether there were some before; leaves no trace."""
    before = capture_rng()
    state.model.train()
    state.spread.rehearse(run.where.together(lambda: first_batch(run)))
    restore_rng(before)


def utilisation_of(run: Run, model: nn.Module) -> Utilisation | None:
    """What tells the part of the GPUs' peak that is reached; None where no peak is known, as on the CPU."""
    if run.where.device.type != "cuda":
        return None
    inputs = first_batch(run).inputs[:1]
    name = torch.cuda.get_device_name(run.where.device)
    return utilisation(model, inputs, name, run.settings.precision.dtype, run.where.size)


def first_batch(run: Run) -> Batch:
    """One micro-batch on the device, the same on every rank; raises DataError."""
    first = SampleOrder(len(run.training), run.settings.run.seed).slice(0, run.share.micro_batch)
    return Reader(run.training, run.settings.run.seed)[first].to(run.where.device)


def build_model(run: Run) -> nn.Module:
    """The whole model on the CPU, as the configuration and the data have it; raises ModelError."""
    settings, description = run.settings, run.description
    facts = Facts(len(description.classes), description.vocabulary, settings.data.sequence_length)
    kind = description.kind if settings.data.kind == "auto" else settings.data.kind
    chosen = settings.model
    model = registry.build(chosen.name, chosen.options, facts, kind, chosen.weights)
    if settings.precision.activation_checkpointing:
        registry.recompute_activations(model, chosen.name)
    if settings.parallel.sync_batch_norm:
        if run.where.size > 1 and run.where.device.type == "cpu":
            raise ParallelError("parallel.sync_batch_norm = true: torch does so between GPUs only, not CPUs")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # no hints
    return model


def spread_model(model: nn.Module, settings: config.Config, where: World) -> tuple[nn.Module, Spread]:
    """What this rank holds of the model, and how it is used; raises ParallelError."""
    if settings.parallel.strategy == "ddp":
        alone = where.size == 1
        return model, Whole(model, model, settings, where.device) if alone else Replicas(
            model, settings, where
        )
    if settings.parallel.strategy == "pipeline":
        return cut(model, settings, where)
    return model, shard(model, settings, where)
