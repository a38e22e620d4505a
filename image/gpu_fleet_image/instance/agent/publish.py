"""Heartbeats for the cloud's metrics (``core/metrics.py``), with the gate's result."""

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
from gpu_fleet_image.instance.agent.idle_detection import Judgement, Minute
from gpu_fleet_image.instance.agent.users import Users


def passed(file: Path) -> bool | None:
    """Return whether the boot check passed; None while it runs, or if that is unknown.

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
    """Return whether the instance may be replaced: the gate failed it and this minute shows no activity.

    GPUs that do not answer are accepted: the gate exists to find them. Any other failed sensor hides too
    much.
    """
    blind = [reason for reason in judgement.unknown if not reason.startswith("gpu")]
    return gate_passed is False and not judgement.reasons and not judgement.hung and not blind


MAX_DATA_PER_CALL = 1000  # API PutMetricData, which also limits a call to 1 MB: five times the size of these
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
    """Yield the metric data of one minute, without timestamps.

    Args:
        unfit: the gate failed the instance, and nothing runs on it.
        gate_passed: the gate's result, for users who wait for the instance; None while it runs.
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
    if (active := judgement.gpu_sm_activity_percent) is not None:
        yield _datum(
            metrics.METRIC_GPU_SM_ACTIVITY, active, "Percent", metrics.DIMENSION_INSTANCE, instance_id
        )


def _datum(name: str, value: float, unit: str, dimension: str, of: str) -> dict[str, Any]:
    return {
        "MetricName": name,
        "Value": value,
        "Unit": unit,
        "Dimensions": [{"Name": dimension, "Value": of}],
    }


class Publisher:
    """Sender of heartbeats.

    On the wall clock each is sent at once and without a timestamp, and one that fails is dropped: the next
    contains as much, and late data must not look fresh. On a rehearsal's clock they carry that clock's time
    and are sent in batches.

    Args:
        client: boto3's CloudWatch client, or one with the same interface (``alicloud.py``).
        batched: the agent's clock is not the wall clock.
    """

    def __init__(self, client: Any, namespace: str, *, batched: bool) -> None:
        self._client = client
        self._namespace = namespace
        self._batched = batched
        self._waiting: list[dict[str, Any]] = []

    def add(self, data: Iterator[dict[str, Any]], at: datetime) -> None:
        """Send one heartbeat, or keep it for the batch. Raises CloudError."""
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
        """Send the waiting batch.

        Raises:
            CloudError: it could not be sent; it still waits.
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
        except OSError as error:  # a full disk stops users' file, not the heartbeat
            LOG.warning("event=activity-file-failed reason=%r", str(error))
        gate = passed(paths.ready_file())
        unfit = is_unfit(judgement, gate)
        data = heartbeat(judgement, instance_id, instance.pool, unfit=unfit, gate_passed=gate)
        publisher.add(data, judgement.at)
        if users is not None:
            users.saw(judgement.users)

    return report
