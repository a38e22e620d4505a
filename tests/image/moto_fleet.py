"""A small fleet in moto, with heartbeats as its agents would publish them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY, namespace
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_OWNER, TAG_POOL, TAG_STACK

REGION = "us-east-1"
STACK = "test"
BUCKET = "gpu-fleet-test-records"
# When sweeps happen, three days after ``fake_aws`` has started what they find.
NOW = datetime(2026, 11, 24, 12, 0, 30, tzinfo=UTC)
STARTED = NOW - timedelta(days=3)
HEARTBEAT_S = 300  # sparse enough for moto, which looks at every point for every period
TAGS = {TAG_STACK: STACK, TAG_POOL: "dev", TAG_OWNER: "ada", TAG_MANAGED: "true"}


def pool_policy(**changes: Any) -> dict[str, Any]:
    """Return a pool of the policy, idle after 2 hours, with some keys replaced.

    Its instances have no agents that could answer a mark; those of ``live.py`` have.
    """
    return {
        "market": "on-demand",
        "min_size": 0,
        "idle_after_hours": 2,
        "grace_minutes": 30,
        "min_uptime_minutes": 60,
        "coverage_percent": 90,
        "action": "terminate",
        "terminate_stopped_after_days": None,
        "quiet_hours": [],
        "quiet_weekends": False,
        "instance_store_scratch": True,
        "max_lifetime_hours": 168,
        "scale_in_alarm": None,
        "require_acknowledgement": False,
        "hourly_price": {"g5.xlarge": "1.006"},
        "sensors": {},
    } | changes


def policy_json(**changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "cloud": "aws",
        "region": REGION,
        "stack": STACK,
        "metric_namespace": namespace(STACK),
        "currency": "USD",
        "dry_run": False,
        "max_actions": 100,
        "max_percent": 100,
        "time_zone": "UTC",
        "pools": {"dev": pool_policy()},
        "leftovers": {"older_than_days": 14, "remove": False},
    } | changes


def budget_json(**changes: Any) -> dict[str, Any]:
    """Return the policy's budget: 1,000 a month; the pool ``dev`` freezes; some keys replaced."""
    pool = {
        "freezes": True,
        "on_demand": {"g5.xlarge": "1.006"},
        "spot": {"g5.xlarge": "0.503"},
        "disk_per_hour": "0.02",
        "gpus": {"g5.xlarge": 1},
    }
    return {
        "monthly": "1000",
        "percents": [80, 100],
        "on_exceeded": "freeze",
        "shared_per_hour": "0.10",
        "pools": {"dev": pool},
    } | changes


def write_policy(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(policy_json(**changes)), encoding="utf-8")
    return path


def client(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


def set_clock(monkeypatch: Any, now: datetime) -> None:
    """Set the time for commands; a live sweep accepts only the present time."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now.astimezone(tz)

    for command in ("report", "unfreeze", "sweep"):
        monkeypatch.setattr(f"gpu_fleet_image.console.operators.{command}.datetime", Clock)
    # moto's answers carry the present
    monkeypatch.setattr("gpu_fleet_image.core.calls.Calls._note_time", lambda *_: None)


def wire(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def launched(count: int = 1, tags: dict[str, str] = TAGS) -> list[str]:
    started = client("ec2").run_instances(
        ImageId="ami-12c6146b",
        InstanceType="g5.xlarge",
        MinCount=count,
        MaxCount=count,
        TagSpecifications=[{"ResourceType": "instance", "Tags": wire(tags)}],
    )
    return [instance["InstanceId"] for instance in started["Instances"]]


def launched_group(name: str, desired: int, min_size: int = 0) -> list[str]:
    template = {"ImageId": "ami-12c6146b", "InstanceType": "g5.xlarge"}
    client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=template)
    client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=min_size,
        MaxSize=10,
        DesiredCapacity=desired,
        LaunchTemplate={"LaunchTemplateName": name},
        AvailabilityZones=[f"{REGION}a"],
        Tags=[tag | {"PropagateAtLaunch": True} for tag in wire(TAGS)],
    )
    return members(name)


def members(group: str) -> list[str]:
    found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
    return sorted(instance["InstanceId"] for instance in found["AutoScalingGroups"][0]["Instances"])


class MotoFleet:
    """Resources of a stack: a bucket, a topic with a queue that receives from it, instances, groups."""

    def __init__(self) -> None:
        self.ec2, self.autoscaling, self.cloudwatch = map(client, ("ec2", "autoscaling", "cloudwatch"))
        client("s3").create_bucket(Bucket=BUCKET)
        self.topic_arn = client("sns").create_topic(Name="alarms")["TopicArn"]
        queue = client("sqs").create_queue(QueueName="listener")
        self.queue_url = queue["QueueUrl"]
        arn = client("sqs").get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["QueueArn"])
        client("sns").subscribe(
            TopicArn=self.topic_arn, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"]
        )

    def environ(self) -> dict[str, str]:
        return {"GPU_FLEET_LEDGER_URI": f"s3://{BUCKET}/reaper", "GPU_FLEET_TOPIC_ARN": self.topic_arn}

    def start(self, count: int = 1, **tags: str) -> list[str]:
        return launched(count, TAGS | tags)

    def idle(self, **tags: str) -> str:
        """Start an instance that has been idle for longer than its pool allows."""
        (instance,) = self.start(**tags)
        self.heartbeats([instance], idle_hours=2.5)
        return instance

    def start_group(self, name: str, desired: int, min_size: int = 0) -> list[str]:
        return launched_group(name, desired, min_size)

    def members(self, group: str) -> list[str]:
        return members(group)

    def heartbeats(
        self, ids: list[str], idle_hours: float, until: datetime = NOW, over_hours: float = 3
    ) -> None:
        """Publish agents' heartbeats of instances whose last activity was so long before ``NOW``."""
        idle_at = NOW - timedelta(hours=idle_hours)
        at = until - timedelta(seconds=60)
        moments = [
            at - timedelta(seconds=n * HEARTBEAT_S) for n in range(int(over_hours * 3600 / HEARTBEAT_S))
        ]
        moments += [at - timedelta(minutes=n) for n in range(63) if n % 5]
        data = [
            {
                "MetricName": METRIC_SECONDS_SINCE_ACTIVITY,
                "Dimensions": [{"Name": "InstanceId", "Value": key}],
                "Timestamp": moment,
                "Value": max(0.0, (moment - idle_at).total_seconds()),
                "Unit": "Seconds",
            }
            for key in ids
            for moment in moments
        ]
        for start in range(0, len(data), 1000):
            self.cloudwatch.put_metric_data(Namespace=namespace(STACK), MetricData=data[start : start + 1000])

    def tags(self, instance_id: str) -> dict[str, str]:
        found = self.ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [instance_id]}])
        return {tag["Key"]: tag["Value"] for tag in found["Tags"]}

    def state(self, instance_id: str) -> str:
        found = self.ec2.describe_instances(InstanceIds=[instance_id])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])

    def heard(self) -> list[dict[str, Any]]:
        found = client("sqs").receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=10)
        messages = found.get("Messages", [])
        for message in messages:
            client("sqs").delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])
        return [json.loads(message["Body"]) for message in messages]

    def ledger(self) -> list[dict[str, Any]]:
        s3 = client("s3")
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="reaper/ledger/").get("Contents", [])
        keys = [
            stored_object["Key"]
            for stored_object in listed
            if not stored_object["Key"].endswith((".ended.json", ".failed.json"))
        ]
        bodies = [s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys]
        return [json.loads(body) for body in bodies]
