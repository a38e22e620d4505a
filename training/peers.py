"""Which machines of a pool train together: the members in service of this machine's Auto Scaling group."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from training.errors import LaunchError
from training.identity import Identity, Machine

IN_SERVICE = "InService"
TAKES_WORK = {IN_SERVICE, "Protected"}  # the second: in service and kept from scale-in, on Alibaba Cloud
COMING = "Pending"  # the start of the states on the way in
STATES_PER_CALL = 50  # of DescribeAutoScalingInstances


def aws_peers(identity: Identity, machine: Machine) -> list[str]:
    """Private addresses of this machine's group, itself among them, lowest first.

    One address when it belongs to no group. Raises LaunchError while members are still on their way in, when
    this machine is on its way out, and when the calls are refused. It asks what an instance may ask:
    ec2:DescribeInstances and autoscaling:DescribeAutoScalingInstances.
    """
    with _explained(machine):
        own = _memberships(identity, [machine.instance_id])
        if not own:
            return [machine.address]
        addresses = _addresses(identity, own[0]["AutoScalingGroupName"])
        members = _memberships(identity, [*addresses])
        return in_order([addresses[instance_id] for instance_id in members_in_service(members, machine)])


def _memberships(identity: Identity, instance_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Group and lifecycle state of each instance that is in a group."""
    client = boto3.client("autoscaling", region_name=identity.region)
    found = []
    for start in range(0, len(instance_ids), STATES_PER_CALL):
        part = list(instance_ids[start : start + STATES_PER_CALL])
        found += client.describe_auto_scaling_instances(InstanceIds=part)["AutoScalingInstances"]
    return found


def _addresses(identity: Identity, group: str) -> dict[str, str]:
    """Private addresses of the running instances of the pool in `group`, by instance id."""
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


def members_in_service(members: Sequence[Mapping[str, Any]], machine: Machine) -> list[str]:
    """Instance ids of those of `members` that may take work: each has InstanceId and LifecycleState.

    Raises LaunchError when one is still on its way in, or `machine` is not one of them.
    """
    states = {member["InstanceId"]: member["LifecycleState"] for member in members}
    mine = states.get(machine.instance_id)
    if mine not in TAKES_WORK:
        raise LaunchError(
            f"{machine.instance_id} is {mine} in its group, not {IN_SERVICE}: nothing is started"
        )
    ready = [instance_id for instance_id, state in states.items() if state in TAKES_WORK]
    coming = [instance_id for instance_id, state in states.items() if state.startswith(COMING)]
    if coming:
        raise LaunchError(
            f"{len(ready)} of {len(ready) + len(coming)} machines are {IN_SERVICE}; wait for "
            f"{', '.join(coming)}, or name the machines to use: --peers ADDRESS,ADDRESS"
        )
    return ready


def in_order(addresses: Sequence[str]) -> list[str]:
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
