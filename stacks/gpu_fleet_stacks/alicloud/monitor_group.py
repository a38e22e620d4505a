"""The application group of CloudMonitor for the agents' metrics that Auto Scaling watches."""

from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


@dataclass(frozen=True)
class MonitorGroupArgs:
    """Inputs of the group.

    Attributes:
        contact_group: whom CloudMonitor notifies of alarms in it.
    """

    stack: Stack
    contact_group: pulumi.Input[str]


class MonitorGroup(pulumi.ComponentResource):
    """One application group.

    An alarm of Auto Scaling on a custom metric must name the metric's group. Metrics without a group are in
    group 0, which cannot be sent (alicloud_ess_alarm, ``cloud_monitor_group_id``: ``GetOk`` drops a zero).
    """

    group_id: pulumi.Output[str]

    def __init__(self, name: str, args: MonitorGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:MonitorGroup", name, None, opts)
        group = alicloud.cms.MonitorGroup(
            f"{name}-metrics",
            monitor_group_name=naming.prefixed(args.stack.name),
            contact_groups=[args.contact_group],
            tags=naming.tags(args.stack.name, args.stack.owner),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.group_id = group.id
        self.register_outputs({"group_id": group.id})
