"""The stack's instances on AWS: list, tag, stop and terminate them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_fleet_image.core.calls import Calls, batches
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_POOL, TAG_STACK, Group, Instance, Inventory
from gpu_fleet_image.providers.aws.session import Clients, rows

PAGE = 1000  # DescribeInstances: 5 to 1000
MOST_VALUES = 200  # of one filter (EC2 API, Filter)
GROUP_PAGE = 100  # DescribeAutoScalingGroups: at most 100
END_BATCH = 500  # TerminateInstances: at most 1000
DETACH_BATCH = 20  # DetachInstances: at most 20
_ALARM_BATCH = 100  # DescribeAlarms: at most 100 names
TAG_GROUP = "aws:autoscaling:groupName"  # set by Auto Scaling on its members
LIVING = ("pending", "running", "stopping", "stopped")
GONE = ("shutting-down", "terminated")  # listed for about an hour (EC2 user guide, "Terminate")
LAUNCH = "Launch"  # a scaling process
LOCKS = {"stop": ("disableApiStop", "stop"), "terminate": ("disableApiTermination", "termination")}
STOPPED_AT = re.compile(r"\(([0-9]{4}-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]) (?:GMT|UTC)\)")


class Tags:
    """Reader and writer of instances' tags."""

    def __init__(self, ec2: Any, calls: Calls) -> None:
        self._ec2, self._calls = ec2, calls

    def tags(self, instance_id: str) -> dict[str, str]:
        """Return an instance's tags; empty for an instance that does not exist. Raises CloudError."""
        named = [{"Name": "resource-id", "Values": [instance_id]}]
        tags = self._calls.read(self._ec2.describe_tags, Filters=named)["Tags"]
        return {tag["Key"]: tag["Value"] for tag in tags}

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Set tags; raises CloudError."""
        wire = [{"Key": key, "Value": value} for key, value in tags.items()]
        self._calls.change(self._ec2.create_tags, Resources=list(ids), Tags=wire)

    def untag(self, ids: Sequence[str], keys: Sequence[str]) -> None:
        """Remove tags, whatever their value; raises CloudError."""
        wire = [{"Key": key} for key in keys]
        self._calls.change(self._ec2.delete_tags, Resources=list(ids), Tags=wire)


class Instances(Tags):
    """The managed instances of one stack.

    Args:
        stack: only its instances are ever listed.
    """

    end_batch, detach_batch = END_BATCH, DETACH_BATCH

    def __init__(self, clients: Clients, calls: Calls, stack: str) -> None:
        super().__init__(clients.ec2, calls)
        self._autoscaling, self._cloudwatch = clients.autoscaling, clients.cloudwatch
        self._ending = clients.ending
        self._stack = stack

    def fleet(self) -> Inventory:
        """Return every managed instance of the stack, and its scaling groups. Raises CloudError."""
        filters = self._filters((*LIVING, *GONE))
        raws = described(self._calls, self._ec2, Filters=filters, MaxResults=PAGE)
        listed = {raw["InstanceId"]: instance_of(raw) for raw in raws}
        living = [instance for instance in listed.values() if instance.state not in GONE]
        groups = self._groups()
        # A group without the stack's tag would replace terminated instances unnoticed.
        named = {instance.tags[TAG_GROUP] for instance in living if TAG_GROUP in instance.tags}
        unknown = sorted(named - {group.name for group in groups})
        return _fleet(listed.values(), groups + (self._groups(unknown) if unknown else ()))

    def again(self, ids: Sequence[str], group_names: Sequence[str]) -> Inventory:
        """Read the same instances and groups again, without those that are no longer managed or known.

        It filters instead of passing ``InstanceIds``: one id that vanished would fail the whole call.

        Raises:
            CloudError: they could not be read.
        """
        listed: dict[str, Instance] = {}
        for some in batches(ids, MOST_VALUES):
            filters = [*self._filters((*LIVING, *GONE)), _with_ids(some)]
            raws = described(self._calls, self._ec2, Filters=filters, MaxResults=PAGE)
            listed |= {raw["InstanceId"]: instance_of(raw) for raw in raws}
        groups = self._groups(group_names) if group_names else ()
        return _fleet(listed.values(), groups)

    def lock(self, instance_id: str, action: str) -> str:
        """Return why the cloud would not stop or terminate an instance, or an empty text.

        It takes one call for each instance: no listing of EC2 has these attributes (API
        DescribeInstanceAttribute).

        Args:
            action: ``stop`` or ``terminate``.

        Raises CloudError if it could not be read.
        """
        name, protected = LOCKS[action]
        answer = self._calls.read(
            self._ec2.describe_instance_attribute, InstanceId=instance_id, Attribute=name
        )
        return f"{protected} protection is on" if answer[name[0].upper() + name[1:]]["Value"] else ""

    def _filters(self, states: Sequence[str] = LIVING) -> list[dict[str, Any]]:
        return [
            {"Name": f"tag:{TAG_MANAGED}", "Values": ["true"]},
            {"Name": f"tag:{TAG_STACK}", "Values": [self._stack]},
            {"Name": "instance-state-name", "Values": list(states)},
        ]

    def _groups(self, names: Sequence[str] = ()) -> tuple[Group, ...]:
        own = {"Filters": [{"Name": f"tag:{TAG_STACK}", "Values": [self._stack]}]}
        which: dict[str, Any] = {"AutoScalingGroupNames": list(names)} if names else own
        describe = self._autoscaling.describe_auto_scaling_groups
        raws = rows(self._calls, describe, "AutoScalingGroups", MaxRecords=GROUP_PAGE, **which)
        groups = {raw["AutoScalingGroupName"]: raw for raw in raws}
        return tuple(_group(raw) for raw in groups.values())

    def alarms_firing(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of the alarms that are in the state ALARM. Raises CloudError."""
        firing = set()
        for start in range(0, len(names), _ALARM_BATCH):
            page = self._calls.read(
                self._cloudwatch.describe_alarms,
                AlarmNames=list(names[start : start + _ALARM_BATCH]),
                StateValue="ALARM",
            )
            firing |= {alarm["AlarmName"] for alarm in page["MetricAlarms"]}
        return frozenset(firing)

    def detach(self, group: str, ids: Sequence[str], *, replaced: bool = False) -> None:
        """Remove instances from their group, and lower its desired capacity unless ``replaced``.

        The group itself refuses to go below its minimum. Raises CloudError.
        """
        self._calls.change(
            self._autoscaling.detach_instances,
            AutoScalingGroupName=group,
            InstanceIds=list(ids),
            ShouldDecrementDesiredCapacity=not replaced,
        )

    def attach(self, group: str, ids: Sequence[str]) -> None:
        """Put instances back into their group, and raise its desired capacity; raises CloudError."""
        self._calls.change(
            self._autoscaling.attach_instances, AutoScalingGroupName=group, InstanceIds=list(ids)
        )

    def stop(self, ids: Sequence[str]) -> None:
        """Stop instances; their disks stay. Raises CloudError."""
        self._calls.change(self._ending.stop_instances, InstanceIds=list(ids))

    def terminate(self, ids: Sequence[str], *, stopped: bool = False) -> None:  # noqa: ARG002 - as there
        """Terminate instances; raises CloudError.

        The call takes no condition on their state (API TerminateInstances; IAM, condition keys of EC2).
        """
        self._calls.change(self._ending.terminate_instances, InstanceIds=list(ids))

    def limit(self, group: str, max_size: int) -> None:
        """Limit a group to ``max_size`` instances; it terminates none.

        A larger desired capacity falls to the limit. Raises CloudError.
        """
        self._calls.change(
            self._autoscaling.update_auto_scaling_group, AutoScalingGroupName=group, MaxSize=max_size
        )

    def close(self, group: str) -> None:
        """Keep a group from starting instances; raises CloudError."""
        self._calls.change(
            self._autoscaling.suspend_processes, AutoScalingGroupName=group, ScalingProcesses=[LAUNCH]
        )

    def open(self, group: str) -> None:
        """Let a group start instances again; raises CloudError."""
        self._calls.change(
            self._autoscaling.resume_processes, AutoScalingGroupName=group, ScalingProcesses=[LAUNCH]
        )


def _fleet(instances: Iterable[Instance], groups: tuple[Group, ...]) -> Inventory:
    every = tuple(instances)
    living = tuple(instance for instance in every if instance.state not in GONE)
    return Inventory(living, groups, tuple(instance for instance in every if instance.state in GONE))


def described(calls: Calls, ec2: Any, **which: Any) -> Iterator[dict[str, Any]]:
    """Yield the instances of DescribeInstances, page after page. Raises CloudError."""
    for reservation in rows(calls, ec2.describe_instances, "Reservations", **which):
        yield from reservation["Instances"]


def states_of(calls: Calls, ec2: Any, ids: Sequence[str]) -> dict[str, str]:
    """Return instance id -> state, of those that EC2 still knows. Raises CloudError."""
    raws = (
        raw for some in batches(ids, MOST_VALUES) for raw in described(calls, ec2, Filters=[_with_ids(some)])
    )
    return {raw["InstanceId"]: raw["State"]["Name"] for raw in raws}


def addresses_of(calls: Calls, ec2: Any, ids: Sequence[str]) -> dict[str, str]:
    """Return instance id -> private IPv4, without those that have none. Raises CloudError."""
    raws = described(calls, ec2, InstanceIds=list(ids))
    return {raw["InstanceId"]: raw["PrivateIpAddress"] for raw in raws if raw.get("PrivateIpAddress")}


def _with_ids(ids: Sequence[str]) -> dict[str, Any]:
    return {"Name": "instance-id", "Values": list(ids)}


def instance_of(raw: Mapping[str, Any]) -> Instance:
    """Parse one instance of DescribeInstances."""
    stopped = STOPPED_AT.search(raw.get("StateTransitionReason") or "")
    return Instance(
        id=raw["InstanceId"],
        type=raw["InstanceType"],
        state=raw["State"]["Name"],
        launched_at=raw["LaunchTime"],
        tags={tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])},
        spot=raw.get("InstanceLifecycle") == "spot",
        stopped_at=datetime.fromisoformat(stopped[1]).replace(tzinfo=UTC) if stopped else None,
        image=raw.get("ImageId", ""),
    )


def _group(raw: Mapping[str, Any]) -> Group:
    return Group(
        name=raw["AutoScalingGroupName"],
        min_size=raw["MinSize"],
        desired=raw["DesiredCapacity"],
        members={member["InstanceId"]: member["LifecycleState"] for member in raw["Instances"]},
        max_size=raw["MaxSize"],
        pool=next((tag["Value"] for tag in raw.get("Tags", []) if tag["Key"] == TAG_POOL), ""),
        closed=any(process["ProcessName"] == LAUNCH for process in raw.get("SuspendedProcesses", [])),
        title=raw["AutoScalingGroupName"],
    )
