"""The mover's function of a stack in moto, run from its own archive as Lambda would."""

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from gpu_fleet_image.core.metrics import METRIC_GATE_PASSED, namespace
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from tests.ran import ran

REGION = "us-east-1"
BUCKET = "gpu-fleet-test-records-123456789012"
SCRIPT = """
import importlib, json, sys
from datetime import datetime, timedelta
sys.path[:] = [sys.argv[1], *sys.path, sys.argv[2]]
module, _, function = sys.argv[3].rpartition(".")
mover = importlib.import_module(module)
assert callable(getattr(mover, function)) and mover.__file__.startswith(sys.argv[1])
now = datetime.fromisoformat(sys.argv[4])
print(json.dumps(mover.run(now + timedelta(minutes=2), now)))
"""


@dataclass(frozen=True)
class Door:
    """A stack in moto, and the mover's function as Lambda would run it."""

    rehearsed: Rehearsed
    code: Path  # the function's archive, unzipped
    runtime: Path  # the packages that Lambda brings

    @property
    def function(self):
        found = self.rehearsed.of_type("aws:lambda/function:Function")
        return next(item for item in found if item.name.endswith("-capacity"))

    def move(self) -> dict[str, Any]:
        """One pass of the mover, by the function's archive alone."""
        environ = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        environ |= self.function.inputs["environment"]["variables"]
        asked = [
            str(self.code),
            str(self.runtime),
            self.function.inputs["handler"],
            datetime.now(UTC).isoformat(),
        ]
        done = ran([sys.executable, "-I", "-S", "-c", SCRIPT, *asked], env=environ)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def groups(self) -> dict[str, dict[str, Any]]:
        found = boto3.client("autoscaling", REGION).describe_auto_scaling_groups()["AutoScalingGroups"]
        return {function["AvailabilityZones"][0]: function for function in found}

    def wanted(self) -> dict[str, int]:
        """Zone -> how many instances the pool's group there wants."""
        return {zone: group["DesiredCapacity"] for zone, group in self.groups().items()}

    def ledger(self) -> list[dict[str, Any]]:
        s3 = boto3.client("s3", REGION)
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="reaper/capacity/ledger/").get("Contents", [])
        return [
            json.loads(s3.get_object(Bucket=BUCKET, Key=stored_object["Key"])["Body"].read())
            for stored_object in listed
        ]

    def taken(self) -> list[dict[str, str]]:
        pages = boto3.client("ec2", REGION).describe_instances()["Reservations"]
        found = [
            instance
            for page in pages
            for instance in page["Instances"]
            if instance["State"]["Name"] == "running"
        ]
        return [
            {tag["Key"]: tag["Value"] for tag in instance["Tags"]} | {"id": instance["InstanceId"]}
            for instance in found
        ]

    def pass_the_gate(self) -> None:
        """What the agents of instances that somebody took publish once their gate let them through."""
        # moto cuts the end of a span to the whole second, so what is of this second is not found
        before = datetime.now(UTC) - timedelta(minutes=1)
        for tags in self.taken():
            if "gpu-fleet:taken" in tags:
                datum = {
                    "MetricName": METRIC_GATE_PASSED,
                    "Value": 1.0,
                    "Dimensions": [{"Name": "InstanceId", "Value": tags["id"]}],
                    "Timestamp": before,
                }
                boto3.client("cloudwatch", REGION).put_metric_data(
                    Namespace=namespace("test"), MetricData=[datum]
                )
