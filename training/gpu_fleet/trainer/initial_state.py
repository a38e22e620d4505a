"""The state before the first step: model, optimizer and average, built and tested on a batch."""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gpu_fleet.core import config, user_code
from gpu_fleet.core.errors import ConfigError, ParallelError, UserCodeError, a_kind
from gpu_fleet.core.user_code import Own
from gpu_fleet.core.world import World
from gpu_fleet.data.dataset import Dataset
from gpu_fleet.data.loader import IGNORED, Batch, batches
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.own_data import OwnData
from gpu_fleet.metrics.flops import Utilisation, utilisation
from gpu_fleet.models import pretrained, registry
from gpu_fleet.models.definitions import Facts
from gpu_fleet.models.pretrained import is_pretrained
from gpu_fleet.models.weights import fill
from gpu_fleet.step import optimization, precision
from gpu_fleet.step.pipeline import cut
from gpu_fleet.step.spread import Replicas, Whole, shard
from gpu_fleet.step.state import State, not_finite, seed_rng, tensors_of, undisturbed
from gpu_fleet.step.task import Task, try_out
from gpu_fleet.trainer.prepared_run import PreparedRun

FEW = 2  # samples for the first test of a model of transformers; batch norm needs more than one
CUT = "mixed torch.Tensor and DTensor"  # torch's words about a shard among whole tensors


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
    spread = where.together(lambda: spread_model(model, settings, where))
    model = spread.module
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
        try:
            try_model(run, model)
        except UserCodeError as error:
            if CUT not in str(error):
                raise
            raise ParallelError(
                f"parallel.strategy = {settings.parallel.strategy!r}: {settings.model.name} computes with "
                "weights outside of the layer that holds them, where a rank has only a part; use 'ddp'"
            ) from error
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
            inputs, targets = batch.inputs[:FEW], batch.targets[:FEW]
            try_out(model, Batch(inputs, targets, counted=int((targets != IGNORED).sum())), what)
    if run.is_task and run.held_out is not None:
        model.eval()
        batch = first_batch(run, run.held_out, model)
        with undisturbed(model), user_code.explained(what), torch.no_grad():
            model(batch.inputs)  # a fault of a metric shows now, not only at the end of a long run


def rehearse(run: PreparedRun, state: State) -> None:
    """Run passes before the first step, if earlier passes would change the steps; restores generators."""
    state.model.train()
    with undisturbed(state.model):
        state.spread.rehearse(run.where.together(lambda: first_batch(run)))


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
    """Read a micro-batch to the device, the same on every rank; raises DataError for a misfit."""
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
        kind = description.kind
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
    model = build()
    if not isinstance(model, nn.Module):
        raise build.wrong(f"gave {a_kind(model)}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise build.wrong("has no parameter that could be trained")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise build.wrong("has parameters on the device 'meta', which hold nothing; build it on the CPU")
    if weights:
        registry.load_weights(model, Path(weights))
    return model


def spread_model(model: nn.Module, settings: config.Config, where: World) -> Whole:
    """Return this rank's part of the model, spread as parallel.strategy says; raises ParallelError."""
    if settings.parallel.strategy == "pipeline":
        return cut(model, settings, where)
    if settings.parallel.strategy != "ddp":
        return shard(model, settings, where)
    if where.size == 1:
        return Whole(model, model, settings, where.device)
    return Replicas(model, settings, where)
