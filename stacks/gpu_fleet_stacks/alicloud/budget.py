"""Budget of the month, and the alarms on it.

The provider has no budget resource. The sweep's meter multiplies the hours of running resources by their
prices, and CloudMonitor compares the sum with the thresholds.
"""

import hashlib
from dataclasses import dataclass
from decimal import Decimal

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_image.core.metrics import METRIC_MONTH_COST, METRIC_MONTH_FORECAST
from gpu_fleet_stacks.alicloud.alarms import alarm
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack, Threshold, ThresholdKind

# The meter's metrics of the whole stack, in the budget's currency.
METRICS = {ThresholdKind.ACTUAL: METRIC_MONTH_COST, ThresholdKind.FORECAST: METRIC_MONTH_FORECAST}
# API names of CloudMonitor: an alarm contact's name has 2 to 40 characters (alicloud_cms_alarm_contact).
LONGEST_CONTACT_NAME = 40


@dataclass(frozen=True)
class BudgetArgs:
    """Inputs of the budget."""

    stack: Stack


class Budget(pulumi.ComponentResource):
    """A monthly budget: contacts, and one alarm for each threshold on the values of the sweep's meter.

    Attributes:
        contact_group: the group that all alarms of the stack notify.
    """

    contact_group: pulumi.Output[str]

    def __init__(self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Budget", name, None, opts)
        stack = args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        self.contact_group = self._contacts(stack)
        for threshold in stack.budget.thresholds:
            alarm(
                f"{name}-{threshold.kind}-{threshold.percent}",
                stack,
                metric=METRICS[threshold.kind],
                above=str(_amount(stack, threshold)),
                contact_group=self.contact_group,
                parent=self,
            )
        # some instances have an unknown price: the cost is higher than the meter's value
        alarm(
            f"{name}-unpriced",
            stack,
            metric="UnpricedInstances",
            above="0",
            contact_group=self.contact_group,
            parent=self,
        )
        self.register_outputs({"contact_group": self.contact_group})

    def _contacts(self, stack: Stack) -> pulumi.Output[str]:
        """Declare one contact for each address; return the group's name.

        CloudMonitor mails each address a link, and notifies only those who confirm it. Until then it hides
        the address, which the provider would read as a change to make again.
        """
        contacts = [
            alicloud.cms.AlarmContact(
                f"{naming.prefixed(stack.name)}-{address}",
                alarm_contact_name=_contact_name(stack, address),
                describe=f"gpu-fleet stack {stack.name}",
                channels_mail=address,
                lang="en",
                opts=pulumi.ResourceOptions(parent=self, ignore_changes=["channelsMail"]),
            ).alarm_contact_name
            for address in stack.budget.recipients
        ]
        group = alicloud.cms.AlarmContactGroup(
            naming.prefixed(stack.name),
            alarm_contact_group_name=naming.prefixed(stack.name),
            describe=f"Owners of gpu-fleet stack {stack.name}",
            contacts=contacts,
            opts=self._child,
        )
        return group.alarm_contact_group_name


def _contact_name(stack: Stack, address: str) -> str:
    """Return a contact's name, cut to CloudMonitor's limit and made unique by a hash of its address.

    CloudMonitor overwrites a contact of the same name, and a replaced resource is deleted last. A name that
    moved to another address, such as one by its place in the list, would be deleted with the old contact.
    """
    suffix = f"-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
    return naming.prefixed(stack.name)[: LONGEST_CONTACT_NAME - len(suffix)] + suffix


def _amount(stack: Stack, threshold: Threshold) -> Decimal:
    """Return a threshold in the budget's currency."""
    return Decimal(stack.budget.monthly) * threshold.percent / 100
