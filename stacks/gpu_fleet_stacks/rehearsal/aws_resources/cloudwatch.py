"""Log groups, alarms and dashboards in moto."""

from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)

# docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html
_ALARM = api_names(
    "alarmDescription actionsEnabled alarmActions insufficientDataActions "
    "comparisonOperator datapointsToAlarm evaluationPeriods extendedStatistic metricName "
    "namespace period statistic threshold thresholdMetricId treatMissingData unit",
    OKActions="okActions",
)


def log_group(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    logs, group_name = clients("logs"), physical_name(name, inputs)
    names = {"kmsKeyId": "kmsKeyId", "tags": "tags", "logGroupClass": "logGroupClass"}
    logs.create_log_group(logGroupName=group_name, **picked(inputs, names))
    if inputs.get("retentionInDays"):
        logs.put_retention_policy(logGroupName=group_name, retentionInDays=inputs["retentionInDays"])
    arn = clients.arn("logs", f"log-group:{group_name}")
    outputs = {"logGroupClass": "STANDARD", "deletionProtectionEnabled": False} | inputs
    return group_name, with_tags_all(outputs, name=group_name, arn=arn)


def metric_alarm(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:cloudwatch/metricAlarm:MetricAlarm, of one metric or of an expression over several."""
    alarm_name = physical_name(name, inputs)
    request = {"AlarmName": alarm_name, **picked(inputs, _ALARM)}
    if "dimensions" in inputs:
        request["Dimensions"] = tag_list(inputs["dimensions"], "Name", "Value")
    if "metricQueries" in inputs:
        request["Metrics"] = [_metric_query(query) for query in inputs["metricQueries"]]
    if inputs.get("tags"):
        request["Tags"] = tag_list(inputs["tags"])
    clients("cloudwatch").put_metric_alarm(**request)
    arn = clients.arn("cloudwatch", f"alarm:{alarm_name}")
    return alarm_name, with_tags_all(inputs, name=alarm_name, arn=arn)


def _metric_query(query: Inputs) -> dict[str, Any]:
    names = api_names("id expression label period returnData accountId")
    request = picked(query, names)
    if "metric" in query:
        metric = query["metric"]
        request["MetricStat"] = {
            "Metric": {
                **picked(metric, {"Namespace": "namespace", "MetricName": "metricName"}),
                "Dimensions": tag_list(metric.get("dimensions"), "Name", "Value"),
            },
            **picked(metric, {"Period": "period", "Stat": "stat", "Unit": "unit"}),
        }
    return request


def dashboard(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:cloudwatch/dashboard:Dashboard; moto only checks that its body is JSON."""
    dashboard_name = physical_name(name, inputs, "dashboardName")
    clients("cloudwatch").put_dashboard(DashboardName=dashboard_name, DashboardBody=inputs["dashboardBody"])
    arn = f"arn:{clients.partition}:cloudwatch::{clients.account_id}:dashboard/{dashboard_name}"
    return dashboard_name, {**inputs, "dashboardName": dashboard_name, "dashboardArn": arn}


CREATORS = {
    "aws:cloudwatch/dashboard:Dashboard": dashboard,
    "aws:cloudwatch/logGroup:LogGroup": log_group,
    "aws:cloudwatch/metricAlarm:MetricAlarm": metric_alarm,
}
