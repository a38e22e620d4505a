"""Instances of a pool that train together: the members in service of this instance's Auto Scaling group."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet.core.errors import LaunchError
from gpu_fleet.core.metadata import ThisInstance
from gpu_fleet_jobs.launch.identity import PoolIdentity
from gpu_fleet_jobs.launch.members import in_order, members_in_service

STATES_PER_CALL = 50  # of DescribeAutoScalingInstances


def aws_peers(identity: PoolIdentity, instance: ThisInstance) -> list[str]:
    """Return the private addresses in this instance's Auto Scaling group, its own included, lowest first.

    An instance outside a group gets its own address alone. The only calls are ec2:DescribeInstances and
    autoscaling:DescribeAutoScalingInstances. Raises LaunchError while members are still starting, if this
    instance is not in service, or if a call fails.
    """
    with _explained(instance):
        own = _memberships(identity, [instance.instance_id])
        if not own:
            return [instance.address]
        addresses = _addresses(identity, own[0]["AutoScalingGroupName"])
        members = _memberships(identity, [*addresses])
        return in_order([addresses[instance_id] for instance_id in members_in_service(members, instance)])


def _memberships(identity: PoolIdentity, instance_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the group and lifecycle state of each instance that is in a group."""
    client = boto3.client("autoscaling", region_name=identity.region)
    states = []
    for start in range(0, len(instance_ids), STATES_PER_CALL):
        part = list(instance_ids[start : start + STATES_PER_CALL])
        states += client.describe_auto_scaling_instances(InstanceIds=part)["AutoScalingInstances"]
    return states


def _addresses(identity: PoolIdentity, group: str) -> dict[str, str]:
    """Return the private addresses of the running instances of the pool in `group`, by instance id."""
    wanted = {
        "instance-state-name": "running",
        "tag:aws:autoscaling:groupName": group,
        "tag:gpu-fleet:stack": identity.stack,
        "tag:gpu-fleet:pool": identity.pool,
    }
    filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
    ec2 = boto3.client("ec2", region_name=identity.region)
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    reservations = [reservation for page in pages for reservation in page["Reservations"]]
    return {
        instance["InstanceId"]: instance["PrivateIpAddress"]
        for reservation in reservations
        for instance in reservation["Instances"]
    }


@contextmanager
def _explained(instance: ThisInstance) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        text = f"{answer.get('Code', 'error')}: {answer.get('Message', error)}"
        raise LaunchError(f"peers of {instance.instance_id} cannot be found: {text}") from error
    except BotoCoreError as error:
        raise LaunchError(f"peers of {instance.instance_id} cannot be found: {error}") from error
