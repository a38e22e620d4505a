"""A large fleet on loopback, behind 20 ms of distance and the token buckets of a real account.

Answers what a sweep and Cloud Custodian ask. moto takes minutes to list three thousand instances: it would be
what is measured.
"""

import json
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_OWNER, TAG_POOL, TAG_STACK
from tests.answering import Answer, Asked, answering

STACK = "bench"
DISTANCE_S = 0.02
# (size, refill a second): docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html, and the default
# quotas of transactions a second for CloudWatch.
BUCKETS = {"Describe": (100, 20), "GetMetricData": (50, 50), "GetMetricStatistics": (400, 400)}
TAGS = {TAG_STACK: STACK, TAG_POOL: "dev", TAG_OWNER: "ada", TAG_MANAGED: "true"}
IDLE_EVERY, IDLE_FOR_S = 10, 30 * 3600  # one instance of ten is idle
UP_FOR = timedelta(hours=72)
JUST_BOOTED = timedelta(minutes=10)
PERIOD_S = 300
DENIED_ONE_OF = 50
DEFAULT_PAGE = 1000
SLOWER = "<Error><Code>RequestLimitExceeded</Code><Message>slower</Message></Error>"
EC2_XMLNS = "http://ec2.amazonaws.com/doc/2016-11-15/"
AUTOSCALING_XMLNS = "http://autoscaling.amazonaws.com/doc/2011-01-01/"


class Bucket:
    """A token bucket; safe for several threads."""

    def __init__(self, size: float, refill_per_s: float) -> None:
        self._size, self._refill_per_s = size, refill_per_s
        self._tokens, self._at = size, time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._size, self._tokens + (now - self._at) * self._refill_per_s)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class RefusedError(Exception):
    """An answer with an error code."""


class Account:
    """The instances and what is known of them.

    Args:
        count: how many instances run.
        case: one of ``tests.image.controllers.sweep.custodian_cases``, as far as the cloud plays a part
            in it; ``mixed``, each idle for two hours more than the one before; or empty.

    Attributes:
        ended: instances that were terminated.
    """

    def __init__(self, count: int, case: str = "") -> None:
        self._began_s = time.time()
        self._case = case
        self._statistics_asked = 0
        self.ended = 0
        launched = datetime.now(UTC) - (JUST_BOOTED if case == "just-booted" else UP_FOR)
        self._instances = [_instance_xml(index, launched) for index in range(count)]
        self._idle_for_s = {_id(index): self._idle_time(index) for index in range(count)}

    def _idle_time(self, index: int) -> float:
        if self._case == "mixed":
            return (2 * index + 1) * 3600.0
        return IDLE_FOR_S if self._case or index % IDLE_EVERY == 0 else 0.0

    def describe_instances(self, ask: dict[str, Any]) -> str:
        start, size = int(ask.get("NextToken", 0)), int(ask.get("MaxResults", DEFAULT_PAGE))
        page = "".join(self._instances[start : start + size])
        more = f"<nextToken>{start + size}</nextToken>" if start + size < len(self._instances) else ""
        body = f"<reservationSet>{page}</reservationSet>{more}"
        return f'<DescribeInstancesResponse xmlns="{EC2_XMLNS}">{body}</DescribeInstancesResponse>'

    def get_metric_data(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Every point of every query; the newest first."""
        return {"MetricDataResults": [self._series(query, ask) for query in ask["MetricDataQueries"]]}

    def _series(self, query: dict[str, Any], ask: dict[str, Any]) -> dict[str, Any]:
        stat = query["MetricStat"]
        (dimension,) = stat["Metric"]["Dimensions"]
        asked = stat["Metric"]["MetricName"] == METRIC_SECONDS_SINCE_ACTIVITY
        idle_s, period = self._idle_for_s[dimension["Value"]] if asked else 0.0, int(stat["Period"])
        last = min(float(ask["EndTime"]), time.time())
        slots = list(range(int(last // period) * period, int(float(ask["StartTime"])) - 1, -period))
        idle_at = self._began_s - idle_s
        values = [max(0.0, slot - idle_at) if idle_s else 3.0 for slot in slots]
        return {"Id": query["Id"], "Timestamps": slots, "Values": values, "StatusCode": "Complete"}

    def get_metric_statistics(self, ask: dict[str, Any]) -> dict[str, Any]:
        """The smallest value of the agent's metric in the time that is asked for, as one period.

        Raises:
            RefusedError: one of fifty, in the case of denied calls.
        """
        self._statistics_asked += 1
        if self._case == "denied" and self._statistics_asked % DENIED_ONE_OF == 0:
            raise RefusedError("AccessDenied")
        instance = next(
            dimension["Value"] for dimension in ask["Dimensions"] if dimension["Name"] == "InstanceId"
        )
        now, start = time.time(), float(ask["StartTime"])
        if self._case == "just-booted":  # the only word of its agent so far
            point = {"Timestamp": now - PERIOD_S, "Minimum": 0.0, "Unit": "Seconds"}
        else:
            # an agent that died two hours ago said the same before
            idle_s = self._idle_for_s[instance]
            point = {"Timestamp": start, "Minimum": max(0.0, start - now + idle_s), "Unit": "Seconds"}
        return {"Label": ask["MetricName"], "Datapoints": [point]}

    def terminate_instances(self, ask: dict[str, Any]) -> str:
        """All or nothing.

        Raises:
            RefusedError: the first instance vanished, in that case.
        """
        ids = [value for key, value in ask.items() if key.startswith("InstanceId.")]
        if self._case == "vanished" and _id(0) in ids:
            raise RefusedError("InvalidInstanceID.NotFound")
        self.ended += len(ids)
        return f'<TerminateInstancesResponse xmlns="{EC2_XMLNS}"><instancesSet/></TerminateInstancesResponse>'


def _id(index: int) -> str:
    return f"i-{index:017x}"


def _instance_xml(index: int, launched: datetime) -> str:
    tags = "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in TAGS.items())
    return (
        f"<item><reservationId>r-{index:017x}</reservationId><ownerId>123456789012</ownerId><instancesSet><item>"
        f"<instanceId>{_id(index)}</instanceId><imageId>ami-1</imageId><instanceType>g5.xlarge</instanceType>"
        "<instanceState><code>16</code><name>running</name></instanceState>"
        f"<launchTime>{launched:%Y-%m-%dT%H:%M:%S.000Z}</launchTime><tagSet>{tags}</tagSet>"
        "</item></instancesSet></item>"
    )


# Nothing but instances: no groups, volumes or addresses; and who asks.
NOTHING = {
    "DescribeAutoScalingGroups": f'<DescribeAutoScalingGroupsResponse xmlns="{AUTOSCALING_XMLNS}">'
    "<DescribeAutoScalingGroupsResult><AutoScalingGroups/></DescribeAutoScalingGroupsResult>"
    "</DescribeAutoScalingGroupsResponse>",
    "DescribeVolumes": f'<DescribeVolumesResponse xmlns="{EC2_XMLNS}"><volumeSet/></DescribeVolumesResponse>',
    "DescribeAddresses": f'<DescribeAddressesResponse xmlns="{EC2_XMLNS}"><addressesSet/>'
    "</DescribeAddressesResponse>",
    "GetCallerIdentity": '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
    "<GetCallerIdentityResult><Account>123456789012</Account></GetCallerIdentityResult>"
    "</GetCallerIdentityResponse>",
}


class Server:
    """Counts, waits, refuses or answers; a GET is told what was asked since the last one."""

    def __init__(self, account: Account) -> None:
        self._account, self._calls, self._lock = account, Counter[str](), threading.Lock()
        self._buckets = {name: Bucket(*numbers) for name, numbers in BUCKETS.items()}
        self._as_json = {
            "GetMetricData": account.get_metric_data,
            "GetMetricStatistics": account.get_metric_statistics,
            "DescribeAlarms": lambda _: {"MetricAlarms": [], "CompositeAlarms": []},
        }
        self._as_xml = {
            "DescribeInstances": account.describe_instances,
            "TerminateInstances": account.terminate_instances,
            **{key: lambda _, body=body: body for key, body in NOTHING.items()},
        }

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            with self._lock:
                told = json.dumps({"ended": self._account.ended, "calls": self._calls})
                self._calls.clear()
            return _typed(200, told, "application/json")
        if target := asked.headers.get("X-Amz-Target"):
            name, ask = target.rpartition(".")[2], json.loads(asked.body or b"{}")
        else:
            ask = {key: values[0] for key, values in parse_qs(asked.body.decode()).items()}
            name = ask["Action"]
        self._count(name)
        time.sleep(DISTANCE_S)
        bucket = next((found for prefix, found in self._buckets.items() if name.startswith(prefix)), None)
        if bucket is not None and not bucket.take():
            self._count("throttled")
            return _typed(503, f"<Response><Errors>{SLOWER}</Errors></Response>", "text/xml")
        return self._answer(name, ask)

    def _count(self, name: str) -> None:
        with self._lock:
            self._calls[name] += 1

    def _answer(self, name: str, ask: dict[str, Any]) -> Answer:
        try:
            if name in self._as_json:
                return _typed(200, json.dumps(self._as_json[name](ask)), "application/x-amz-json-1.0")
            if name in self._as_xml:
                return _typed(200, self._as_xml[name](ask), "text/xml")
            raise RefusedError(f"Unknown{name}")
        except RefusedError as refused:
            error = json.dumps({"__type": str(refused), "message": "no"})
            as_text = f"<Response><Errors><Error><Code>{refused}</Code></Error></Errors></Response>"
            return _typed(400, error if name in self._as_json else as_text, "text/xml")


def _typed(status: int, body: str, kind: str) -> Answer:
    return status, {"Content-Type": kind}, body.encode()


if __name__ == "__main__":
    # until killed; the first line on stdout is the address
    with answering(Server(Account(int(sys.argv[1]), *sys.argv[2:])).answer, "HTTP/1.1") as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        threading.Event().wait()
