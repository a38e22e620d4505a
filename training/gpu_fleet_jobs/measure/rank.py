"""One rank of a measurement: all-reduce, training, and on full instances storage. Rank 0 prints the rows."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from gpu_fleet.core import config, instance_file
from gpu_fleet.core.errors import TrainingError
from gpu_fleet.core.world import World, world
from gpu_fleet.storage.object_store import ObjectStore
from gpu_fleet_jobs.measure import storage
from gpu_fleet_jobs.measure.bench import measure_reductions, measure_steps
from gpu_fleet_jobs.measure.rows import MeasuredRow, print_device, print_row
from gpu_fleet_jobs.measure.workloads import TURNS, Workload, workloads

GPU_SIZES_MIB = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CPU_SIZES_MIB = (1, 4, 16)  # stated as such on the page: processors need minutes for more
SHARED_SCRATCH = Path("/scratch/shared")
FAILURES = (RuntimeError, ValueError, OSError, TrainingError)  # of torch, its backends, transformers
SAMPLES_PER_S, BUS_BANDWIDTH = "samples_per_s", "bus_bandwidth"


def measure_rank(nodes: int, seconds: float, size: int) -> None:
    """Measure on this rank, together with the others; what fails becomes a row without a value.

    Args:
        nodes: instances.
        seconds: of each figure of storage; 0 to leave storage out.
        size: bytes of the files of storage.
    """
    with world(config.Parallel()) as where, tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        if where.leads:
            print_device(*_device(where, nodes))
        if seconds:
            _measure_storage(nodes, storage.Effort(seconds, size), where)
        if where.size > 1:
            _measure_reductions(nodes, where)
        for workload in workloads(_dtype(where)):
            _measure_training(nodes, workload, where, Path(directory))


def _device(where: World, nodes: int) -> tuple[str, int, str, str]:
    gpu = where.device.type == "cuda"
    name = torch.cuda.get_device_name(where.device) if gpu else "CPU"
    return name, where.size // nodes, "nccl" if gpu else "gloo", torch.__version__


def _dtype(where: World) -> str:
    """Return the number format for training; empty for processors."""
    if where.device.type != "cuda":
        return ""
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _measure_storage(nodes: int, effort: storage.Effort, where: World) -> None:
    """Measure on one rank of each instance at the same time; each row is the slowest instance's."""
    scratch = Path.cwd()
    folders = storage.folders_of(scratch, Path.home(), SHARED_SCRATCH)
    steps: list[Callable[[], Sequence[storage.Speed]]] = [
        lambda folder=folder: storage.folder_speeds(folder, effort)  # type: ignore[misc]  # a default binds it
        for folder in folders
    ]
    steps.append(lambda: list(storage.bucket_speeds(_store(where), scratch, effort.size)))
    for step in steps:
        mine = step() if where.local_rank == 0 else []
        by_node = [speeds for speeds in where.gather(mine) if speeds]
        if where.leads:
            for speeds in zip(*by_node, strict=True):
                print_row(_slowest(speeds, nodes))


def _store(where: World) -> ObjectStore | None:
    shared = str(instance_file.table().get("checkpoint_uri", "")).rstrip("/")
    place = f"{shared}/{instance_file.account()}/measure/{where.rank}"
    return ObjectStore(place) if shared else None


def _slowest(speeds: Sequence[storage.Speed], nodes: int) -> MeasuredRow:
    """Return the row of one figure; unknown if one instance does not know it."""
    unknown = [speed for speed in speeds if speed.value is None]
    least = unknown[0] if unknown else min(speeds, key=lambda speed: speed.value or 0.0)
    note = least.note or (f"the slowest of {nodes}, all at once" if nodes > 1 else "")
    return MeasuredRow(
        least.place,
        least.metric,
        least.value,
        least.unit,
        nodes,
        tool=least.tool,
        note=note,
        lower_bound=least.lower_bound,
        absent=least.absent,
    )


def _measure_reductions(nodes: int, where: World) -> None:
    gpu = where.device.type == "cuda"
    backend = "nccl" if gpu else "gloo"
    for size_mib in GPU_SIZES_MIB if gpu else CPU_SIZES_MIB:
        row = MeasuredRow("all_reduce", BUS_BANDWIDTH, None, "GB/s", nodes, where.size, size_mib, backend)
        try:
            row = replace(row, value=measure_reductions(where, [size_mib])[size_mib])
        except FAILURES as error:
            row = replace(row, note=_reason(error))
        if where.leads:
            print_row(row)


def _measure_training(nodes: int, workload: Workload, where: World, directory: Path) -> None:
    row = MeasuredRow(
        workload.name,
        SAMPLES_PER_S,
        None,
        "samples/s",
        nodes,
        where.size,
        tool="the trainer",
        stands_for=workload.stands_for,
    )
    try:
        settings = workload.settings(where.size, directory)
        times = measure_steps(settings, where, TURNS, workload.steps, beside=False)
        seconds = max(where.gather(median(times.trainer_s)))
        note = f"{workload.per_rank} synthetic samples a step and rank, {settings.precision.dtype}"
        row = replace(row, value=times.samples_per_step / seconds, note=note)
    except FAILURES as error:
        row = replace(row, note=_reason(error))
    finally:
        shutil.rmtree(directory / "run", ignore_errors=True)
        if where.device.type == "cuda":
            torch.cuda.empty_cache()
    if where.leads:
        print_row(row)


def _reason(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"
    )
