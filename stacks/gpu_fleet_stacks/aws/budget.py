"""Budget of the month, and the alarms on it before and after it is passed.

AWS Budgets knows the bill, a few times a day. The sweep's meter knows hours and list prices, every few
minutes; its alarms arrive within a quarter of an hour.
"""

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core.metrics import METRIC_MONTH_COST, METRIC_MONTH_FORECAST
from gpu_fleet_image.providers.aws.notify import USER
from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import BudgetScope, BudgetSettings, Stack, Threshold, ThresholdKind

KINDS = {ThresholdKind.ACTUAL: "ACTUAL", ThresholdKind.FORECAST: "FORECASTED"}
# The meter's metrics of the whole stack, in the budget's currency.
METRICS = {ThresholdKind.ACTUAL: METRIC_MONTH_COST, ThresholdKind.FORECAST: METRIC_MONTH_FORECAST}
PERIOD_S = 60  # the value that a sweep publishes every ten minutes is evaluated at once


@dataclass(frozen=True)
class _MeterWatch:
    """A metric of the meter, and the value above which an operator must look."""

    label: str
    says: str
    metric: str
    above: float


_UNPRICED = _MeterWatch(
    "unpriced",
    "Instances of unknown price run: the cost is higher than the meter's value. Name their types in "
    "budget.assume, or terminate them",
    "UnpricedInstances",
    0,
)


@dataclass(frozen=True)
class BudgetArgs:
    """Inputs of the budget."""

    stack: Stack
    key_arn: pulumi.Output[str]


class Budget(pulumi.ComponentResource):
    """A monthly budget, and the topic of all alarms of the stack."""

    topic_arn: pulumi.Output[str]

    def __init__(self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Budget", name, None, opts)
        stack, budget = args.stack, args.stack.budget
        child = pulumi.ResourceOptions(parent=self)
        tags = naming.tags(stack.name, stack.owner)
        topic = aws.sns.Topic(
            f"{name}-alarms",
            display_name=f"gpu-fleet {stack.name}",
            kms_master_key_id=args.key_arn,
            tags=tags,
            opts=child,
        )
        policy = aws.sns.TopicPolicy(
            f"{name}-alarms", arn=topic.arn, policy=topic_policy(stack, topic.arn), opts=child
        )
        for address in budget.recipients:
            aws.sns.TopicSubscription(
                f"{name}-{address}", topic=topic.arn, protocol="email", endpoint=address, opts=child
            )
        for address, names in listeners(stack).items():
            aws.sns.TopicSubscription(
                f"{name}-user-{address}",
                topic=topic.arn,
                protocol="email",
                endpoint=address,
                filter_policy=json.dumps({USER: names}),
                filter_policy_scope="MessageAttributes",
                opts=child,
            )
        for threshold in budget.thresholds:
            self._meter_alarm(name, _meter_watch(stack, threshold), stack, topic.arn)
        self._meter_alarm(name, _UNPRICED, stack, topic.arn)
        # moto 5.2.5 knows neither a budget's tags nor its subscribers, and the provider asks on and on.
        if not stack.emulated:
            # Budgets tests the topic when a notification is created, so the policy must exist before.
            self._monthly(name, stack, topic.arn, pulumi.ResourceOptions(parent=self, depends_on=[policy]))
        self.topic_arn = topic.arn
        self.register_outputs({"topic_arn": topic.arn})

    def _meter_alarm(
        self, name: str, watch: _MeterWatch, stack: Stack, topic_arn: pulumi.Output[str]
    ) -> None:
        """Notify once the meter passes a threshold; without new data the alarm keeps its state."""
        label = f"{name}-{watch.label}"
        aws.cloudwatch.MetricAlarm(
            label,
            name=label,
            alarm_description=watch.says,
            namespace=naming.metric_namespace(stack.name),
            metric_name=watch.metric,
            statistic="Maximum",
            comparison_operator="GreaterThanThreshold",
            threshold=watch.above,
            period=PERIOD_S,
            evaluation_periods=1,
            treat_missing_data="ignore",
            alarm_actions=[topic_arn],
            tags=naming.tags(stack.name, stack.owner),
            opts=pulumi.ResourceOptions(parent=self),
        )

    @staticmethod
    def _monthly(
        name: str, stack: Stack, topic_arn: pulumi.Output[str], opts: pulumi.ResourceOptions
    ) -> None:
        budget = stack.budget
        aws.budgets.Budget(
            f"{name}-monthly",
            name=naming.prefixed(stack.name),
            account_id=stack.account_id,
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=str(budget.monthly),
            limit_unit=budget.currency,
            # usage counts, also when a credit pays for it: credits would hide all spending until they are
            # used up
            cost_types=aws.budgets.BudgetCostTypesArgs(include_credit=False, include_refund=False),
            cost_filters=[
                aws.budgets.BudgetCostFilterArgs(**cost_filter) for cost_filter in cost_filters(stack)
            ],
            notifications=[
                aws.budgets.BudgetNotificationArgs(**notification)
                for notification in notifications(budget, topic_arn)
            ],
            tags=naming.tags(stack.name, stack.owner),
            opts=opts,
        )


def listeners(stack: Stack) -> dict[str, list[str]]:
    """Return address -> the users whose notices the topic mails there, by subscriptions that each confirms.

    Empty where SES mails the users. A recipient of the budget gets every alarm already, and a topic has one
    subscription for an address.
    """
    notify = stack.notify
    if notify.sender is not None:
        return {}
    users_at: dict[str, list[str]] = {}
    for name, address in sorted(notify.users.items()):
        if address not in stack.budget.recipients:
            users_at.setdefault(address, []).append(name)
    return users_at


def _meter_watch(stack: Stack, threshold: Threshold) -> _MeterWatch:
    """Return the metric and limit to watch for a threshold of the budget."""
    metric, amount = METRICS[threshold.kind], f"{stack.budget.monthly} {stack.budget.currency}"
    return _MeterWatch(
        f"{threshold.kind}-{threshold.percent}",
        f"{metric} passed {threshold.percent} % of the budget of {amount}",
        metric,
        stack.budget.monthly * threshold.percent / 100,
    )


def cost_filters(stack: Stack) -> list[dict[str, Any]]:
    """Return the filter by the stack's tag, ``user:key$value`` in Cost Explorer; empty for the account."""
    if stack.budget.scope is BudgetScope.ACCOUNT:
        return []
    return [{"name": "TagKeyValue", "values": [f"user:{naming.PROJECT}:stack${stack.name}"]}]


def notifications(budget: BudgetSettings, topic_arn: pulumi.Input[str]) -> list[dict[str, Any]]:
    """Return one notification for each threshold, by mail and to the topic."""
    return [
        {
            "comparison_operator": "GREATER_THAN",
            "notification_type": KINDS[threshold.kind],
            "threshold": float(threshold.percent),
            "threshold_type": "PERCENTAGE",
            "subscriber_email_addresses": list(budget.recipients),
            "subscriber_sns_topic_arns": [topic_arn],
        }
        for threshold in budget.thresholds
    ]


def topic_policy(stack: Stack, topic_arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Allow only budgets and alarms of this account to publish, over TLS."""
    own = {"StringEquals": {"aws:SourceAccount": stack.account_id}}
    insecure = {"Bool": {"aws:SecureTransport": "false"}}
    publishers = {"Service": ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]}
    return policies.document(
        policies.allow("AlarmsPublish", ["sns:Publish"], topic_arn, own, publishers),
        policies.deny("TlsOnly", ["sns:Publish"], topic_arn, insecure, {"AWS": "*"}),
    )
