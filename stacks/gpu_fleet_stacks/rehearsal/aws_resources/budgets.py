"""Budgets in moto."""

from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    pascal,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)


def budget(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:budgets/budget:Budget; moto accepts its subscribers but never notifies them."""
    budget_name, account_id = physical_name(name, inputs), inputs.get("accountId", clients.account_id)
    request: dict[str, Any] = {
        "BudgetName": budget_name,
        "BudgetLimit": {"Amount": inputs["limitAmount"], "Unit": inputs["limitUnit"]},
        **picked(inputs, {"TimeUnit": "timeUnit", "BudgetType": "budgetType"}),
    }
    if inputs.get("costFilters"):
        request["CostFilters"] = {part["name"]: part["values"] for part in inputs["costFilters"]}
    if "costTypes" in inputs:
        request["CostTypes"] = pascal(inputs["costTypes"])
    tags = {"ResourceTags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    clients("budgets").create_budget(
        AccountId=account_id,
        Budget=request,
        NotificationsWithSubscribers=[_notification(part) for part in inputs.get("notifications", [])],
        **tags,
    )
    arn = f"arn:{clients.partition}:budgets::{account_id}:budget/{budget_name}"
    identifier = f"{account_id}:{budget_name}"
    return identifier, with_tags_all(inputs, name=budget_name, accountId=account_id, arn=arn)


def _notification(part: Inputs) -> dict[str, Any]:
    names = api_names("notificationType comparisonOperator threshold thresholdType")
    channels = {"EMAIL": "subscriberEmailAddresses", "SNS": "subscriberSnsTopicArns"}
    return {
        "Notification": picked(part, names),
        "Subscribers": [
            {"SubscriptionType": channel, "Address": address}
            for channel, key in channels.items()
            for address in part.get(key, [])
        ],
    }


CREATORS = {"aws:budgets/budget:Budget": budget}
