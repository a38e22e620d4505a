"""The data of a configuration, opened and checked against the other parts of the run."""

import os
from pathlib import Path

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError
from gpu_fleet.core.user_code import Parts
from gpu_fleet.data.bucket import BucketSource
from gpu_fleet.data.census import shown
from gpu_fleet.data.dataset import Dataset, Description, check_kind, describe, is_bucket, open_split
from gpu_fleet.data.loader import reader_processes
from gpu_fleet.data.own_data import ENDLESS, OwnData, Stream, open_own, open_records
from gpu_fleet.data.tables import is_table, open_table
from gpu_fleet.models.registry import OWN_DATA

RECORDS = "records"  # the kind of tars with any keys
PICTURES = ("images", "shards", RECORDS)


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
