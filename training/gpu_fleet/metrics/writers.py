"""Writers of measurements: each class that `open_writers` opens gets each record."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics import trackers
from gpu_fleet.metrics.progress_line import ProgressLine, ProgressLog
from gpu_fleet.metrics.records import JSON_LINES, JsonLines, MetricsWriter, Record, named

PREFIX, SUFFIX = "gpu_fleet_training", ".prom"  # of Prometheus
Table = dict[str, dict[str, Any]]


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
