"""Prometheus: the newest value of every number, in a file for the node exporter's textfile collector.

https://github.com/prometheus/node_exporter#textfile-collector asks for a file that ends in .prom and is
replaced as a whole; https://prometheus.io/docs/instrumenting/exposition_formats/ is the format.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.errors import ConfigError
from gpu_fleet.metrics.records import Record

PREFIX = "gpu_fleet_training"
SUFFIX = ".prom"


class Prometheus:
    """Keeps `path` at the newest values; `labels` (such as the run) stand on every one of them."""

    def __init__(self, path: Path, labels: Mapping[str, str]) -> None:
        """Raises ConfigError when the collector would not read `path`, OSError when it cannot be written."""
        if path.suffix != SUFFIX:
            raise ConfigError(
                f"metrics.prometheus_file = {str(path)!r}: the textfile collector reads only *{SUFFIX}"
            )
        self._path, self._labels = path, dict(labels)
        self._values: dict[str, float] = {}
        self._replace()

    def write(self, record: Record) -> None:
        for name, value in record.items():
            if isinstance(value, int | float):
                self._values[f"{PREFIX}_{record['kind']}_{name}"] = float(value)
        self._replace()

    def close(self) -> None:
        """The last values stay; their age is node_textfile_mtime_seconds."""

    def _replace(self) -> None:
        staged = self._path.with_name(f".{self._path.name}.tmp")  # no *.prom: never read half-written
        staged.write_text(render(self._values, self._labels), encoding="utf-8")
        staged.chmod(0o644)  # the exporter runs as another user
        staged.replace(self._path)


def render(values: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """The text format: a TYPE line and a sample for each value."""
    marks = ",".join(f'{name}="{_escape(text)}"' for name, text in sorted(labels.items()))
    lines = []
    for name, value in sorted(values.items()):
        safe = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
        lines += [f"# TYPE {safe} gauge", f"{safe}{{{marks}}} {_number(value)}"]
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """As Go's ParseFloat reads it: NaN, +Inf and -Inf have names of their own."""
    text = repr(value)
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)
