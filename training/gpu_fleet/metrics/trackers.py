"""TensorBoard, Weights & Biases and MLflow: every number of a record as a curve that a resumed run continues.

W&B and MLflow are optional. W&B writes only to disk (`wandb sync` sends the files later): no internet access.
"""

import hashlib
import importlib
import logging
import queue
import re
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.instance_file import account, run_id
from gpu_fleet.metrics.records import MetricsWriter, Record

CLOSE_S = 30.0  # longest wait for a server at the end of a run
ID_REFUSES = re.compile(r"[^A-Za-z0-9._-]")  # W&B refuses some of these, such as / \ # ? % :
RUN_ID = "mlflow-run-id"  # file in the run directory, so that a resumed run continues its curves
log = logging.getLogger(__name__)


class Aside:
    """Writer in front of a tracker, with a thread: a silent server neither delays nor stops the run."""

    def __init__(self, tracker: MetricsWriter, name: str, close_s: float = CLOSE_S) -> None:
        self._tracker, self._name, self._close_s = tracker, name, close_s
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._lost = 0
        self._thread = threading.Thread(target=self._hand_on, name=name, daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        self._records.put(record)

    def close(self) -> None:
        """Wait up to `close_s` seconds for the remaining records; metrics.jsonl holds those that are lost."""
        self._records.put(None)
        self._thread.join(self._close_s)
        if self._lost or self._thread.is_alive():
            left = self._records.qsize() if self._thread.is_alive() else 0
            log.warning("event=tracker-incomplete name=%s failed=%d left=%d", self._name, self._lost, left)

    def _hand_on(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._tracker.write(record)
            except Exception as error:  # noqa: BLE001 - the package and its client may raise anything
                self._lost += 1
                if self._lost == 1:
                    log.warning("event=tracker-failed name=%s error=%r", self._name, str(error))
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("event=tracker-not-closed name=%s error=%r", self._name, str(error))


def curves(record: Record) -> dict[str, float]:
    """Return the numbers of a record by the names of their curves, such as `train/loss`."""
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in record.items()
        if name != "step" and isinstance(value, int | float)
    }


def wandb_id(directory: Path, owner: str) -> str:
    """Return the id of a run at W&B: different for each owner and run, so that runs do not share a curve."""
    place = f"{owner or account()}/{run_id(directory)}"
    return f"{ID_REFUSES.sub('-', place)[:100]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


class TensorBoard:
    """Writer of event files in a folder; a resumed run adds a file, and TensorBoard shows them as one."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to load

        self._writer = SummaryWriter(logdir=str(folder), flush_secs=10)

    def write(self, record: Record) -> None:
        for name, value in curves(record).items():
            self._writer.add_scalar(name, value, int(record["step"]))

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """An offline run of `project` below `directory`/wandb."""

    def __init__(self, project: str, directory: Path, settings: dict[str, Any]) -> None:
        wandb = _loaded("wandb", "metrics.wandb")
        # a resumed run is a second offline folder with the same id; `wandb sync --append` joins them
        self._run = wandb.init(
            project=project,
            name=directory.name,
            id=wandb_id(directory, str(settings.get("run", {}).get("owner", ""))),
            dir=str(directory),
            config=settings,
            mode="offline",
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, record: Record) -> None:
        self._run.log(curves(record), step=int(record["step"]))

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run in the tracking store `uri`, such as sqlite:///mlflow.db or https://host."""

    def __init__(self, uri: str, directory: Path, settings: dict[str, Any]) -> None:
        mlflow = _loaded("mlflow", "metrics.mlflow")
        file = directory / RUN_ID
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            before = file.read_text(encoding="ascii") if file.exists() else ""
            self._run_id = before or self._begun(directory, settings)
        except mlflow.exceptions.MlflowException as error:
            raise ConfigError(f"metrics.mlflow = {uri!r}: {error}") from error
        file.write_text(self._run_id, encoding="ascii")
        self._metric: Any = mlflow.entities.Metric

    def _begun(self, directory: Path, settings: dict[str, Any]) -> str:
        name = directory.parent.name
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        run_id = str(self._client.create_run(experiment, run_name=directory.name).info.run_id)
        for section, keys in settings.items():
            for key, value in keys.items():
                self._client.log_param(run_id, f"{section}.{key}", value)
        return run_id

    def write(self, record: Record) -> None:
        at_ms, step = int(time.time() * 1000), int(record["step"])
        metrics = [self._metric(name, value, at_ms, step) for name, value in curves(record).items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def _loaded(package: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"{key}: needs a package that is not installed: pip install {package}") from error
