"""Writers of measurements: every writer that the configuration turns on gets each record.

A new kind of writer is a class with `write` and `close`, and one line in `open_writers`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_fleet.core import config
from gpu_fleet.metrics import trackers
from gpu_fleet.metrics.progress_line import ProgressLine, ProgressLog
from gpu_fleet.metrics.prometheus import Prometheus
from gpu_fleet.metrics.records import JSON_LINES, JsonLines, MetricsWriter, Record, named

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


def open_writers(
    settings: config.Metrics, directory: Path, steps: int, table: Table | None = None
) -> MetricsWriter:
    """Open the writers of a run of `steps` steps in `directory`; raises ConfigError if one cannot be opened.

    `table` is the whole configuration, which trackers show beside the curves.
    """
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
