"""Writers of measurements: each class that `open_writers` opens gets each record."""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics import trackers
from gpu_fleet.metrics.records import JSON_LINES, JsonLines, MetricsWriter, Record, named, unit_of

PREFIX, SUFFIX = "gpu_fleet_training", ".prom"  # of Prometheus
SOONEST_S, LATEST_S = 10.0, 600.0  # between two lines of progress in a log
MORE_SELDOM = 0.01  # of the time so far: a day has some 500 lines
Table = dict[str, dict[str, Any]]
log = logging.getLogger(__name__)


class Writers:
    """Writer that passes each record to all of `writers`."""

    def __init__(self, writers: Sequence[MetricsWriter]) -> None:
        self._writers = writers

    def write(self, record: Record) -> None:
        for writer in self._writers:
            writer.write(record)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class Prometheus:
    """Writer of the newest values in a .prom file, replaced as a whole, with `labels` such as the run.

    https://github.com/prometheus/node_exporter#textfile-collector
    """

    def __init__(self, path: Path, labels: Mapping[str, str]) -> None:
        """Write an empty file; raises ConfigError for a `path` that the collector ignores, or OSError."""
        if path.suffix != SUFFIX:
            raise ConfigError(
                f"metrics.prometheus_file = {str(path)!r}: the textfile collector reads only *{SUFFIX}"
            )
        self._path, self._labels = path, dict(labels)
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._replace()

    def write(self, record: Record) -> None:
        for key, value in record.items():
            if isinstance(value, int | float):
                name = re.sub(r"[^a-zA-Z0-9_:]", "_", f"{PREFIX}_{record['kind']}_{key}")
                if name not in self._gauges:
                    self._gauges[name] = Gauge(name, "newest value", [*self._labels], registry=self._registry)
                self._gauges[name].labels(**self._labels).set(value)
        self._replace()

    def close(self) -> None:
        """Leave the last values in the file; node_textfile_mtime_seconds shows their age."""

    def _replace(self) -> None:
        write_to_textfile(str(self._path), self._registry)  # renamed into place, never read half-written
        self._path.chmod(0o644)  # the exporter runs as another user


class ProgressLine:
    """Writer that shows the records in one line of a terminal; log lines appear above it."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=steps)
        before = sys.stderr
        self._progress.start()
        _move_logging(before, sys.stderr)  # through rich: else the line and the log overwrite each other
        self._before = before

    def write(self, record: Record) -> None:
        if record["kind"] != "train":
            return
        unit = unit_of(record)
        text = f"loss {record['loss']:.4g}  {record[f'{unit}_per_s']:,.0f} {unit}/s"
        if "mfu" in record:
            text += f"  {100 * float(record['mfu']):.1f} % of the peak"
        self._progress.update(self._task, completed=int(record["step"]), description=text)

    def close(self) -> None:
        _move_logging(sys.stderr, self._before)
        self._progress.stop()


class ProgressLog:
    """Writer that logs some of the records where there is no terminal, the longer a run lasts the fewer."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._clock = steps, clock
        self._began_s, self._due_s = clock(), 0.0  # the first record is logged

    def write(self, record: Record) -> None:
        so_far_s = self._clock() - self._began_s
        if record["kind"] != "train" or (so_far_s < self._due_s and record["step"] != self._steps):
            return
        self._due_s = so_far_s + min(LATEST_S, max(SOONEST_S, MORE_SELDOM * so_far_s))
        unit = unit_of(record)
        left_s = (self._steps - int(record["step"])) * float(record["step_s"])
        log.info(
            "event=progress step=%d of=%d loss=%.4g %s_per_s=%.4g left=%s",
            record["step"],
            self._steps,
            record["loss"],
            unit,
            record[f"{unit}_per_s"],
            timedelta(seconds=round(left_s)),
        )

    def close(self) -> None:
        return


def _move_logging(old: TextIO, new: TextIO) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


def open_writers(
    settings: config.Metrics, directory: Path, steps: int, table: Table | None = None
) -> MetricsWriter:
    """Open the writers, with the configuration `table` for trackers; raises ConfigError if one fails."""
    with named("run.directory", directory):
        writers: list[MetricsWriter] = [JsonLines(directory / JSON_LINES)]
        if settings.tensorboard:
            writers.append(trackers.TensorBoard(directory / "tensorboard"))
    if settings.wandb:
        writers.append(trackers.WeightsAndBiases(settings.wandb, directory, table or {}))
    if settings.mlflow:
        writers.append(trackers.Aside(trackers.MLflow(settings.mlflow, directory, table or {}), "mlflow"))
    if settings.prometheus_file:
        path = Path(settings.prometheus_file)
        with named("metrics.prometheus_file", path):
            writers.append(Prometheus(path, {"run": directory.name}))
    if settings.progress:
        writers.append((ProgressLine if sys.stderr.isatty() else ProgressLog)(steps))
    return Writers(writers)
