"""The instances that the stack's own groups launched in moto."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moto.backends import get_backend
from rich.table import Table

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.rehearsal.clients import RegionClients

ENDED = frozenset({"terminated", "shutting-down"})


@dataclass(frozen=True)
class LaunchedInstance:
    """One instance as EC2 and its scaling group describe it.

    Attributes:
        pool: the value of its tag ``gpu-fleet:pool``.
        group: its Auto Scaling group, empty after it was detached.
        market: ``spot`` or ``on-demand``.
        state: running, stopped, terminated...
        protected: whether it is protected from scale-in.
    """

    id: str
    pool: str
    group: str
    type: str
    zone: str
    market: str
    state: str
    protected: bool


def launched(clients: RegionClients, stack: str) -> tuple[LaunchedInstance, ...]:
    """Return every instance with the stack's tag, also terminated ones, by pool and id."""
    members = {
        member["InstanceId"]: member
        for page in clients("autoscaling").get_paginator("describe_auto_scaling_instances").paginate()
        for member in page["AutoScalingInstances"]
    }
    described = [
        _launched(instance, members.get(identifier, {}))
        for identifier, instance in pictures(clients, stack).items()
    ]
    return tuple(sorted(described, key=lambda instance: (instance.pool, instance.id)))


def _launched(instance: dict[str, Any], member: dict[str, Any]) -> LaunchedInstance:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    return LaunchedInstance(
        id=instance["InstanceId"],
        pool=tags.get(f"{naming.PROJECT}:pool", ""),
        group=member.get("AutoScalingGroupName", ""),
        type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        market=instance.get("InstanceLifecycle", "on-demand"),
        state=instance["State"]["Name"],
        protected=member.get("ProtectedFromScaleIn", False),
    )


def running(instances: Iterable[LaunchedInstance]) -> set[str]:
    """Return the ids of the instances that are not terminated."""
    return {instance.id for instance in instances if instance.state not in ENDED}


def pictures(clients: RegionClients, stack: str) -> dict[str, dict[str, Any]]:
    """Return instance id -> EC2's full description, to show whether anything changed the instance."""
    own = [{"Name": f"tag:{naming.PROJECT}:stack", "Values": [stack]}]
    pages = clients("ec2").get_paginator("describe_instances").paginate(Filters=own)
    return {
        instance["InstanceId"]: instance
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    }


def date_back(clients: RegionClients, instance_id: str, launched_at: datetime) -> None:
    """Set an earlier launch time in moto's own state: no API can do this.

    Args:
        clients: of the instance's region.
        launched_at: aware UTC.
    """
    backend: Any = get_backend("ec2")[clients.account_id][clients.region]
    backend.get_instance(instance_id).launch_time = launched_at.replace(tzinfo=None)  # moto stores naive UTC


def user_data(clients: RegionClients, launch_template_id: str) -> str:
    """Return the user data of a launch template's newest version, as cloud-init reads it."""
    answer = clients("ec2").describe_launch_template_versions(
        LaunchTemplateId=launch_template_id, Versions=["$Latest"]
    )
    return base64.b64decode(answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"]).decode()


def table(instances: Sequence[LaunchedInstance]) -> Table | str:
    """Return a table of the instances for users, or that there are none."""
    if not instances:
        return "none: no group starts an instance by itself"
    view = Table(title="instances launched by the stack's own groups", title_justify="left")
    for heading in ("instance", "pool", "type", "zone", "state", "scale-in"):
        view.add_column(heading, no_wrap=True)
    for instance in instances:
        protection = "protected" if instance.protected else "allowed"
        view.add_row(
            instance.id,
            instance.pool,
            instance.type,
            instance.zone,
            instance.state,
            protection if instance.group else "in no group",
        )
    return view
