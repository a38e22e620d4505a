"""Preparation of one run: data, model, optimizer, checkpoints and writers, checked before the first step."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim.swa_utils import AveragedModel, update_bn

from gpu_fleet import config, optimization, precision
from gpu_fleet.checkpoint.manager import Checkpoints, fetch_code
from gpu_fleet.data.bucket import BucketSource
from gpu_fleet.data.census import Census, shown
from gpu_fleet.data.dataset import Dataset, Description, check_parts, describe, is_bucket, open_split
from gpu_fleet.data.loader import (
    IGNORED,
    Batch,
    PairedReader,
    RankShare,
    Reader,
    ReadsBatches,
    batches,
    end_readers,
    reader_processes,
    training_slices,
)
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.own_data import (
    ENDLESS,
    OwnData,
    OwnReader,
    Stream,
    open_own,
    open_records,
)
from gpu_fleet.data.prefetch import to_device
from gpu_fleet.data.tables import is_table, open_table
from gpu_fleet.errors import ConfigError, DataError, OwnCodeError, ParallelError
from gpu_fleet.evaluation import Evaluated
from gpu_fleet.files import on_disk
from gpu_fleet.metrics.flops import Utilisation, utilisation
from gpu_fleet.metrics.goodput import Book
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.metrics.records import MetricsWriter
from gpu_fleet.metrics.writers import Writers, open_writers
from gpu_fleet.models import pretrained, registry
from gpu_fleet.models.definitions import Facts
from gpu_fleet.models.pretrained import fill, is_pretrained
from gpu_fleet.models.registry import OWN_DATA
from gpu_fleet.own_code import Own, Parts, archive, files, keep, parts
from gpu_fleet.own_code import identity as identity_of
from gpu_fleet.parallel.pipeline import cut
from gpu_fleet.parallel.replicas import Replicas
from gpu_fleet.parallel.spread import Spread, Whole, shard
from gpu_fleet.pool import price
from gpu_fleet.run_identity import check_alike, of_data, of_run
from gpu_fleet.state import State, capture_rng, not_finite, restore_rng, seed_rng, tensors_of
from gpu_fleet.task import Task, count_of, try_held_out, try_out
from gpu_fleet.world import World, check_sizes, ranks_per_replica

FEW = 2  # samples for the first test of a model of transformers
CUT = "mixed torch.Tensor and DTensor"  # torch's words about a shard among whole tensors
log = logging.getLogger(__name__)
RECORDS = "records"  # the kind of tars with any keys


@dataclass(frozen=True)
class PreparedRun:
    """Parts of a run that stay the same from the first step to the last."""

    settings: config.Config
    where: World
    description: Description
    training: Dataset | OwnData
    held_out: Dataset | OwnData | None
    left_out: Census  # of what the data hold
    own: Parts
    code: Mapping[str, bytes]  # the user's files
    share: RankShare
    checkpoints: Checkpoints
    writer: MetricsWriter
    trace: StepTrace
    book: Book

    @property
    def directory(self) -> Path:
        return Path(self.settings.run.directory)

    @property
    def is_task(self) -> bool:
        """True if the model computes its own loss, for batches of any kind: see gpu_fleet.task."""
        return gives_its_loss(self.training, self.own)

    @property
    def order(self) -> SampleOrder:
        """Order of the training samples."""
        seed = self.settings.run.seed
        if isinstance(self.training, Stream):
            return SampleOrder(ENDLESS, seed, shuffle=False)
        return SampleOrder(len(self.training), seed)

    def reader(self, dataset: Dataset | OwnData, model: nn.Module | None = None) -> ReadsBatches:
        """Return a reader of whole batches of a data set; without the `model` batch weights may differ."""
        seed, over = self.settings.run.seed, self.own.mean_over or self.settings.loss.mean_over
        shifted = model is not None and pretrained.shifts_labels(model)
        count = partial(count_of, over=over, shifted=shifted)
        if isinstance(dataset, OwnData):
            check = None if model is None else pretrained.limits_of(model).check
            return OwnReader(dataset, seed, count, check)
        read = Reader(dataset, seed)
        return PairedReader(read, count) if self.is_task else read

    def keep_code(self) -> None:
        """Copy the user's files into the run directory, once per instance; raises CheckpointError."""
        if self.where.local_rank == 0:
            with on_disk(self.directory):
                keep(self.code, self.directory)

    def epoch(self, state: State) -> float:
        """Return the number of passes over the training data so far."""
        return state.position / len(self.training)

    def steps_left(self, state: State) -> int:
        """Return the number of optimizer steps from `state` to the end of the run."""
        run = self.settings.run
        if run.steps:
            return max(0, run.steps - state.step)
        samples = round(run.epochs * len(self.training)) - state.position
        return max(0, -(-samples // run.batch_size))

    def evaluated(self, state: State) -> Evaluated:
        """Return the model to evaluate and export: the average, once it has taken in any weights."""
        average = state.averaged
        if average is None:
            return Evaluated(state.model, state.spread.predict)
        module = average.module
        return Evaluated(module, Whole(module, module, self.settings, self.where.device).predict)

    def settle_batch_norm(self, average: AveragedModel) -> None:
        """Set the batch-norm statistics of averaged weights to the mean of those that each rank computes."""
        if self.settings.average.batch_norm_batches:
            count = self.settings.average.batch_norm_batches
            slices = islice(training_slices(self.order, self.share, position=0), count)
            read = batches(self.reader(self.training), slices, self.settings.data, pinned=False)
            # lists of one item: update_bn takes the first item, of any type
            update_bn(([batch.to(self.where.device).inputs] for batch in read), average.module)
            statistics = ("running_mean", "running_var")
            buffers = (value for name, value in average.module.named_buffers() if name.endswith(statistics))
            self.where.average(buffers)
        self.where.share_buffers(average.module)

    def batches(self, state: State) -> Iterator[Batch]:
        """Return the micro-batches of this rank from the position of `state` on, on the device."""
        slices = training_slices(self.order, self.share, state.position)
        pinned = self.where.device.type == "cuda"
        read = batches(self.reader(self.training, state.model), slices, self.settings.data, pinned)
        return to_device(read, self.where.device, self.settings.data.prefetch)


def gives_its_loss(training: Dataset | OwnData, own: Parts) -> bool:
    """Return whether loss or metric is a user's own, or the data are: then the model computes the loss."""
    return isinstance(training, OwnData) or bool(own.loss or own.metric)


def check_mean(settings: config.Loss, training: Dataset | OwnData, own: Parts) -> None:
    """Raise ConfigError for a loss.mean_over that the trainer's own loss does not support."""
    if settings.mean_over != "targets" and not gives_its_loss(training, own):
        raise ConfigError(
            f"loss.mean_over = {settings.mean_over!r}: the loss of these data is the mean over targets; "
            "another one needs loss.name"
        )


@contextmanager
def opened(
    settings: config.Config, where: World, stopping: Callable[[], bool] = lambda: False
) -> Iterator[PreparedRun]:
    """Check and open everything that a run needs; every rank raises every error, before the first step.

    `stopping` returns whether a notice has come, which ends the wait for another process that holds the run.
    """
    readers = where.together(lambda: check_sizes(settings, where.size))
    where.together(lambda: fetch_code(settings) if where.local_rank == 0 else None)
    own = where.together(lambda: parts(settings))
    description, training, held_out = where.together(lambda: open_data(settings, own))
    where.together(lambda: check_classes(description, own))
    left_out = left_out_of(training, held_out)
    if where.leads and left_out.left_out:
        log.warning("event=data-left-out path=%r census=%r", settings.data.path, str(left_out))
    where.together(lambda: check_stacked(settings.data, description))
    settings = with_readers(settings, description, training)
    where.together(lambda: check_parts(training.parts, readers, settings.data.workers or 0))
    where.together(lambda: check_length(settings, training))
    where.together(lambda: check_mean(settings.loss, training, own))
    where.on_first(lambda: _make_directory(Path(settings.run.directory)))
    place = where.rank // ranks_per_replica(settings.parallel)
    share = RankShare(place, readers, settings.run.batch_size, settings.run.accumulation)
    code = files(Path(settings.run.directory)) if own.any else {}
    looked_at = looked_at_alike(training, where)
    if held_out is not None:
        looked_at_alike(held_out, where)
    identity = where.on_first(lambda: of_run(settings, description, training, identity_of(code), looked_at))
    here = price.of_this_instance() if where.local_rank == 0 else None
    instances = [
        instance_price for number, instance_price in where.gather((where.local_rank, here)) if number == 0
    ]
    packed = archive(code) if code else b""
    checkpoints = Checkpoints(settings, where, len(training), identity, packed, stopping=stopping)
    directory = Path(settings.run.directory)
    with ExitStack() as at_end:
        at_end.callback(checkpoints.release)
        trace = where.together(
            lambda: StepTrace(settings.metrics.profile_steps, directory, active=where.leads)
        )
        table = settings.model_dump(mode="json")
        writer = where.together(
            lambda: (
                open_writers(settings.metrics, directory, all_steps(settings, len(training)), table)
                if where.leads
                else Writers([])
            )
        )
        at_end.callback(writer.close)
        at_end.callback(checkpoints.abandon)
        at_end.callback(end_readers)
        with trace:
            yield PreparedRun(
                settings,
                where,
                description,
                training,
                held_out,
                left_out,
                own,
                code,
                share,
                checkpoints,
                writer,
                trace,
                Book(price=price.of_all(instances)),
            )


def open_data(
    settings: config.Config, own: Parts
) -> tuple[Description, Dataset | OwnData, Dataset | OwnData | None]:
    """Open the data: description, training split and held-out split (None if a user's own data have none).

    Raises TrainingError.
    """
    chosen = settings.data
    root = Path(chosen.path)
    described = None
    if is_bucket(chosen.path):
        described = BucketSource(chosen.path, chosen.endpoint, chosen.retry_s).description()
    elif own.data is None and not is_table(root):
        described = describe(root)
    if described is not None and described.kind != RECORDS:
        return described, open_split(chosen, described, "train"), open_split(chosen, described, "val")
    training: OwnData | None
    held_out: OwnData | None
    if own.data is not None:
        training, held_out = (open_own(own.data, split, own.collate) for split in ("train", "val"))
    elif described is not None:
        training, held_out = (open_records(chosen, described, part, own.collate) for part in ("train", "val"))
    else:
        training, held_out = (open_table(chosen, split, own.collate) for split in ("train", "val"))
    assert training is not None
    if held_out is not None and len(held_out) == ENDLESS:
        raise ConfigError(f"{held_out.label}: has no length; give it __len__, or return None for 'val'")
    return Description(OWN_DATA, training.classes, training.vocabulary), training, held_out


def check_classes(description: Description, own: Parts) -> None:
    """Raise DataError for data of one class, unless the loss is a user's own: every model has them right."""
    if len(description.classes) == 1 and own.loss is None:
        raise DataError(
            f"data.path: all samples are of one class, {shown(description.classes[0])!r}: classes are the "
            "folders in train/, or in data.path; or set loss.name"
        )


def left_out_of(training: Dataset | OwnData, held_out: Dataset | OwnData | None) -> Census:
    """Return what the readers of both splits leave out."""
    census = Census()
    for data in (training, held_out):
        if data is not None:
            census.add(data.census)
    return census


def looked_at_alike(samples: Dataset | OwnData, where: World) -> dict[str, Any]:
    """Return what distinguishes a user's own data, if several ranks read them by user code; else nothing.

    Raises DataError if ranks read different samples, and OwnCodeError.
    """
    if where.size == 1 or not isinstance(samples, OwnData) or not samples.of_user:
        return {}
    known = where.together(lambda: of_data(samples, says=where.leads))
    check_alike(where.gather([{"samples": len(samples), **known}]), samples.label)
    return known


def check_stacked(settings: config.Data, description: Description) -> None:
    """Raise ConfigError for data.collate or data.columns with data of a kind that ignores them."""
    for key in ("collate", "columns") if description.kind not in (OWN_DATA, RECORDS) else ():
        if value := getattr(settings, key):
            raise ConfigError(
                f"data.{key} = {value!r}: is for data.name, tables and tars of any keys; "
                f"{settings.path} is of kind {description.kind}"
            )


def kind_of(settings: config.Data, description: Description) -> str:
    """Return data.kind, or for "auto" the kind in the description of the data."""
    return description.kind if settings.kind == "auto" else settings.kind


def with_readers(
    settings: config.Config, description: Description, training: Dataset | OwnData
) -> config.Config:
    """Return the configuration with a default number of reader processes, if it sets none."""
    if settings.data.workers is not None:
        return settings
    kind = kind_of(settings.data, description)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    workers = reader_processes(kind, len(os.sched_getaffinity(0)), ranks_here)
    if isinstance(training, Stream):  # only one process can read it
        workers = 0
    return settings.model_copy(update={"data": settings.data.model_copy(update={"workers": workers})})


def all_steps(settings: config.Config, samples: int) -> int:
    """Return the number of optimizer steps of the whole run on `samples` samples."""
    run = settings.run
    return run.steps or -(-round(run.epochs * samples) // run.batch_size)


def check_length(settings: config.Config, training: Dataset | OwnData) -> None:
    """Raise ConfigError for a batch larger than the data, and for a warm-up or a run that never ends."""
    samples = len(training)
    if samples == ENDLESS and not settings.run.steps:
        raise ConfigError(f"run.epochs = {settings.run.epochs}: the data have no length; set run.steps")
    if isinstance(training, Stream) and (settings.data.workers or 0) > 1:
        raise ConfigError(
            f"data.workers = {settings.data.workers}: an iterable is read by one process; set 0 or 1"
        )
    run, steps, warmup = settings.run, all_steps(settings, samples), settings.schedule.warmup_steps
    if run.batch_size > samples:
        raise ConfigError(f"run.batch_size = {run.batch_size}: the training data have {samples} samples")
    if (traced := settings.metrics.profile_steps) and traced[0] > steps:
        raise ConfigError(f"metrics.profile_steps = {list(traced)}: the run has {steps} steps")
    if warmup >= steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps = {warmup}: the run has {steps} steps, and never its learning rate"
        )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run.directory = {str(directory)!r}: cannot be written: {error.strerror}"
        ) from error


def fresh_state(run: PreparedRun) -> State:
    """Build the state before step 1: the same weights on every rank, different dropout on each."""
    settings, where = run.settings, run.where
    precision.set_matrix_format(settings.precision)
    seed_rng(settings.run.seed, rank=0, step=0)
    model = where.together(lambda: build_model(run))
    used = utilisation_of(run, model)
    cut_first = settings.parallel.strategy in ("fsdp", "tensor")  # no device ever holds the whole model
    if not cut_first:
        where.together(lambda: ready(run, model))
    average = optimization.build_average(model, settings.average)
    model, spread = where.together(lambda: spread_model(model, settings, where))
    if cut_first:
        where.together(lambda: ready(run, model))
    if settings.precision.compile and not isinstance(model, FSDPModule):  # its layers are compiled singly
        model.compile()
    seed_rng(settings.run.seed, where.rank, step=0)
    optimizer = where.together(
        lambda: optimization.build_optimizer(model, settings.optimizer, run.own.optimizer)
    )
    return State(
        model=model,
        spread=spread,
        optimizer=optimizer,
        chosen=optimization.decided(optimizer, settings.checkpoint.allow),
        scaler=precision.scaler(settings.precision, where.device),
        average=average,
        utilisation=used,
        not_finite_at_start=frozenset(not_finite(tensors_of(model))),
    )


def ready(run: PreparedRun, model: nn.Module) -> None:
    """Set the values of a model, move it to the device, and test it; raises TrainingError."""
    settings, device = run.settings, run.where.device
    if is_pretrained(settings.model.name):
        fill(model, settings.model.weights, device, settings.run.seed)
    model.to(device)
    if settings.precision.channels_last:  # with ddp only
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from its hints
    if run.own.any or run.is_task or is_pretrained(settings.model.name):
        with cut_explained(settings):
            try_model(run, model)
        if isinstance(model, FSDPModule):
            model.reshard()  # the optimizer needs the shards


def try_model(run: PreparedRun, model: nn.Module) -> None:
    """Test one pass of a model that is not the trainer's, or has its own loss; raises TrainingError."""
    what = f"model.name = {run.settings.model.name!r}"
    batch = first_batch(run, model=model)
    if run.is_task or run.own.any:
        try_out(model, batch, what)
    else:
        with torch.no_grad(), precision.autocast(run.settings.precision, run.where.device):
            try_out(model, a_few(batch), what)
    if run.is_task and run.held_out is not None:
        try_held_out(model, first_batch(run, run.held_out, model), what)


@contextmanager
def cut_explained(settings: config.Config) -> Iterator[None]:
    """Turn an error of a model that cannot compute on shards into a ParallelError."""
    try:
        yield
    except OwnCodeError as error:
        if CUT not in str(error):
            raise
        raise ParallelError(
            f"parallel.strategy = {settings.parallel.strategy!r}: {settings.model.name} computes with "
            "weights outside of the layer that holds them, where each rank has a part; 'ddp' takes it"
        ) from error


def a_few(batch: Batch) -> Batch:
    """Return the first two samples of a batch of tensors; batch norm needs more than one."""
    inputs, targets = batch.inputs[:FEW], batch.targets[:FEW]
    return Batch(inputs, targets, counted=int((targets != IGNORED).sum()))


def rehearse(run: PreparedRun, state: State) -> None:
    """Run passes before the first step, if earlier passes would change the steps; restores generators."""
    before = capture_rng()
    state.model.train()
    state.spread.rehearse(run.where.together(lambda: first_batch(run)))
    restore_rng(before)


def utilisation_of(run: PreparedRun, model: nn.Module) -> Utilisation | None:
    """Return the calculator of the part of the GPUs' peak; None if no peak is known, as on the CPU."""
    if run.where.device.type != "cuda" or run.is_task:  # a task's batch cannot be cut to one sample
        return None
    inputs = first_batch(run).inputs[:1]
    name = torch.cuda.get_device_name(run.where.device)
    return utilisation(model, inputs, name, run.settings.precision.dtype, run.where.size)


def first_batch(
    run: PreparedRun, held_out: Dataset | OwnData | None = None, model: nn.Module | None = None
) -> Batch:
    """Read one micro-batch to the device, the same on every rank, of training or `held_out`.

    Raises DataError, also if the `model` cannot take the batch.
    """
    width = run.share.micro_batch
    if held_out is None:
        dataset, first = run.training, run.order.slice(0, width)
    else:
        dataset, size = held_out, len(held_out)
        first = SampleOrder(size, seed=0, shuffle=False).slice(0, min(width, size))
    here = run.settings.data.model_copy(update={"workers": 0})
    return next(batches(run.reader(dataset, model), iter([first]), here, pinned=False)).to(run.where.device)


def build_model(run: PreparedRun) -> nn.Module:
    """Build the whole model on the CPU, from configuration and data; raises ModelError and others."""
    settings, description = run.settings, run.description
    chosen = settings.model
    if chosen.config and not is_pretrained(chosen.name):
        raise ConfigError(f"model.config = {chosen.config!r}: is for AutoModelFor..., not {chosen.name!r}")
    if run.own.model is not None:
        model = own_model(run.own.model, chosen.weights)
    else:
        classes, length = description.classes, settings.data.sequence_length
        facts = Facts(len(classes), description.vocabulary, length, classes)
        kind = kind_of(settings.data, description)
        model = (
            pretrained.build(
                chosen.name, chosen.options, facts, kind, weights=chosen.weights, config=chosen.config
            )
            if is_pretrained(chosen.name)
            else registry.build(chosen.name, chosen.options, facts, kind, chosen.weights)
        )
    if settings.precision.activation_checkpointing:
        registry.recompute_activations(model, chosen.name)
    if settings.parallel.sync_batch_norm:
        if run.where.size > 1 and run.where.device.type == "cpu":
            raise ParallelError("parallel.sync_batch_norm = true: torch does so between GPUs only, not CPUs")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # no hints
    return Task(model, run.own.loss, run.own.metric) if run.is_task else model


def own_model(build: Own, weights: str) -> nn.Module:
    """Build a user's model; raises OwnCodeError, ConfigError or ModelError."""
    model = build()
    if not isinstance(model, nn.Module):
        raise build.wrong(f"gave a {type(model).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise build.wrong("has no parameter that could be trained")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise build.wrong("has parameters on the device 'meta', which hold nothing; build it on the CPU")
    if weights:
        registry.load_weights(model, Path(weights))
    return model


def spread_model(model: nn.Module, settings: config.Config, where: World) -> tuple[nn.Module, Spread]:
    """Return this rank's part of the model, and the Spread that uses it; raises ParallelError."""
    if settings.parallel.strategy == "ddp":
        alone = where.size == 1
        return model, Whole(model, model, settings, where.device) if alone else Replicas(
            model, settings, where
        )
    if settings.parallel.strategy == "pipeline":
        return cut(model, settings, where)
    return model, shard(model, settings, where)
