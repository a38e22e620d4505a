"""Registrations of shipped stacks for their instances' first boot, and fake clouds for such an instance."""

import base64
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import boto3

from gpu_fleet_stacks.rehearsal import first_boot
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import stack_files
from tests.image.alicloud_server import ENVIRON, serving
from tests.image.metadata_server import metadata_server
from tests.ran import ran
from tests.stacks.registered import TEMPLATES
from tests.stacks.registrations import declared
from tests.stacks.shipped import SHIPPED
from tests.stacks.standing import usable

STARTS = {*TEMPLATES}
AGENT = "gpu-reaper.service"
INSTANCE = "i-0123456789abcdef0"
# A heartbeat a minute of the agent's clock; one minute of it is enough.
SHORTLY = ("--clock-speed", "240", "--duration", "70")

AWS = [name for name in SHIPPED if stack_files.settings_of(name).cloud == "aws"]
ALICLOUD = [name for name in SHIPPED if stack_files.settings_of(name).cloud == "alicloud"]


@dataclass
class Cloud:
    """Cloud of one instance.

    Attributes:
        rehearsed: registrations of the stack's program.
        environment: variables with the instance's services, and nothing else.
        heartbeats: metrics published by agents, as (instance id, metric).
    """

    rehearsed: Rehearsed
    environment: Mapping[str, str]
    heartbeats: "Heartbeats | CustomMetrics"

    def user_data(self) -> dict[str, str]:
        """Return each resource that starts instances -> the text that cloud-init reads."""
        return {
            registration.name: base64.b64decode(registration.inputs["userData"]).decode()
            for registration in self.rehearsed.registrations
            if registration.type in STARTS
        }


class Heartbeats:
    """Heartbeats of an AWS stack, in moto's CloudWatch."""

    def __init__(self, namespace: str, region: str) -> None:
        self._namespace, self._region = namespace, region

    def instances(self) -> set[str]:
        """Return the instances with heartbeats."""
        cloudwatch = boto3.client("cloudwatch", region_name=self._region)
        metrics = cloudwatch.list_metrics(Namespace=self._namespace)["Metrics"]
        dimensions = [dimension for metric in metrics for dimension in metric["Dimensions"]]
        return {dimension["Value"] for dimension in dimensions if dimension["Name"] == "InstanceId"}


@dataclass
class CustomMetrics:
    """Heartbeats of a stack on Alibaba Cloud, from its server. The instance is of no group, not spot."""

    metrics: list[dict[str, str]] = field(default_factory=list)

    def describe_scaling_instances(self, ask: dict) -> dict:
        """Return no group."""
        return {"ScalingInstances": [], "TotalCount": 0}

    def describe_instances(self, ask: dict) -> dict:
        """Return no tag of the sweep."""
        row = {"InstanceId": INSTANCE, "Tags": {"Tag": []}, "SpotStrategy": "NoSpot"}
        return {"Instances": {"Instance": [row]}}

    def put_custom_metric(self, ask: dict) -> dict:
        """Keep what the agent sends."""
        self.metrics += ask["MetricList"]
        return {"Code": "200"}

    def instances(self) -> set[str]:
        """Return the instances with heartbeats."""
        return {json.loads(metric["Dimensions"])["InstanceId"] for metric in self.metrics}


@contextmanager
def aws(name: str) -> Iterator[Cloud]:
    """Yield a shipped AWS stack in moto, with the metadata service of an instance in it."""
    settings = stack_files.settings_of(name)
    with usable(name) as rehearsed, metadata_service() as metadata:
        metadata.give_role("pool")
        metadata.answers["/latest/meta-data/instance-id"] = INSTANCE
        metadata.answers["/latest/meta-data/instance-type"] = settings.pools[0].types[0]
        services = {
            "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.endpoint,
        }
        heartbeats = Heartbeats(rehearsed.outputs["metric_namespace"], settings.region)
        yield Cloud(rehearsed, services, heartbeats)


@contextmanager
def alicloud(name: str) -> Iterator[Cloud]:
    """Yield a shipped stack of Alibaba Cloud: API by the local server, payload in moto's S3 for OSS."""
    settings = stack_files.settings_of(name)
    heartbeats = CustomMetrics()
    keys = {
        "AccessKeyId": ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_ID"],
        "AccessKeySecret": ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_SECRET"],
        "SecurityToken": "token",
        "Expiration": (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    with (
        moto_server(settings.region) as endpoint,
        serving(heartbeats) as server,
        metadata_server("alicloud") as metadata,
    ):
        metadata.says("instance-id", INSTANCE)
        metadata.says("instance/instance-type", settings.pools[0].types[0])
        metadata.says("ram/security-credentials/", "pool")
        metadata.says("ram/security-credentials/pool", json.dumps(keys))
        services = {
            "GPU_FLEET_ALICLOUD_OSS_ENDPOINT": endpoint,
            "GPU_FLEET_ALICLOUD_ENDPOINT": server.url,
            "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": metadata.base,
        }
        rehearsed = declared(name)
        store(rehearsed, settings.region)
        yield Cloud(rehearsed, services, heartbeats)


def store(rehearsed: Rehearsed, region: str) -> None:
    """Store the stack's uploads to OSS, since there is no emulator of Alibaba Cloud."""
    s3 = boto3.client("s3", region_name=region)
    for resource in rehearsed.of_type("alicloud:oss/bucketObject:BucketObject"):
        bucket, source = resource.inputs["bucket"], resource.inputs.get("source")
        if bucket not in {known["Name"] for known in s3.list_buckets()["Buckets"]}:
            place = {"LocationConstraint": region}
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)
        body = Path(source).read_bytes() if source else resource.inputs["content"].encode()
        s3.put_object(Bucket=bucket, Key=resource.inputs["key"], Body=body)


def boot(cloud: Cloud, user_data: str, root: Path) -> str:
    """Boot an instance from its user data; return its output."""
    log = root.with_suffix(".log")
    root.mkdir()
    try:
        first_boot.boot(user_data, root, cloud.environment, log)
    finally:
        said = log.read_text() if log.exists() else ""
    return said


def run_enabled(cloud: Cloud, root: Path, unit: str, *options: str) -> CompletedProcess[str]:
    """Run a unit's program, if the unit was enabled, without this environment's packages."""
    return ran(
        [*first_boot.service(root, unit), *options],
        env=first_boot.own_environment(root, cloud.environment),
        timeout=120,
    )
