"""CloudWatch Logs: one stream for each instance, in the stack's log group."""

import json
from collections.abc import Sequence
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.agent import service_models
from gpu_fleet_image.instance.logs.buffer import BatchLimits
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError, source

# docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
LIMITS = BatchLimits(lines=10_000, content_bytes=1_048_576, span_us=24 * 3600 * 10**6)
EVENT_BYTES = 26  # bytes of each event beside its message
REFUSED = "InvalidParameterException"
_NO_STREAM = "ResourceNotFoundException"
_IS_THERE = "ResourceAlreadyExistsException"
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 15


class CloudWatchLogs:
    """A stream of a log group."""

    limits = LIMITS

    def __init__(self, logs: Any, group: str, stream: str) -> None:
        self._logs, self._group, self._stream = logs, group, stream
        self._has_stream = False

    def size(self, line: Line) -> int:
        """Return the bytes that a line takes of a batch."""
        return len(message(line).encode()) + EVENT_BYTES

    def send(self, lines: Sequence[Line]) -> int:
        """Write a batch; the service drops lines that are older than 14 days or than the retention."""
        events = [{"timestamp": line.time_us // 1000, "message": message(line)} for line in lines]
        try:
            self._make_stream()
            answer = self._logs.put_log_events(
                logGroupName=self._group, logStreamName=self._stream, logEvents=events
            )
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == REFUSED:
                raise LinesRefusedError(str(error)) from error
            self._has_stream = self._has_stream and code != _NO_STREAM
            raise LinesNotTakenError(str(error)) from error
        except BotoCoreError as error:
            raise LinesNotTakenError(str(error)) from error
        return left_out(answer.get("rejectedLogEventsInfo", {}), len(lines))

    def _make_stream(self) -> None:
        if self._has_stream:
            return
        try:
            self._logs.create_log_stream(logGroupName=self._group, logStreamName=self._stream)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != _IS_THERE:
                raise
        self._has_stream = True


def message(line: Line) -> str:
    """Return an event's text: JSON, whose fields Logs Insights finds by itself."""
    return json.dumps(line.content, ensure_ascii=False)


def left_out(rejected: dict[str, int], count: int) -> int:
    """Return how many of a batch's events were not written because of their age. Pure.

    Args:
        rejected: ``rejectedLogEventsInfo``; its end indexes are exclusive, its start index is not.
    """
    old = max(rejected.get("tooOldLogEventEndIndex", 0), rejected.get("expiredLogEventEndIndex", 0))
    return old + count - rejected.get("tooNewLogEventStartIndex", count)


def connect(instance: InstanceFile, metadata: Metadata) -> CloudWatchLogs:
    """Return the instance's stream, with the instance's role. Raises CloudError."""
    service_models.use_small_models()
    instance_id = metadata.get("instance-id") or ""
    # throttled calls wait here, where a stop interrupts the wait
    once = Config(
        retries={"total_max_attempts": 1}, connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S
    )
    logs = boto3.client("logs", region_name=instance.region, config=once)
    return CloudWatchLogs(logs, instance.instance_log, source(instance, instance_id))
