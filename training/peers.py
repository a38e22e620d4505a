"""Which machines of a pool train together: the members in service of this machine's Auto Scaling group."""

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from training.errors import LaunchError
from training.identity import Identity, Machine

IN_SERVICE = "InService"


def aws_peers(identity: Identity, machine: Machine) -> list[str]:
    """Private addresses of this machine's group, itself among them, lowest first.

    One address when it belongs to no group. Raises LaunchError while members are still missing, when this
    machine is on its way out, and when the calls are refused.
    """
    with _explained(machine):
        autoscaling = boto3.client("autoscaling", region_name=identity.region)
        answer = autoscaling.describe_auto_scaling_instances(InstanceIds=[machine.instance_id])
        if not answer["AutoScalingInstances"]:
            return [machine.address]
        name = answer["AutoScalingInstances"][0]["AutoScalingGroupName"]
        group = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]
        members = members_in_service(group, machine)
        return in_order(_addresses(identity, members))


def members_in_service(group: dict[str, Any], machine: Machine) -> list[str]:
    """Instance ids of the members of `group` (of DescribeAutoScalingGroups) that may take work.

    Raises LaunchError when there are fewer than the group wants, or `machine` is not one of them.
    """
    states = {member["InstanceId"]: member["LifecycleState"] for member in group["Instances"]}
    name, mine = group["AutoScalingGroupName"], states.get(machine.instance_id)
    if mine != IN_SERVICE:
        raise LaunchError(
            f"{machine.instance_id} is {mine} in group {name}, not {IN_SERVICE}: nothing is started"
        )
    ready = [instance_id for instance_id, state in states.items() if state == IN_SERVICE]
    if len(ready) < group["DesiredCapacity"]:
        raise LaunchError(
            f"group {name} has {len(ready)} of {group['DesiredCapacity']} machines {IN_SERVICE}; "
            "wait for the others, or name the ones to use: --peers ADDRESS,ADDRESS"
        )
    return ready


def _addresses(identity: Identity, instance_ids: Sequence[str]) -> Iterator[str]:
    """Private addresses of those of `instance_ids` that carry the tags of the pool and run."""
    filters = [
        {"Name": "instance-id", "Values": list(instance_ids)},
        {"Name": "instance-state-name", "Values": ["running"]},
        {"Name": "tag:gpu-fleet:stack", "Values": [identity.stack]},
        {"Name": "tag:gpu-fleet:pool", "Values": [identity.pool]},
    ]
    ec2 = boto3.client("ec2", region_name=identity.region)
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            yield from (instance["PrivateIpAddress"] for instance in reservation["Instances"])


def in_order(addresses: Iterator[str] | Sequence[str]) -> list[str]:
    """The addresses by number, not by text: 10.0.0.9 before 10.0.0.10. Raises LaunchError on a wrong one."""
    try:
        return sorted(set(addresses), key=ipaddress.ip_address)
    except ValueError as error:
        raise LaunchError(f"--peers: {error}; write private addresses with commas between") from error


@contextmanager
def _explained(machine: Machine) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        text = f"{answer.get('Code', 'error')}: {answer.get('Message', error)}"
        raise LaunchError(f"peers of {machine.instance_id} cannot be found: {text}") from error
    except BotoCoreError as error:
        raise LaunchError(f"peers of {machine.instance_id} cannot be found: {error}") from error
