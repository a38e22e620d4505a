"""What the month may cost, and who hears of it.

The provider has no budget resource. A function on a timer adds up hours times price of what runs and asks the
bill what the month has cost so far; CloudMonitor compares that with the thresholds.
"""

import json
from dataclasses import dataclass
from decimal import Decimal

import pulumi
import pulumi_alicloud as alicloud

from stacks import catalog, naming, reaper_bundle
from stacks.alicloud import policies
from stacks.alicloud.alarms import alarm
from stacks.alicloud.functions import ScheduledFunction, ScheduledFunctionArgs
from stacks.settings import Stack, Threshold, ThresholdKind

METRICS = {ThresholdKind.ACTUAL: "MonthCost", ThresholdKind.FORECAST: "MonthForecast"}
METER_ENTRY = "image.reaper.meter"
METER_HANDLER = f"{METER_ENTRY}.handle"
METER_FILE = "meter.json"
EVERY_MINUTES = 15
TIMEOUT_S = 120
# API names of CloudMonitor: an alarm contact's name has 2 to 40 characters (alicloud_cms_alarm_contact).
LONGEST_CONTACT_NAME = 40


@dataclass(frozen=True)
class BudgetArgs:
    """What the budget depends on.

    Attributes:
        stack: the settings.
        key_id: encrypts the meter's log.
        key_arn: the same, for policies.
    """

    stack: Stack
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]


class Budget(pulumi.ComponentResource):
    """A monthly budget: contacts, the meter, and one alarm a threshold.

    Attributes:
        contact_group: whom all alarms of the stack tell.
        function_name: the meter, to run it by hand.
    """

    contact_group: pulumi.Output[str]
    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Budget", name, None, opts)
        stack = args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        self.contact_group = self._contacts(stack)
        meter = ScheduledFunction(
            f"{name}-meter",
            ScheduledFunctionArgs(
                stack=stack,
                label="meter",
                purpose=f"Adds up what gpu-fleet stack {stack.name} costs",
                handler=METER_HANDLER,
                files=bundle(stack),
                every_minutes=EVERY_MINUTES,
                timeout_s=TIMEOUT_S,
                environment={"GPU_FLEET_METER_FILE": METER_FILE},
                statements=_meter_statements(),
                key_id=args.key_id,
                key_arn=args.key_arn,
            ),
            self._child,
        )
        for threshold in stack.budget.thresholds:
            alarm(
                f"{name}-{threshold.kind}-{threshold.percent}",
                stack,
                metric=METRICS[threshold.kind],
                above=str(_amount(stack, threshold)),
                contact_group=self.contact_group,
                parent=self,
            )
        self.function_name = meter.function_name
        self.register_outputs({"contact_group": self.contact_group})

    def _contacts(self, stack: Stack) -> pulumi.Output[str]:
        """One contact an address. CloudMonitor mails each a link, and tells only those who follow it."""
        contacts = [
            alicloud.cms.AlarmContact(
                f"{naming.prefixed(stack.name)}-{address}",
                alarm_contact_name=_contact_name(stack, index),
                describe=f"gpu-fleet stack {stack.name}",
                channels_mail=address,
                lang="en",
                opts=self._child,
            ).alarm_contact_name
            for index, address in enumerate(stack.budget.recipients)
        ]
        group = alicloud.cms.AlarmContactGroup(
            naming.prefixed(stack.name),
            alarm_contact_group_name=naming.prefixed(stack.name),
            describe=f"Who answers for gpu-fleet stack {stack.name}",
            contacts=contacts,
            opts=self._child,
        )
        return group.alarm_contact_group_name


def _contact_name(stack: Stack, index: int) -> str:
    """A contact's name, cut to what CloudMonitor takes and kept apart by its number."""
    suffix = f"-{index + 1}"
    return naming.prefixed(stack.name)[: LONGEST_CONTACT_NAME - len(suffix)] + suffix


def _amount(stack: Stack, threshold: Threshold) -> Decimal:
    """A threshold in the budget's currency."""
    return Decimal(stack.budget.monthly) * threshold.percent / 100


def _meter_statements() -> list[policies.Statement]:
    """What the meter may do: look at machines and the bill, and say a number. RAM binds none of it."""
    return [
        policies.allow(["ecs:DescribeInstances", "ecs:DescribeDisks"], "*"),
        policies.allow(["bssapi:DescribeInstanceBill", "bssapi:QueryBillOverview"], "*"),
        policies.allow(["cms:PutCustomMetric"], "*"),
    ]


def meter_document(stack: Stack) -> dict[str, object]:
    """What the meter counts with: the pools' prices, in the budget's currency or with the rate to it."""
    known = catalog.load()
    kinds = {name: known.get(name) for pool in stack.pools for name in pool.types}
    budget = stack.budget
    return {
        "schema_version": 1,
        "region": stack.region,
        "stack": stack.name,
        "scope": str(budget.scope),
        "monthly": str(budget.monthly),
        "currency": budget.currency,
        "cny_per_usd": None if budget.cny_per_usd is None else str(budget.cny_per_usd),
        "hourly_price": {
            name: None
            if kind.price is None
            else {"amount": str(kind.price.amount_per_hour), "currency": kind.price.currency}
            for name, kind in kinds.items()
        },
    }


def bundle(stack: Stack) -> dict[str, bytes]:
    """The meter's code and data: equal settings and equal modules give equal bytes."""
    files = {path: (reaper_bundle.ROOT / path).read_bytes() for path in reaper_bundle.modules(METER_ENTRY)}
    return files | {METER_FILE: json.dumps(meter_document(stack), indent=1, sort_keys=True).encode()}
