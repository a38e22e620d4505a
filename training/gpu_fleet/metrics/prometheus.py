"""Prometheus: the newest value of every number, in a file for the node exporter's textfile collector.

https://github.com/prometheus/node_exporter#textfile-collector requires a file that ends in .prom and is
replaced as a whole. https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics.records import Record

PREFIX = "gpu_fleet_training"
SUFFIX = ".prom"


class Prometheus:
    """Writer that keeps the newest values in `path`; each value has the `labels` (such as the run)."""

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
                self._gauge(name).labels(**self._labels).set(value)
        self._replace()

    def close(self) -> None:
        """Leave the last values in the file; node_textfile_mtime_seconds shows their age."""

    def _gauge(self, name: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, "newest value", tuple(self._labels), registry=self._registry)
        return self._gauges[name]

    def _replace(self) -> None:
        write_to_textfile(str(self._path), self._registry)  # renamed into place, never read half-written
        self._path.chmod(0o644)  # the exporter runs as another user
