"""Preparation of one run: data, checkpoints and writers, checked before the first step."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from gpu_fleet.checkpoint.manager import Checkpoints, fetch_code
from gpu_fleet.checkpoint.run_identity import check_alike, of_data, of_run
from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError
from gpu_fleet.core.files import on_disk
from gpu_fleet.core.user_code import Parts, archive, files, keep, parts
from gpu_fleet.core.user_code import identity as identity_of
from gpu_fleet.core.world import World, check_sizes, ranks_per_replica
from gpu_fleet.data import loader
from gpu_fleet.data.bucket import BucketSource
from gpu_fleet.data.census import Census, shown
from gpu_fleet.data.dataset import (
    Dataset,
    Description,
    check_kind,
    check_parts,
    describe,
    is_bucket,
    open_splits,
)
from gpu_fleet.data.loader import Batch, RankShare, Reader, ReadsBatches, reader_processes, training_slices
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.own_data import ENDLESS, OwnData, OwnReader, Stream, open_own, open_records
from gpu_fleet.data.tables import is_table, open_table
from gpu_fleet.metrics import price
from gpu_fleet.metrics.goodput import Book
from gpu_fleet.metrics.profiling import StepTrace
from gpu_fleet.metrics.records import MetricsWriter, named
from gpu_fleet.metrics.writers import Writers, open_writers
from gpu_fleet.models import pretrained
from gpu_fleet.models.registry import OWN_DATA
from gpu_fleet.step.checks import AttributeCheck, BufferCheck
from gpu_fleet.step.spread import Whole
from gpu_fleet.step.state import State
from gpu_fleet.step.task import count_of

RECORDS = "records"  # the kind of tars with any keys
PICTURES = ("images", "shards", RECORDS)
log = logging.getLogger(__name__)


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
    checks: list[AttributeCheck | BufferCheck] = field(default_factory=list)  # of own state, at each save

    @property
    def directory(self) -> Path:
        return Path(self.settings.run.directory)

    @property
    def is_task(self) -> bool:
        """True if the model computes its own loss, for batches of any kind: see gpu_fleet.step.task."""
        return gives_its_loss(self.training, self.own)

    @property
    def order(self) -> SampleOrder:
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
        limit = self.settings.data.corrupt_limit
        return Reader(dataset, seed, count if self.is_task else None, limit)

    def keep_code(self) -> None:
        """Copy the user's files into the run directory, once per instance; raises CheckpointError."""
        if self.where.local_rank == 0:
            with on_disk(self.directory):
                keep(self.code, self.directory)

    def epoch(self, state: State) -> float:
        return state.position / len(self.training)

    def steps_left(self, state: State) -> int:
        """Return the number of optimizer steps from `state` to the end of the run."""
        run = self.settings.run
        if run.steps:
            return max(0, run.steps - state.step)
        samples = round(run.epochs * len(self.training)) - state.position
        return max(0, -(-samples // run.batch_size))

    def evaluated(self, state: State) -> Whole:
        """Return the model to evaluate and export: the average, once it has taken in any weights."""
        if state.averaged is None:
            return state.spread
        module = state.averaged.module
        return Whole(module, module, self.settings, self.where.device)

    def settle_batch_norm(self, average: AveragedModel) -> None:
        """Set the batch-norm statistics of averaged weights to the mean of those that each rank computes."""
        if self.settings.average.batch_norm_batches:
            count = self.settings.average.batch_norm_batches
            slices = islice(training_slices(self.order, self.share, position=0), count)
            read = loader.batches(self.reader(self.training), slices, self.settings.data, pinned=False)
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
        read = loader.batches(self.reader(self.training, state.model), slices, self.settings.data, pinned)
        return loader.to_device(read, self.where.device, self.settings.data.prefetch)


def gives_its_loss(training: Dataset | OwnData, own: Parts) -> bool:
    """Return whether the model computes the loss: if loss, metric or data are a user's own."""
    return isinstance(training, OwnData) or bool(own.loss or own.metric)


def open_data(
    settings: config.Config, own: Parts
) -> tuple[Description, Dataset | OwnData, Dataset | OwnData | None]:
    """Open the data: description, training and held-out split (None if own data have none)."""
    chosen = settings.data
    root = Path(chosen.path)
    described = None
    if is_bucket(chosen.path):
        described = BucketSource(chosen.path, chosen.endpoint, chosen.retry_s).description()
    elif own.data is None and not is_table(root):
        described = describe(root)
    if own.data is None:
        check_kind(chosen, described.kind if described is not None else "table")
    if described is not None and described.kind != RECORDS:
        return described, *open_splits(chosen, described)
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


def check_fit(
    settings: config.Config, own: Parts, description: Description, training: Dataset | OwnData
) -> None:
    """Raise DataError or ConfigError for data of one class, and for keys that these data would ignore."""
    data, kind = settings.data, description.kind
    if len(description.classes) == 1 and own.loss is None:  # which every model predicts
        raise DataError(
            f"data.path: all samples are of one class, {shown(description.classes[0])!r}: classes are the "
            "folders in train/, or in data.path; or set loss.name"
        )
    # own data of a name was asked by the configuration; tars of any keys may hold pictures
    ignored = (
        {} if kind in (*PICTURES, OWN_DATA) else dict.fromkeys(("image_size", "augmentation"), "pictures")
    )
    if kind not in (OWN_DATA, RECORDS):
        ignored |= dict.fromkeys(("collate", "columns"), "data.name, tables and tars of any keys")
    for key, what in ignored.items():
        if (value := getattr(data, key)) != config.Data.model_fields[key].default:
            raise ConfigError(f"data.{key} = {value!r}: is for {what}, and {data.path} is of kind {kind}")
    if settings.loss.mean_over != "targets" and not gives_its_loss(training, own):
        raise ConfigError(
            f"loss.mean_over = {settings.loss.mean_over!r}: the loss of these data is the mean over targets; "
            "another one needs loss.name"
        )


def with_readers(
    settings: config.Config, description: Description, training: Dataset | OwnData
) -> config.Config:
    """Return the configuration with a default number of reader processes, if it sets none."""
    if settings.data.workers is not None:
        return settings
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    workers = reader_processes(description.kind, len(os.sched_getaffinity(0)), ranks_here)
    if isinstance(training, Stream):  # only one process can read it
        workers = 0
    return settings.model_copy(update={"data": settings.data.model_copy(update={"workers": workers})})


def all_steps(settings: config.Config, samples: int) -> int:
    """Return the number of optimizer steps of the whole run on `samples` samples."""
    run = settings.run
    return run.steps or -(-round(run.epochs * samples) // run.batch_size)


def check_length(settings: config.Config, training: Dataset | OwnData) -> None:
    """Raise ConfigError if a batch exceeds the data, a warm-up exceeds the run, or a run has no end."""
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
    if settings.average.name == "swa" and (start := settings.average.start_step) > steps:
        raise ConfigError(f"average.start_step = {start}: the run has {steps} steps and averages none")
    if warmup >= steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps = {warmup}: the run has {steps} steps and never reaches its rate"
        )


@contextmanager
def opened(
    settings: config.Config, where: World, stopping: Callable[[], bool] = lambda: False
) -> Iterator[PreparedRun]:
    """Check and open what a run needs, alike on all ranks; `stopping` ends a wait for another process."""
    readers = where.together(lambda: check_sizes(settings, where.size))
    where.together(lambda: fetch_code(settings) if where.local_rank == 0 else None)
    own = where.together(lambda: parts(settings))
    description, training, held_out = where.together(lambda: open_data(settings, own))
    left_out = Census()
    for data in (training, held_out):
        if data is not None:
            left_out.add(data.census)
    if where.leads and left_out.left_out:
        log.warning("event=data-left-out path=%r census=%r", settings.data.path, str(left_out))
    where.together(lambda: check_fit(settings, own, description, training))
    settings = with_readers(settings, description, training)
    where.together(lambda: check_parts(training.parts, readers, settings.data.workers or 0))
    where.together(lambda: check_length(settings, training))
    directory = Path(settings.run.directory)
    where.on_first(lambda: named("run.directory", directory)(directory.mkdir)(parents=True, exist_ok=True))
    place = where.rank // ranks_per_replica(settings.parallel)
    share = RankShare(place, readers, settings.run.batch_size, settings.run.accumulation)
    code = files(directory) if own.any else {}
    looked_at = looked_at_alike(training, where)
    if held_out is not None:
        looked_at_alike(held_out, where)
    identity = where.on_first(lambda: of_run(settings, description, training, identity_of(code), looked_at))
    here = price.of_this_instance() if where.local_rank == 0 else None
    instances = [each for local_rank, each in where.gather((where.local_rank, here)) if local_rank == 0]
    packed = archive(code) if code else b""
    checkpoints = Checkpoints(settings, where, identity, packed, stopping=stopping)
    with ExitStack() as at_end:
        at_end.callback(checkpoints.release)
        trace = where.together(
            lambda: StepTrace(settings.metrics.profile_steps, directory, active=where.leads)
        )
        steps, table = all_steps(settings, len(training)), settings.model_dump(mode="json")
        writers = partial(open_writers, settings.metrics, directory, steps, table)
        writer = where.together(lambda: writers() if where.leads else Writers([]))
        at_end.callback(writer.close)
        at_end.callback(checkpoints.abandon)
        at_end.callback(loader.end_readers)
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


def looked_at_alike(samples: Dataset | OwnData, where: World) -> dict[str, Any]:
    """Return the identity of own data if several ranks read them; raises DataError if they differ."""
    if where.size == 1 or not isinstance(samples, OwnData) or not samples.of_user:
        return {}
    known = where.together(lambda: of_data(samples, says=where.leads))
    check_alike(where.gather([known]), samples.label)
    return known
