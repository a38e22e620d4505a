"""Heartbeats on their way to the cloud's metrics, as ``metrics.py`` lays down, the gate's word among them."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core import metrics, paths
from gpu_fleet_image.core.files import read_text
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.reaper_errors import AnswerError, CloudError
from gpu_fleet_image.instance.agent import activity_file
from gpu_fleet_image.instance.agent.judge import Judgement, Minute
from gpu_fleet_image.instance.agent.users import Users


def passed(file: Path) -> bool | None:
    """Whether the gate let the instance be used; None while it has not said, or where it is unknown.

    Args:
        file: the gate's report; on tmpfs, so never of an earlier boot.
    """
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError):
        return None
    ready = content.get("ready") if isinstance(content, dict) else None
    return ready if isinstance(ready, bool) else None


def is_unfit(judgement: Judgement, gate_passed: bool | None) -> bool:
    """Whether the instance may be replaced as far as this minute shows: the gate failed it and nothing works.

    The GPUs may not answer, which is what such a gate is for. Any other sensor that fails hides too much.
    """
    blind = [reason for reason in judgement.unknown if not reason.startswith("gpu")]
    return gate_passed is False and not judgement.reasons and not judgement.hung and not blind


MAX_DATA_PER_CALL = 1000  # API PutMetricData, which also bounds a call to 1 MB: five times what these need
CODES = {Minute.UNKNOWN: metrics.CODE_UNKNOWN, Minute.SUSPECT_HUNG: metrics.CODE_HUNG}

LOG = logging.getLogger(__name__)


def heartbeat(
    judgement: Judgement,
    instance_id: str,
    pool: str,
    *,
    unfit: bool = False,
    gate_passed: bool | None = None,
) -> Iterator[dict[str, Any]]:
    """The metric data of one minute, without a time of their own.

    Args:
        judgement: the minute's outcome.
        unfit: the gate failed the instance, and nothing works on it.
        gate_passed: what the gate said, for who waits for the instance; None while it has not.
    """
    seconds = CODES.get(judgement.state, judgement.seconds_since_activity)
    seconds = metrics.CODE_UNFIT if unfit else seconds
    yield _datum(
        metrics.METRIC_SECONDS_SINCE_ACTIVITY, seconds, "Seconds", metrics.DIMENSION_INSTANCE, instance_id
    )
    fraction = judgement.active_fraction
    yield _datum(metrics.METRIC_ACTIVE_FRACTION, fraction, "None", metrics.DIMENSION_INSTANCE, instance_id)
    if gate_passed is not None:
        word = float(gate_passed)
        yield _datum(metrics.METRIC_GATE_PASSED, word, "None", metrics.DIMENSION_INSTANCE, instance_id)
    of_gpus = {
        metrics.METRIC_GPU_UTILISATION: judgement.gpu_utilisation_percent,
        metrics.METRIC_GPU_MEMORY: judgement.gpu_memory_used_percent,
    }
    for name, percent in of_gpus.items():
        if percent is not None:
            yield _datum(name, percent, "Percent", metrics.DIMENSION_INSTANCE, instance_id)
            yield _datum(name, percent, "Percent", metrics.DIMENSION_POOL, pool)


def _datum(name: str, value: float, unit: str, dimension: str, of: str) -> dict[str, Any]:
    return {
        "MetricName": name,
        "Value": value,
        "Unit": unit,
        "Dimensions": [{"Name": dimension, "Value": of}],
    }


class Publisher:
    """Sends heartbeats.

    On the wall's time each goes at once and without a timestamp, and one that fails is dropped: the next says
    as much, and late news must not look fresh. On a rehearsal's clock they carry that clock's time and go in
    batches.

    Args:
        client: boto3's CloudWatch client, or what takes the same (``alicloud.py``).
        namespace: of the stack's metrics.
        batched: the agent's clock is not the wall's.
    """

    def __init__(self, client: Any, namespace: str, *, batched: bool) -> None:
        self._client = client
        self._namespace = namespace
        self._batched = batched
        self._waiting: list[dict[str, Any]] = []

    def add(self, data: Iterator[dict[str, Any]], at: datetime) -> None:
        """Send one heartbeat, or keep it for the batch.

        Raises:
            CloudError: when a full batch could not be sent.
        """
        if self._batched:
            self._waiting += [{**datum, "Timestamp": at} for datum in data]
            if len(self._waiting) >= MAX_DATA_PER_CALL:
                self.flush()
            return
        try:
            self._send(list(data))
        except CloudError as error:
            LOG.warning("event=heartbeat-lost reason=%r", str(error))

    def flush(self) -> None:
        """Send what waits.

        Raises:
            CloudError: when it could not be sent; it still waits.
        """
        while self._waiting:
            self._send(self._waiting[:MAX_DATA_PER_CALL])
            del self._waiting[:MAX_DATA_PER_CALL]

    def _send(self, data: list[dict[str, Any]]) -> None:
        try:
            self._client.put_metric_data(Namespace=self._namespace, MetricData=data)
        except (AnswerError, BotoCoreError, ClientError) as error:
            raise CloudError(f"PutMetricData in {self._namespace}: {error}") from error


def reporter(
    instance: InstanceFile, instance_id: str, watch: str, publisher: Publisher, users: Users | None = None
) -> Callable[[Judgement], None]:
    """Return the sink of judgements: activity file for users, heartbeat and names of users for the sweep."""

    def report(judgement: Judgement) -> None:
        try:
            activity_file.write(paths.activity_file(), judgement, instance_id, watch)
        except OSError as error:  # a full disk hides the file from users, not the heartbeat from the sweep
            LOG.warning("event=activity-file-failed reason=%r", str(error))
        gate = passed(paths.ready_file())
        unfit = is_unfit(judgement, gate)
        data = heartbeat(judgement, instance_id, instance.pool, unfit=unfit, gate_passed=gate)
        publisher.add(data, judgement.at)
        if users is not None:
            users.saw(judgement.users)

    return report
