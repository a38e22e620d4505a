"""EventBridge rules and schedules in moto."""

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

DEFAULT_GROUP = "default"


def rule(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names("description eventBusName eventPattern roleArn scheduleExpression state")
    rule_name = physical_name(name, inputs)
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = clients("events").put_rule(Name=rule_name, **picked(inputs, names), **tags)
    return rule_name, with_tags_all(inputs, name=rule_name, arn=made["RuleArn"])


def target(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    target_id = physical_name(name, inputs, "targetId")
    names = {"Arn": "arn", "RoleArn": "roleArn", "Input": "input", "InputPath": "inputPath"}
    request: dict[str, Any] = {"Id": target_id, **picked(inputs, names)}
    if "deadLetterConfig" in inputs:
        request["DeadLetterConfig"] = pascal(inputs["deadLetterConfig"])
    bus = picked(inputs, {"EventBusName": "eventBusName"})
    clients("events").put_targets(Rule=inputs["rule"], Targets=[request], **bus)
    return f"{inputs['rule']}-{target_id}", {**inputs, "targetId": target_id}


def schedule(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names("groupName description scheduleExpression scheduleExpressionTimezone state kmsKeyArn")
    schedule_name = physical_name(name, inputs)
    made = clients("scheduler").create_schedule(
        Name=schedule_name,
        FlexibleTimeWindow=pascal(inputs["flexibleTimeWindow"]),
        Target=pascal(inputs["target"]),
        **picked(inputs, names),
    )
    outputs = {"groupName": DEFAULT_GROUP, "actionAfterCompletion": "NONE"} | inputs
    identifier = f"{outputs['groupName']}/{schedule_name}"
    return identifier, {**outputs, "name": schedule_name, "arn": made["ScheduleArn"]}


def schedule_group(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    group_name = physical_name(name, inputs)
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = clients("scheduler").create_schedule_group(Name=group_name, **tags)
    return group_name, with_tags_all(inputs, name=group_name, arn=made["ScheduleGroupArn"], state="ACTIVE")


CREATORS = {
    "aws:cloudwatch/eventRule:EventRule": rule,
    "aws:cloudwatch/eventTarget:EventTarget": target,
    "aws:scheduler/schedule:Schedule": schedule,
    "aws:scheduler/scheduleGroup:ScheduleGroup": schedule_group,
}
