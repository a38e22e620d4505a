"""Third act: training on real data, a spot notice half-way, the resume on another machine."""

import json
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from stacks.rehearsal import processes
from stacks.rehearsal.clients import Clients
from stacks.rehearsal.errors import RehearsalError
from stacks.rehearsal.metadata import MetadataService, metadata_service
from stacks.rehearsal.program import ROOT

if TYPE_CHECKING:
    from subprocess import Popen

CONFIG = ROOT / "training" / "examples" / "digits.toml"
PROCESSES = 2
# Of the epochs: the notice comes when half of the work is done.
NOTICE_AFTER = 0.5
# Often enough that a run of seconds hears the notice before its end; machines ask each second.
ASK_METADATA_EVERY_S = 0.2
LOOK_EVERY_S = 0.1
LONGEST_RUN_S = 300.0


@dataclass(frozen=True)
class Trained:
    """What came of the act.

    Attributes:
        metric_name, metric: of the resumed run, on data it never trained on.
        baseline_name, baseline: the same metric of a simple method on the same data.
        stopped_at_step, steps: where the notice stopped the run, and how long a whole run is.
        resume_equal: whether the resumed run's weights have the same SHA-256 as the undisturbed run's.
        checkpoints: committed checkpoints in the stack's bucket, of both runs.
        seconds: of the whole act.
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
class Stage:
    """One training process group of the act.

    Attributes:
        label: what it is called on the screen.
        folder: its run directory.
        uri: where it saves.
        instance_file: the stack's word to the machine.
        metadata: the machine's metadata service.
    """

    label: str
    folder: Path
    uri: str
    instance_file: Path
    metadata: MetadataService


class TrainingError(RehearsalError):
    """The trainer did something else than the act is about."""


def play(console: Console, clients: Clients, instance_file: Path, folder: Path) -> Trained:
    """Train straight, then again with a spot notice half-way, then go on from the bucket elsewhere.

    Args:
        console: where it shows.
        clients: of the stack's region in moto.
        instance_file: ``instance.toml`` as the stack's own user data holds it; names the bucket.
        folder: for data, run directories and logs.

    Raises:
        ChildError: when a process of the trainer fails.
        TrainingError: when a run ends otherwise than it should.
    """
    started = time.perf_counter()
    bucket_uri = tomllib.loads(instance_file.read_text())["checkpoint_uri"]
    data = folder / "digits"
    command = [sys.executable, "-m", "training", "prepare", "digits", str(data)]
    processes.run(command, folder / "prepare.log")
    with _progress(console) as bars, metadata_service() as quiet, metadata_service() as noticed:
        stage = partial(_run, bars, data)
        straight = stage(
            Stage("undisturbed", folder / "straight", f"{bucket_uri}/straight", instance_file, quiet)
        )
        broken_uri = f"{bucket_uri}/interrupted"
        first = Stage("spot notice", folder / "first", broken_uri, instance_file, noticed)
        stopped = stage(first, on_epoch=_notice_at_half(noticed))
        resumed = stage(Stage("other machine", folder / "second", broken_uri, instance_file, quiet))
    _check(straight, stopped, resumed)
    return Trained(
        metric_name=resumed["metric_name"],
        metric=resumed["metric"],
        baseline_name=resumed["baseline_name"],
        baseline=resumed["baseline"],
        stopped_at_step=stopped["step"],
        steps=straight["step"],
        resume_equal=straight["parameters_sha256"] == resumed["parameters_sha256"],
        checkpoints=clients.count_objects(bucket_uri, "manifest.json"),  # what has no manifest does not count
        seconds=time.perf_counter() - started,
    )


def table(trained: Trained) -> Table:
    """The act's outcome for people."""
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
    bars: Progress, data: Path, stage: Stage, on_epoch: Callable[[float, float], None] | None = None
) -> dict[str, Any]:
    """Run one stage to its end with a bar; gives its result."""
    epochs = float(tomllib.loads(CONFIG.read_text())["run"]["epochs"])
    bar = bars.add_task(stage.label, total=epochs, said="starts")
    command, log = _command(data, stage), stage.folder.with_suffix(".log")
    environment = {
        "GPU_FLEET_INSTANCE_FILE": str(stage.instance_file),
        "GPU_FLEET_RUN_DIR": str(stage.folder / "run"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": stage.metadata.endpoint,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with processes.child(command, log, environment) as process:
        for epoch, said in _watched(process, stage.folder / "metrics.jsonl"):
            bars.update(bar, completed=epoch, said=said)
            if on_epoch is not None:
                on_epoch(epoch, epochs)
        processes.finish(process, command, log, LONGEST_RUN_S)
    result: dict[str, Any] = json.loads((stage.folder / "result.json").read_text())
    bars.update(bar, completed=result["epoch"], said=f"{result['outcome']} at step {result['step']}")
    bars.stop_task(bar)
    return result


def _command(data: Path, stage: Stage) -> list[str]:
    overrides = {
        "data.path": data,
        "run.directory": stage.folder,
        "checkpoint.uri": stage.uri,
        "interrupt.poll_s": ASK_METADATA_EVERY_S,
        "metrics.progress": "false",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start = [*torchrun, "--nproc-per-node", str(PROCESSES), "-m", "training", "train", str(CONFIG)]
    return start + [word for key, value in overrides.items() for word in (f"--{key}", str(value))]


def _watched(process: "Popen[bytes]", metrics: Path) -> Iterator[tuple[float, str]]:
    """Yields (epoch, what to say) whenever the run has written more, until its process has ended."""
    told = 0
    while process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        for line in lines[told:]:
            record = json.loads(line)
            if record["kind"] == "train":
                yield record["epoch"], f"step {record['step']}, loss {record['loss']:.3f}"
        told = len(lines)
        time.sleep(LOOK_EVERY_S)


def _notice_at_half(machine: MetadataService) -> Callable[[float, float], None]:
    def look(epoch: float, epochs: float) -> None:
        if epoch >= epochs * NOTICE_AFTER:
            machine.send_spot_notice()

    return look


def _check(straight: dict[str, Any], stopped: dict[str, Any], resumed: dict[str, Any]) -> None:
    """The act is only worth its figures when each run ended as it was meant to.

    Raises:
        TrainingError: naming the run that did not.
    """
    for name, result, wanted in (
        ("the undisturbed run", straight, "finished"),
        ("the run with a spot notice", stopped, "stopped"),
        ("the resumed run", resumed, "finished"),
    ):
        if result["outcome"] != wanted:
            raise TrainingError(f"{name} ended as {result['outcome']!r}, not {wanted!r}: {result['reason']}")
    if resumed["resumed_from_step"] != stopped["step"]:
        raise TrainingError(
            f"resumed from step {resumed['resumed_from_step']}, but step {stopped['step']} had been saved"
        )
