"""Auto Scaling groups in moto, which launch instances there, with their policies and hooks."""

from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import Created, Inputs, api_names, pascal, physical_name, picked

# docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CreateAutoScalingGroup.html
_GROUP = api_names(
    "minSize maxSize desiredCapacity defaultCooldown defaultInstanceWarmup "
    "availabilityZones healthCheckType healthCheckGracePeriod placementGroup "
    "terminationPolicies maxInstanceLifetime capacityRebalance",
    NewInstancesProtectedFromScaleIn="protectFromScaleIn",
    ServiceLinkedRoleARN="serviceLinkedRoleArn",
)


def group(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:autoscaling/group:Group.

    moto launches every instance in the first subnet and as the first type, whatever the policy says.
    """
    autoscaling, group_name = clients("autoscaling"), physical_name(name, inputs)
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=group_name,
        Tags=[_tag(group_name, tag) for tag in inputs.get("tags", [])],
        **picked(inputs, _GROUP),
        **_subnets(inputs),
        **_launch(inputs),
    )
    if inputs.get("suspendedProcesses"):
        autoscaling.suspend_processes(
            AutoScalingGroupName=group_name, ScalingProcesses=inputs["suspendedProcesses"]
        )
    if inputs.get("enabledMetrics"):
        granularity = inputs.get("metricsGranularity", "1Minute")
        autoscaling.enable_metrics_collection(
            AutoScalingGroupName=group_name, Metrics=inputs["enabledMetrics"], Granularity=granularity
        )
    made = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group_name])["AutoScalingGroups"][
        0
    ]
    computed = {
        "arn": made["AutoScalingGroupARN"],
        "name": group_name,
        "availabilityZones": made["AvailabilityZones"],
        "defaultCooldown": made["DefaultCooldown"],
        "desiredCapacity": made["DesiredCapacity"],
        "healthCheckType": made["HealthCheckType"],
        "predictedCapacity": 0,
        "warmPoolSize": 0,
    }
    return group_name, {"serviceLinkedRoleArn": made["ServiceLinkedRoleARN"], **inputs, **computed}


def _tag(group_name: str, tag: Inputs) -> dict[str, Any]:
    return {**pascal(tag), "ResourceId": group_name, "ResourceType": "auto-scaling-group"}


def _subnets(inputs: Inputs) -> dict[str, Any]:
    subnets = inputs.get("vpcZoneIdentifiers")
    return {"VPCZoneIdentifier": ",".join(subnets)} if subnets else {}


def _launch(inputs: Inputs) -> dict[str, Any]:
    """Return one template, or a policy that mixes types and markets."""
    if "mixedInstancesPolicy" in inputs:
        return {"MixedInstancesPolicy": pascal(inputs["mixedInstancesPolicy"])}
    names = {"LaunchTemplateId": "id", "LaunchTemplateName": "name", "Version": "version"}
    return {"LaunchTemplate": picked(inputs["launchTemplate"], names)}


def policy(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names(
        "policyType adjustmentType scalingAdjustment minAdjustmentMagnitude cooldown "
        "estimatedInstanceWarmup metricAggregationType enabled",
        AutoScalingGroupName="autoscalingGroupName",
    )
    policy_name = physical_name(name, inputs)
    nested = {
        "StepAdjustments": "stepAdjustments",
        "TargetTrackingConfiguration": "targetTrackingConfiguration",
    }
    autoscaling, group_name = clients("autoscaling"), inputs["autoscalingGroupName"]
    autoscaling.put_scaling_policy(
        PolicyName=policy_name, **picked(inputs, names), **pascal(picked(inputs, nested))
    )
    # moto's answer to the call above misspells the ARN's key, so the ARN is read again
    made = autoscaling.describe_policies(AutoScalingGroupName=group_name, PolicyNames=[policy_name])
    return policy_name, {**inputs, "name": policy_name, "arn": made["ScalingPolicies"][0]["PolicyARN"]}


def lifecycle_hook(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names(
        "lifecycleTransition heartbeatTimeout defaultResult notificationMetadata",
        AutoScalingGroupName="autoscalingGroupName",
        NotificationTargetARN="notificationTargetArn",
        RoleARN="roleArn",
    )
    hook_name = physical_name(name, inputs)
    clients("autoscaling").put_lifecycle_hook(LifecycleHookName=hook_name, **picked(inputs, names))
    return hook_name, {"defaultResult": "ABANDON", **inputs, "name": hook_name}


CREATORS = {
    "aws:autoscaling/group:Group": group,
    "aws:autoscaling/policy:Policy": policy,
    "aws:autoscaling/lifecycleHook:LifecycleHook": lifecycle_hook,
}
