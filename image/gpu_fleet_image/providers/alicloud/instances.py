"""The stack's instances on Alibaba Cloud: list, tag, stop and terminate them."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.calls import TRANSIENT, Calls, batches
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_POOL, TAG_STACK, Group, Instance, Inventory
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time, parse_time
from gpu_fleet_image.providers.alicloud.lifecycle import IN_SERVICE, PROTECTED
from gpu_fleet_image.providers.alicloud.session import Answer, Clients, Product

TAG_GROUP = "acs:autoscaling:scalingGroupId"  # set by Auto Scaling on the instances that it starts
# The API reports no time of a stop. The sweep notes the time of its own stops; it never terminates what users
# stopped.
TAG_STOPPED_AT = "gpu-fleet:stopped-at"
STOPS = frozenset({"stopping", "stopped"})
LAUNCH = "ScaleOut"  # a scaling process
Ask = Callable[..., Answer]
STATES = {
    "Pending": "pending",
    "Starting": "pending",
    "Running": "running",
    "Stopping": "stopping",
    "Stopped": "stopped",
}


def instance_of(raw: Mapping[str, Any]) -> Instance:
    """Parse one instance of DescribeInstances."""
    tags = {tag["TagKey"]: tag["TagValue"] for tag in raw.get("Tags", {}).get("Tag", [])}
    # The cloud reports whole minutes. Take the end of the minute: no instance may count as older than it is.
    launched_at = parse_time(raw.get("StartTime") or raw["CreationTime"]) + timedelta(minutes=1)
    stopped_at = None
    if raw["Status"] == "Stopped" and TAG_STOPPED_AT in tags:
        noted = _time(tags[TAG_STOPPED_AT])
        stopped_at = noted if noted is not None and noted >= launched_at else None
    return Instance(
        id=raw["InstanceId"],
        type=raw["InstanceType"],
        state=STATES.get(raw["Status"], raw["Status"].lower()),
        launched_at=launched_at,
        tags=tags,
        spot=raw.get("SpotStrategy", "NoSpot") != "NoSpot",
        stopped_at=stopped_at,
        locked=_lock(raw),
        image=raw.get("ImageId", ""),
    )


def _lock(raw: Mapping[str, Any]) -> str:
    """Return why the cloud itself would not terminate it, or an empty text."""
    reasons = [reason["LockReason"] for reason in raw.get("OperationLocks", {}).get("LockReason", [])]
    if reasons:
        return f"locked by the cloud: {', '.join(reasons)}"
    return "deletion protection is on" if raw.get("DeletionProtection") else ""


def _time(text: str) -> datetime | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


def group_of(raw: Mapping[str, Any], members: Mapping[str, str]) -> Group:
    """Parse one group of DescribeScalingGroups, with its members and their lifecycle states."""
    tags = {tag["TagKey"]: tag["TagValue"] for tag in raw.get("Tags") or []}
    states = {key: IN_SERVICE if state == PROTECTED else state for key, state in members.items()}
    return Group(
        name=raw["ScalingGroupId"],
        min_size=raw["MinSize"],
        desired=raw["DesiredCapacity"] if raw.get("EnableDesiredCapacity", True) else raw["TotalCapacity"],
        members=states,
        max_size=raw["MaxSize"],
        pool=tags.get(TAG_POOL, ""),
        closed=LAUNCH in (raw.get("SuspendedProcesses") or []),
        title=raw.get("ScalingGroupName", ""),
    )


PAGE = 100  # DescribeInstances, DescribeScalingInstances: at most 100
GROUP_PAGE = 50  # DescribeScalingGroups, DescribeAlarms: at most 50
END_BATCH = 100  # DeleteInstances, StopInstances: at most 100
DETACH_BATCH = 20  # DetachInstances, DescribeScalingInstances: at most 20 ids
TAG_BATCH = 50  # TagResources: at most 50
ADDRESS = "eip-"
_RESOURCES = {
    "i-": "instance",
    "d-": "disk",
    ADDRESS: "EIP",
}  # prefix of an id -> ResourceType of TagResources


class Instances:
    """The managed instances of one stack.

    A group's name here is its id: the API of Auto Scaling accepts nothing else.

    Args:
        stack: only its instances are ever listed.
    """

    end_batch, detach_batch = END_BATCH, DETACH_BATCH

    def __init__(self, clients: Clients, calls: Calls, stack: str) -> None:
        self._ecs, self._ess, self._vpc = clients.ecs, clients.ess, clients.vpc
        self._calls = calls
        self._stack = stack

    def fleet(self) -> Inventory:
        """Return every managed instance of the stack, and its scaling groups.

        Group membership is read from the instances' tags here, without another call; ``again`` asks Auto
        Scaling. A released instance disappears at once: the cloud no longer lists it.

        Raises CloudError if a list could not be read completely.
        """
        instances = self._instances(Tag=self._own())
        members: dict[str, dict[str, str]] = defaultdict(dict)
        for instance in instances:
            if TAG_GROUP in instance.tags:
                members[instance.tags[TAG_GROUP]][instance.id] = IN_SERVICE
        groups = {raw["ScalingGroupId"]: raw for raw in self._groups(Tags=self._own()[1:])}
        # A group without the stack's tag would replace terminated instances unnoticed.
        unknown = sorted(members.keys() - groups.keys())
        groups |= {raw["ScalingGroupId"]: raw for raw in self._groups_of(unknown)}
        return Inventory(instances, tuple(group_of(raw, members[key]) for key, raw in groups.items()))

    def again(self, ids: Sequence[str], group_names: Sequence[str]) -> Inventory:
        """Read the same instances and their groups again, without those that are no longer managed.

        ``gone`` holds the instances that the cloud no longer knows.

        Raises:
            CloudError: they could not be read.
        """
        there: dict[str, Instance] = {}
        for some in batches(ids, PAGE):
            there |= {
                instance.id: instance for instance in self._instances(InstanceIds=json.dumps(list(some)))
            }
        own = {tag["Key"]: tag["Value"] for tag in self._own()}
        owned = {key: instance for key, instance in there.items() if own.items() <= instance.tags.items()}
        names = set(group_names)
        for some in batches(list(owned), DETACH_BATCH):
            names |= {row["ScalingGroupId"] for row in self._members(InstanceIds=list(some))}
        groups = []
        for raw in self._groups_of(sorted(names)):
            rows = self._members(ScalingGroupId=raw["ScalingGroupId"])
            groups.append(group_of(raw, {row["InstanceId"]: row["LifecycleState"] for row in rows}))
        gone = (
            Instance(instance_id, "", "terminated", self._calls.now())
            for instance_id in ids
            if instance_id not in there
        )
        return Inventory(tuple(owned.values()), tuple(groups), tuple(gone))

    def tags(self, instance_id: str) -> dict[str, str]:
        """Return an instance's tags; empty for an instance that does not exist. Raises CloudError."""
        listed = self._instances(InstanceIds=json.dumps([instance_id]))
        return dict(listed[0].tags) if listed else {}

    def lock(self, instance_id: str, action: str) -> str:  # noqa: ARG002 - as on AWS
        """Return nothing: ``fleet`` already reads locks and deletion protection from DescribeInstances."""
        return ""

    def alarms_firing(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of the alarms that are in the state ALARM. Raises CloudError."""
        firing = self._numbered(self._ess.action("DescribeAlarms"), "AlarmList", GROUP_PAGE, State="ALARM")
        return frozenset(names) & {alarm["Name"] for alarm in firing}

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Set tags; raises CloudError."""
        self._tag("TagResources", ids, Tag=[{"Key": key, "Value": value} for key, value in tags.items()])

    def untag(self, ids: Sequence[str], keys: Sequence[str]) -> None:
        """Remove tags, whatever their value; raises CloudError."""
        self._tag("UntagResources", ids, TagKey=list(keys))

    def detach(self, group: str, ids: Sequence[str], *, replaced: bool = False) -> None:
        """Remove instances from their group, and lower its desired capacity unless ``replaced``.

        The group itself refuses to go below its minimum. Raises CloudError.
        """
        self._change_group(
            "DetachInstances", group, InstanceIds=list(ids), DecreaseDesiredCapacity=not replaced
        )

    def attach(self, group: str, ids: Sequence[str]) -> None:
        """Put instances back into their group, and raise its desired capacity; raises CloudError."""
        self._change_group("AttachInstances", group, InstanceIds=list(ids), Entrusted=True)

    def stop(self, ids: Sequence[str]) -> None:
        """Stop instances, all or none, and pay only for their disks. Raises CloudError.

        The time is noted afterwards: with a note on an instance that was not stopped, a later stop by its
        user would look like one by the sweep.
        """
        try:
            self._calls.change(
                self._ecs.action("StopInstances"),
                InstanceId=list(ids),
                StoppedMode="StopCharging",
                BatchOptimization="AllTogether",
            )
        except CloudError as error:
            if error.code in TRANSIENT:  # the instances may have been stopped all the same
                listed = self._instances(InstanceIds=json.dumps(list(ids)))
                self._note_stop([instance.id for instance in listed if instance.state in STOPS])
            raise
        self._note_stop(ids)

    def _note_stop(self, ids: Sequence[str]) -> None:
        self.tag(ids, {TAG_STOPPED_AT: format_time(self._calls.now())})

    def terminate(self, ids: Sequence[str], *, stopped: bool = False) -> None:
        """Terminate instances; raises CloudError, also if one of the ``stopped`` is running.

        Without ``Force`` the cloud refuses instances that are not stopped (help.aliyun.com, API
        DeleteInstances).
        """
        self._calls.change(self._ecs.action("DeleteInstances"), InstanceId=list(ids), Force=not stopped)

    def limit(self, group: str, max_size: int) -> None:
        """Limit a group to ``max_size`` instances; raises CloudError."""
        self._change_group("ModifyScalingGroup", group, MaxSize=max_size)

    def close(self, group: str) -> None:
        """Keep a group from starting instances; raises CloudError."""
        self._change_group("SuspendProcesses", group, Processes=[LAUNCH])

    def open(self, group: str) -> None:
        """Let a group start instances again; raises CloudError."""
        self._change_group("ResumeProcesses", group, Processes=[LAUNCH])

    def _own(self) -> list[dict[str, str]]:
        return [{"Key": TAG_MANAGED, "Value": "true"}, {"Key": TAG_STACK, "Value": self._stack}]

    def _change_group(self, action: str, group: str, **parameters: Any) -> None:
        self._calls.change(self._ess.action(action), ScalingGroupId=group, **parameters)

    def _tag(self, action: str, ids: Sequence[str], **parameters: Any) -> None:
        """Tag instances, disks and addresses. The product of addresses spells one action differently."""
        for prefix, kind in _RESOURCES.items():
            own = [instance_id for instance_id in ids if instance_id.startswith(prefix)]
            product = self._vpc if prefix == ADDRESS else self._ecs
            name = action.replace("Untag", "UnTag") if prefix == ADDRESS else action
            for some in batches(own, TAG_BATCH):
                self._calls.change(
                    product.action(name), ResourceType=kind, ResourceId=list(some), **parameters
                )

    def _instances(self, **chosen: Any) -> tuple[Instance, ...]:
        raws = described(self._calls.read, self._ecs, **chosen)
        listed = {raw["InstanceId"]: instance_of(raw) for raw in raws}
        return tuple(listed.values())

    def _members(self, **chosen: Any) -> list[dict[str, Any]]:
        action = self._ess.action("DescribeScalingInstances")
        return list(self._numbered(action, "ScalingInstances", PAGE, **chosen))

    def _groups(self, **chosen: Any) -> Iterator[dict[str, Any]]:
        return self._numbered(
            self._ess.action("DescribeScalingGroups"), "ScalingGroups", GROUP_PAGE, **chosen
        )

    def _groups_of(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for some in batches(ids, DETACH_BATCH):
            yield from self._groups(ScalingGroupIds=list(some))

    def _numbered(
        self, action: Callable[..., Answer], key: str, size: int, **chosen: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of numbered pages. An empty page is the last, whatever the total."""
        seen, number = 0, 1
        while True:
            page = self._calls.read(action, PageNumber=number, PageSize=size, **chosen)
            rows = page[key]
            yield from rows
            seen, number = seen + len(rows), number + 1
            if not rows or seen >= int(page["TotalCount"]):
                return


def described(ask: Ask, ecs: Product, **which: Any) -> Iterator[dict[str, Any]]:
    """Yield the instances of DescribeInstances, page after page. Raises what ``ask`` raises.

    Args:
        ask: makes the call, counted or not.
    """
    token: dict[str, str] = {}
    while True:
        page = ask(ecs.action("DescribeInstances"), MaxResults=PAGE, **which, **token)
        yield from page["Instances"]["Instance"]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


def with_ids(ask: Ask, ecs: Product, ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the instances with these ids that ECS still knows; errors as for ``described``."""
    for some in batches(list(ids), PAGE):
        yield from described(ask, ecs, InstanceIds=json.dumps(list(some)))


def states_of(calls: Calls, ecs: Product, ids: Iterable[str]) -> dict[str, str]:
    """Return instance id -> state, of those that ECS still knows. Raises CloudError."""
    raws = with_ids(calls.read, ecs, ids)
    return {str(raw["InstanceId"]): STATES.get(raw["Status"], str(raw["Status"]).lower()) for raw in raws}


def addresses_of(calls: Calls, ecs: Product, ids: Iterable[str]) -> dict[str, str]:
    """Return instance id -> private IPv4, without those that have none. Raises CloudError."""
    known = {
        raw["InstanceId"]: raw.get("VpcAttributes", {}).get("PrivateIpAddress", {}).get("IpAddress", [])
        for raw in with_ids(calls.read, ecs, ids)
    }
    return {key: str(addresses[0]) for key, addresses in known.items() if addresses}
