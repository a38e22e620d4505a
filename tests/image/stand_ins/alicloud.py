"""Alibaba Cloud around one virtual machine: the stack as it was registered, the API's actions, OSS by moto.

The same names as ``aws.py``. Debian 12's cloud-init knows no session tokens of this cloud's metadata service,
so the user data comes by its NoCloud source; agent and bootstrap ask the service themselves.
"""

import base64
import json
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3

from gpu_fleet_image.core import oss
from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.providers.alicloud import session
from gpu_fleet_image.providers.alicloud.connect import ACCOUNT_ID
from gpu_fleet_image.providers.alicloud.metrics import metric_name
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from tests.image.alicloud_server import ENVIRON, SECRET, serving
from tests.image.alicloud_world import Actions, _point
from tests.image.stand_ins import hours
from tests.image.stand_ins.account import Account
from tests.image.stand_ins.ec2_metadata import LATEST, Tree, role_keys
from tests.image.stand_ins.hours import Heartbeat
from tests.image.stand_ins.https_front import Forward, RefusedError, Request, https_front
from tests.image.stand_ins.signatures import Keys, SignatureError, check
from tests.image.virtual_machine import VirtualMachine
from tests.image.world import SimulatedInstance, World
from tests.ran import ran

STACK, POOL, REGION = "alicloud-dev", "spot", "cn-shenzhen"
# Inside a VPC: the names that the reaper's own list has, written out.
SERVICES = ("ecs-vpc", "ess-vpc", "metrics-vpc", "sts-vpc")
OSS = f"s3.oss-{REGION}-internal.aliyuncs.com"
KEYS = Keys("STS.boot-test", SECRET, "token-of-the-role")
TEMPLATE = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
OBJECT = "alicloud:oss/bucketObject:BucketObject"
FUNCTION = "alicloud:fc/v3Function:V3Function"
# What Function Compute does: a fresh interpreter, the archive's folder, one event.
CALL = """
import sys, types
folder = sys.argv[1]
sys.path.insert(0, folder)
import index
context = types.SimpleNamespace(request_id="boot-test", function=types.SimpleNamespace(timeout=300))
print(index.handler(b"{}", context))
"""


class LiveWorld(World):
    """A world whose time is the real one, and in which only real agents say anything."""

    @property
    def now(self) -> datetime:
        """The time."""
        return datetime.now(UTC)

    @now.setter
    def now(self, _: datetime) -> None:
        """Time passes by itself."""

    def before(self, operation: str) -> None:
        """Nothing happens before a call but the call."""
        del operation


class LiveActions(Actions):
    """The API's actions, with metrics that are what was published.

    Attributes:
        metrics: (metric, instance) -> (when, value) in order.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.metrics: dict[tuple[str, str], list[tuple[datetime, float]]] = defaultdict(list)

    def put_custom_metric(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Keep an instance's numbers by their time of receipt; the sweep's own are summed up."""
        for metric in ask["MetricList"]:
            value = float(json.loads(metric["Values"])["value"])
            instance = json.loads(metric["Dimensions"]).get("InstanceId")
            if instance is None:
                self.world.published[metric["MetricName"]] += value
            else:
                self.metrics[metric["MetricName"], instance].append((self.world.now, value))
        return {"Code": "200"}

    def describe_metric_last(self, ask: dict[str, Any]) -> dict[str, Any]:
        """The newest of each instance."""
        newest = {
            instance: points[-1]
            for (name, instance), points in self.metrics.items()
            if name == ask["MetricName"] and points
        }
        return self._points([_point(key, at, value) for key, (at, value) in newest.items()], ask)

    def describe_scaling_instances(self, ask: dict[str, Any]) -> dict[str, Any]:
        """The first page where none is asked for."""
        return super().describe_scaling_instances({"PageNumber": "1"} | ask)

    def assume_role(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Keys for a user of the instance."""
        ends = f"{self.world.now + timedelta(seconds=int(ask['DurationSeconds'])):%Y-%m-%dT%H:%M:%SZ}"
        keys = {"AccessKeyId": ask["RoleSessionName"], "AccessKeySecret": SECRET, "SecurityToken": "token"}
        return {"Credentials": keys | {"Expiration": ends}}

    def _minima(self, key: str, ask: dict[str, Any]) -> list[tuple[datetime, float]]:
        start, end = (datetime.fromtimestamp(int(ask[name]) / 1000, UTC) for name in ("StartTime", "EndTime"))
        period_s = int(ask["Period"])
        minima: dict[int, float] = {}
        for at, value in self.metrics[ask["MetricName"], key]:
            if start < at <= end:
                slot = int(at.timestamp() // period_s)
                minima[slot] = min(value, minima.get(slot, value))
        return [
            (datetime.fromtimestamp(slot * period_s, UTC), value) for slot, value in sorted(minima.items())
        ]


@dataclass
class Alicloud(Account):
    """The account, and the one instance that runs in it.

    Attributes:
        actions: the API.
        function: folder of the sweep's function, unpacked from the archive that the stack registered.
        environment: what leads a person or the function to this cloud.
    """

    actions: LiveActions
    function: Path
    environment: dict[str, str]
    subnet, front_at, metadata_at = "100.100.100.0/24", "100.100.100.100", "100.100.100.200"

    def heartbeats(self) -> list[Heartbeat]:
        """Every ``SecondsSinceActivity`` of the instance, oldest first."""
        return [Heartbeat(at, value) for at, value in self._points()]

    def _points(self) -> list[tuple[datetime, float]]:
        return self.actions.metrics[metric_name(METRIC_SECONDS_SINCE_ACTIVITY, STACK), self.instance.id]

    def tags(self) -> dict[str, str]:
        """The instance's tags."""
        return dict(self.instance.tags)

    def state(self) -> str:
        """The instance's state in ECS."""
        return self.instance.state

    def sweep(self) -> dict[str, Any]:
        """Run the function once, as Function Compute does; its answer with each verdict."""
        declared = _function(self.rehearsed)["environmentVariables"]
        command = [sys.executable, "-I", "-S", "-c", CALL, str(self.function)]
        done = ran(command, env={**declared, **self.environment})
        assert done.returncode == 0, done.stderr
        *events, answer = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return answer | {"verdicts": [event for event in events if event.get("event") == "verdict"]}

    def pass_hours(self, guest: VirtualMachine, passed: timedelta) -> None:
        """Let hours go by in which nothing happens; moved is what is moved on AWS, and nothing else."""
        wrote = hours.agent_sleeps(guest)
        for points in self.actions.metrics.values():
            points[:] = [(at - passed, value) for at, value in points]
        self.instance.launched_at -= passed
        self.instance.tags |= self.mark_before(passed)
        continued = hours.continued(self.heartbeats()[-1], datetime.now(UTC))
        self._points().extend((heartbeat.timestamp, heartbeat.value) for heartbeat in continued)
        hours.agent_goes_on(guest, wrote, passed)


@contextmanager
def alicloud_account(folder: Path) -> Iterator[Alicloud]:
    """Run the real program, start one instance of the pool, open the endpoints."""
    world = LiveWorld()
    actions = LiveActions(world)
    with (
        moto_server("us-east-1") as endpoint,
        metadata_service("alicloud") as metadata,
        serving(actions) as api,
    ):
        rehearsed = run_program(STACK)
        buckets = [uri.removeprefix("oss://") for uri in rehearsed.outputs["bucket_uris"].values()]
        s3 = _stored(endpoint, rehearsed, buckets)
        hosts = (
            *(f"{name}.{REGION}.aliyuncs.com" for name in SERVICES),
            *(f"{bucket}.{OSS}" for bucket in buckets),
        )
        with https_front(folder / "front", hosts, _route(endpoint, api.url)) as front:
            (template,) = [
                resource
                for resource in rehearsed.of_type(TEMPLATE)
                if _tags(resource).get("gpu-fleet:pool") == POOL
            ]
            world.group(f"asg-{POOL}", 0, 2)
            instance = world.join(f"asg-{POOL}", _tags(template), spot=True, busy=False)
            metadata.answers = _metadata_of(instance, template.inputs)
            environment = {session.ENDPOINT: api.url, oss.ENDPOINT: endpoint, ACCOUNT_ID: "1234567890123456"}
            user_data = base64.b64decode(template.inputs["userData"]).decode()
            function = _unpacked(rehearsed, folder / "function")
            common = (rehearsed, metadata, front, hosts, instance, user_data, s3)
            yield Alicloud(*common, actions, function, ENVIRON | environment)


def _tags(template: Any) -> dict[str, str]:
    return dict(template.inputs["tags"])


def _stored(endpoint: str, rehearsed: Rehearsed, buckets: list[str]) -> Any:
    """The stack's buckets in moto, with the objects that the provider would have put into them."""
    s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint)
    for bucket in buckets:
        s3.create_bucket(Bucket=bucket)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for resource in rehearsed.of_type(OBJECT):
        content = resource.inputs.get("content")
        body = content.encode() if content is not None else Path(resource.inputs["source"]).read_bytes()
        s3.put_object(Bucket=resource.inputs["bucket"], Key=resource.inputs["key"], Body=body)
    return s3


def _metadata_of(instance: SimulatedInstance, declared: Mapping[str, Any]) -> Tree:
    """Paths of https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata."""
    keys = role_keys(KEYS, "AccessKeySecret", "SecurityToken")
    data = {
        "instance-id": instance.id,
        "instance/instance-type": declared["instanceType"],
        "region-id": REGION,
        f"ram/security-credentials/{declared['ramRoleName']}": json.dumps(keys),
    }
    return Tree({f"{LATEST}meta-data/{path}": value for path, value in data.items()})


def _function(rehearsed: Rehearsed) -> dict[str, Any]:
    (function,) = [resource for resource in rehearsed.of_type(FUNCTION) if resource.name.endswith("-reaper")]
    return dict(function.inputs)


def _unpacked(rehearsed: Rehearsed, folder: Path) -> Path:
    archive = folder.with_suffix(".zip")
    archive.write_bytes(base64.b64decode(_function(rehearsed)["code"]["zipFile"]))
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    return folder


def _route(endpoint: str, api: str) -> Callable[[Request], Forward]:
    """OSS to moto, everything else to the API's actions: what is asked with the role's keys."""

    def route(request: Request) -> Forward:
        if request.host.endswith(f".{OSS}"):
            try:
                check(request.method, request.target, request.headers, request.body, KEYS)
            except SignatureError as error:
                raise RefusedError(str(error)) from error
            return Forward(endpoint, f"/{request.host.partition('.')[0]}{request.target}")
        asked = dict(parse_qsl(urlsplit(request.target).query) + parse_qsl(request.body.decode()))
        if (asked.get("AccessKeyId"), asked.get("SecurityToken")) != (KEYS.id, KEYS.token):
            raise RefusedError(
                f"{asked.get('Action')}: asked with {asked.get('AccessKeyId')}, not by the role"
            )
        return Forward(api, request.target)  # which holds the signature

    return route
