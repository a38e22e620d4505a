"""Third act: training on real data, a spot notice half-way, and the resume on another instance."""

import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpu_fleet_stacks.rehearsal import first_boot, processes
from gpu_fleet_stacks.rehearsal.cast import services
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.metadata import MetadataService, metadata_service

if TYPE_CHECKING:
    from subprocess import Popen

LIB = "opt/gpu-fleet/lib"
CONFIG = "opt/gpu-fleet/examples/digits.toml"
PROCESSES = 2
PACKAGES = ("torch", "sklearn")  # of the wheel's extra `train`
# share of the epochs: the notice is sent when half of the work is done
NOTICE_AFTER = 0.5
# Often enough that a run of seconds sees the notice before its end; instances ask each second.
ASK_METADATA_EVERY_S = 0.2
LOOK_EVERY_S = 0.1
LONGEST_RUN_S = 300.0


@dataclass(frozen=True)
class Trained:
    """Results of the act.

    Attributes:
        metric_name, metric: of the resumed run, on data it never trained on.
        baseline_name, baseline: the same metric of a simple method on the same data.
        stopped_at_step, steps: the step at which the notice stopped the run, and the steps of a whole run.
        resume_equal: whether the resumed run's weights have the same SHA-256 as the undisturbed run's.
        checkpoints: committed checkpoints in the stack's bucket, of both runs.
    """

    metric_name: str
    metric: float
    baseline_name: str
    baseline: float
    stopped_at_step: int
    steps: int
    resume_equal: bool
    checkpoints: int
    seconds: float


@dataclass(frozen=True)
class ProcessGroup:
    """One training process group of the act.

    Attributes:
        root: the folder of the instance's first boot.
    """

    label: str
    folder: Path
    uri: str
    root: Path
    metadata: MetadataService


class TrainerActError(RehearsalError):
    """A run of the trainer ended in another way than the act expects."""


def require_trainer() -> None:
    """Raise TrainerActError if the trainer's packages are not installed."""
    if missing := next((name for name in PACKAGES if find_spec(name) is None), None):
        raise TrainerActError(
            f"the stack that trains needs the Python package {missing}, which is not installed here; "
            "pip install 'gpu-fleet[train]' installs it"
        )


def play(console: Console, clients: RegionClients, user_data: str, folder: Path) -> Trained:
    """Train without a break, then again with a spot notice half-way, then resume on another instance.

    Args:
        user_data: of the pool's instances; brings the trainer's sources and names the bucket.

    Raises:
        ChildError: a process of the trainer fails.
        TrainerActError: a run ends in another way than expected.
    """
    started = time.perf_counter()
    folder.mkdir(parents=True)
    data, root = folder / "digits", folder / "root"
    with _progress(console) as bars, metadata_service() as quiet, metadata_service() as noticed:
        quiet.give_role("trainer")
        noticed.give_role("trainer")
        first_boot.boot(user_data, root, services(quiet), folder / "boot.log")
        bucket_uri = tomllib.loads((root / "etc/gpu-fleet/instance.toml").read_text())["checkpoint_uri"]
        command = [sys.executable, "-m", "gpu_fleet", "prepare", "digits", str(data)]
        own = _environment(root, quiet, folder)
        processes.run(command, folder / "prepare.log", own, inherit=False, cwd=folder)
        stage = partial(_run, bars, data)
        straight = stage(
            ProcessGroup("undisturbed", folder / "straight", f"{bucket_uri}/straight", root, quiet)
        )
        broken_uri = f"{bucket_uri}/interrupted"
        first = ProcessGroup("spot notice", folder / "first", broken_uri, root, noticed)
        stopped = stage(first, on_epoch=_notice_at_half(noticed))
        resumed = stage(ProcessGroup("other instance", folder / "second", broken_uri, root, quiet))
    _check(straight, stopped, resumed)
    return Trained(
        metric_name=resumed["metric_name"],
        metric=resumed["metric"],
        baseline_name=resumed["baseline_name"],
        baseline=resumed["baseline"],
        stopped_at_step=stopped["step"],
        steps=straight["step"],
        resume_equal=straight["parameters_sha256"] == resumed["parameters_sha256"],
        checkpoints=clients.count_objects(bucket_uri, "manifest.json"),  # the manifest commits a checkpoint
        seconds=time.perf_counter() - started,
    )


def table(trained: Trained) -> Table:
    """Return a table of the act's results for users."""
    view = Table(title="training on two processes, checkpoints in the stack's bucket", title_justify="left")
    view.add_column("what")
    view.add_column("figure", justify="right")
    view.add_row(f"{trained.metric_name} on held-out data", f"{trained.metric:.4f}")
    view.add_row(trained.baseline_name, f"{trained.baseline:.4f}")
    view.add_row("stopped by the spot notice at step", f"{trained.stopped_at_step} of {trained.steps}")
    equal = "equal, bit for bit" if trained.resume_equal else "[red]different[/red]"
    view.add_row("weights after the resume and undisturbed", equal)
    view.add_row("committed checkpoints in the bucket", str(trained.checkpoints))
    return view


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:>14}"), BarColumn(), TextColumn("{task.fields[said]}"))
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _run(
    bars: Progress, data: Path, stage: ProcessGroup, on_epoch: Callable[[float, float], None] | None = None
) -> dict[str, Any]:
    """Run one stage to its end with a bar; return its result."""
    epochs = float(tomllib.loads((stage.root / CONFIG).read_text())["run"]["epochs"])
    bar = bars.add_task(stage.label, total=epochs, said="starts")
    command, log = _command(data, stage), stage.folder.with_suffix(".log")
    own = _environment(stage.root, stage.metadata, stage.folder)
    with processes.child(command, log, own, inherit=False, cwd=data.parent) as process:
        for epoch, said in _watched(process, stage.folder / "metrics.jsonl"):
            bars.update(bar, completed=epoch, said=said)
            if on_epoch is not None:
                on_epoch(epoch, epochs)
        processes.finish(process, command, log, LONGEST_RUN_S)
    result: dict[str, Any] = json.loads((stage.folder / "result.json").read_text())
    bars.update(bar, completed=result["epoch"], said=f"{result['outcome']} at step {result['step']}")
    bars.stop_task(bar)
    return result


def _environment(root: Path, metadata: MetadataService, folder: Path) -> dict[str, str]:
    """Return the environment: the payload's sources, and packages from here (an instance fetches 3 GB)."""
    return {
        **first_boot.own_environment(root, services(metadata)),
        "GPU_FLEET_RUN_DIR": str(folder / "run"),
        "HOME": str(root),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(root / LIB),
    }


def _command(data: Path, stage: ProcessGroup) -> list[str]:
    overrides = {
        "data.path": data,
        "run.directory": stage.folder,
        "checkpoint.uri": stage.uri,
        "interrupt.poll_s": ASK_METADATA_EVERY_S,
        "metrics.progress": "false",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start = [
        *torchrun,
        "--nproc-per-node",
        str(PROCESSES),
        "-m",
        "gpu_fleet",
        "start",
        str(stage.root / CONFIG),
    ]
    return start + [word for key, value in overrides.items() for word in (f"--{key}", str(value))]


def _watched(process: "Popen[bytes]", metrics: Path) -> Iterator[tuple[float, str]]:
    """Yield (epoch, a text about it) whenever the run has written more, until its process has ended."""
    shown = 0
    while process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        for line in lines[shown:]:
            record = json.loads(line)
            if record["kind"] == "train":
                yield record["epoch"], f"step {record['step']}, loss {record['loss']:.3f}"
        shown = len(lines)
        time.sleep(LOOK_EVERY_S)


def _notice_at_half(instance: MetadataService) -> Callable[[float, float], None]:
    def look(epoch: float, epochs: float) -> None:
        if epoch >= epochs * NOTICE_AFTER:
            instance.send_spot_notice()

    return look


def _check(straight: dict[str, Any], stopped: dict[str, Any], resumed: dict[str, Any]) -> None:
    """Check that each run ended as expected; otherwise the act's figures mean nothing.

    Raises TrainerActError, which names the run.
    """
    for name, result, wanted in (
        ("the undisturbed run", straight, "finished"),
        ("the run with a spot notice", stopped, "stopped"),
        ("the resumed run", resumed, "finished"),
    ):
        if result["outcome"] != wanted:
            raise TrainerActError(
                f"{name} ended as {result['outcome']!r}, not {wanted!r}: {result['reason']}"
            )
    if resumed["resumed_from_step"] != stopped["step"]:
        raise TrainerActError(
            f"resumed from step {resumed['resumed_from_step']}, but step {stopped['step']} had been saved"
        )
