"""Speed of the disks, shared folders and the bucket of an instance, by fio where it is installed."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet.core.errors import TrainingError
from gpu_fleet.storage.object_store import ObjectStore
from gpu_fleet_jobs.measure import direct_io

GB, MIB = 1e9, 1 << 20
MOUNTS = Path("/proc/self/mountinfo")
NETWORKED = ("nfs", "nfs4", "lustre", "cpfs", "fuse.cpfs", "fuse.efs")
IOPS, GB_PER_S = "IOPS", "GB/s"
# figure -> unit; fio's name of the pattern, its side of the result, block size
FIGURES = {
    "write": (GB_PER_S, "write", "write", "1M"),
    "read": (GB_PER_S, "read", "read", "1M"),
    "random_write": (IOPS, "randwrite", "write", "4k"),
    "random_read": (IOPS, "randread", "read", "4k"),
}
JOBS, DEPTH = 4, 32
PATIENCE_S = 120.0  # beyond its own time, for fio to lay out its files
OBJECT = "measured.bin"


@dataclass(frozen=True)
class Speed:
    """One figure of a place; None with a note for unknown.

    Attributes:
        place: `scratch`, `home`, `shared_scratch` or `bucket`.
        tool: program that measured.
        lower_bound: the tool may be the limit.
        absent: the stack has none by its own settings.
    """

    place: str
    metric: str
    value: float | None
    unit: str
    tool: str = ""
    note: str = ""
    lower_bound: bool = False
    absent: bool = False


@dataclass(frozen=True)
class Effort:
    """Length of a measurement.

    Attributes:
        seconds: of each figure.
        size: bytes of the file, in total.
    """

    seconds: float
    size: int


@dataclass(frozen=True)
class MeasuredFolder:
    """A folder to measure; None with a note if the instance has none."""

    name: str
    folder: Path | None
    note: str = ""


def folders_of(scratch: Path, home: Path, shared: Path, mounts: Path = MOUNTS) -> list[MeasuredFolder]:
    """Return the folders of an instance; homes and shared scratch count only where a network has them."""
    folders = [MeasuredFolder("scratch", scratch)]
    for name, folder, key in (
        ("home", home, "storage.home"),
        ("shared_scratch", shared, "storage.scratch_gib"),
    ):
        kind = kind_of(folder, mounts)
        is_shared = kind in NETWORKED
        note = "" if is_shared else f"{folder} is not shared on this instance ({kind}): {key} is not set"
        folders.append(MeasuredFolder(name, folder if is_shared else None, note))
    return folders


def kind_of(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system of a folder, see proc(5), mountinfo; empty if it is unknown."""
    if not folder.exists():
        return "absent"
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    kinds = {line.split()[4]: line.partition(" - ")[2].split()[0] for line in lines if " - " in line}
    resolved = folder.resolve()
    return next((kinds[str(path)] for path in (resolved, *resolved.parents) if str(path) in kinds), "")


def folder_speeds(place: MeasuredFolder, effort: Effort) -> list[Speed]:
    """Return every figure of a folder; the reason in place of those that cannot be measured."""
    if place.folder is None:
        return _unknown(place.name, FIGURES, place.note, absent=True)
    own = place.folder / f".gpu-fleet-measure-{os.getpid()}"
    try:
        own.mkdir()
        fio = shutil.which("fio")
        return _by_fio(fio, place.name, own, effort) if fio else _by_python(place.name, own, effort)
    except OSError as error:
        return _unknown(place.name, FIGURES, f"{place.folder}: {error.strerror or error}")
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _unknown(place: str, metrics: Iterable[str], why: str, *, absent: bool = False) -> list[Speed]:
    units = {metric: FIGURES[metric][0] if metric in FIGURES else GB_PER_S for metric in metrics}
    return [Speed(place, metric, None, unit, note=why, absent=absent) for metric, unit in units.items()]


def _by_python(place: str, folder: Path, effort: Effort) -> list[Speed]:
    figures = direct_io.measured(folder / "file", effort.size, effort.seconds)
    tool = f"python, O_DIRECT, {direct_io.THREADS} threads"
    return [
        Speed(
            place,
            metric,
            value / GB if FIGURES[metric][0] == GB_PER_S else value,
            FIGURES[metric][0],
            tool if FIGURES[metric][0] == IOPS else "python, O_DIRECT",
            lower_bound=FIGURES[metric][0] == IOPS,
        )
        for metric, value in figures.items()
    ]


def _by_fio(fio: str, place: str, folder: Path, effort: Effort) -> list[Speed]:
    return [_figure_of_fio(fio, place, metric, folder, effort) for metric in FIGURES]


def _figure_of_fio(fio: str, place: str, metric: str, folder: Path, effort: Effort) -> Speed:
    unit, pattern, side, block = FIGURES[metric]
    words = [
        *(fio, "--name=gpu-fleet", f"--directory={folder}", f"--size={effort.size // JOBS}"),
        *(f"--runtime={effort.seconds:g}", "--time_based", "--direct=1", "--ioengine=libaio"),
        *(f"--iodepth={DEPTH}", f"--numjobs={JOBS}", f"--rw={pattern}", f"--bs={block}"),
        *("--group_reporting", "--output-format=json"),
    ]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=effort.seconds + PATIENCE_S
        )
        said = json.loads(done.stdout[done.stdout.index("{") :])  # warnings may come before it
        figures = said["jobs"][0][side]
        value = figures["iops"] if unit == IOPS else figures["bw_bytes"] / GB
        return Speed(place, metric, float(value), unit, str(said["fio version"]))
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip().splitlines()[-1:] or [f"ended with {error.returncode}"]
        return Speed(place, metric, None, unit, "fio", f"fio: {why[0]}")
    except (subprocess.TimeoutExpired, ValueError, KeyError, IndexError, TypeError) as error:
        return Speed(place, metric, None, unit, "fio", f"fio gave no figure: {error!r}")


def bucket_speeds(store: ObjectStore | None, folder: Path, size: int) -> Iterator[Speed]:
    """Yield the speed of one large object to the bucket and back, by the trainer's own client."""
    if store is None:
        yield from _unknown("bucket", ("put", "get"), "this instance has no bucket for checkpoints")
        return
    file = folder / f".gpu-fleet-measure-{os.getpid()}.bin"
    try:
        file.write_bytes(os.urandom(MIB) * max(1, size // MIB))
        yield _timed("put", file, lambda: store.put(OBJECT, file))
        yield _timed("get", file, lambda: _fetch(store, file))
    except OSError as error:
        yield from _unknown("bucket", ("put", "get"), f"{folder}: {error.strerror or error}")
    finally:
        store.remove_if_allowed(OBJECT)
        file.unlink(missing_ok=True)


def _fetch(store: ObjectStore, file: Path) -> None:
    store.get(OBJECT, file)


def _timed(metric: str, file: Path, action: Callable[[], None]) -> Speed:
    size, begin = file.stat().st_size, time.perf_counter()
    try:
        action()
    except TrainingError as error:
        return Speed("bucket", metric, None, GB_PER_S, "boto3", str(error))
    return Speed("bucket", metric, size / (time.perf_counter() - begin) / GB, GB_PER_S, "boto3")
