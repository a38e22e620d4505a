"""How the AWS provider deletes each resource type that stands in moto: its own calls, in its own order.

Read from terraform-provider-aws, whose code Pulumi's provider runs: the ``Delete`` function of each resource.
"""

from collections.abc import Callable, Mapping

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.registrations import Registration
from tests.stacks.rehearsal.examples import token

Deleter = Callable[[RegionClients, Registration], None]


def call(service: str, operation: str, **parameters: str) -> Deleter:
    """One call; each parameter names an output of the resource, or ``id``."""

    def delete(clients: RegionClients, resource: Registration) -> None:
        known = {**resource.inputs, **resource.outputs, "id": resource.id}
        getattr(clients(service), operation)(**{name: known[key] for name, key in parameters.items()})

    return delete


def nothing(_: RegionClients, __: Registration) -> None:
    """The provider only forgets it."""


def suspend_versions(clients: RegionClients, resource: Registration) -> None:
    """Versions cannot be switched off again: the provider suspends them."""
    suspended = {"Status": "Suspended"}
    clients("s3").put_bucket_versioning(Bucket=resource.id, VersioningConfiguration=suspended)


def delete_every_version(clients: RegionClients, resource: Registration) -> None:
    """aws:s3/bucketObjectv2: all versions of the key."""
    s3, bucket, key = clients("s3"), resource.inputs["bucket"], resource.inputs["key"]
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
        for version in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
            if version["Key"] == key:
                s3.delete_object(Bucket=bucket, Key=key, VersionId=version["VersionId"])


def logging_off(clients: RegionClients, resource: Registration) -> None:
    """aws:s3/bucketLogging: an empty status."""
    clients("s3").put_bucket_logging(Bucket=resource.inputs["bucket"], BucketLoggingStatus={})


def schedule_key_deletion(clients: RegionClients, resource: Registration) -> None:
    """A key waits for days before it is gone, and cannot be used meanwhile."""
    days = resource.inputs.get("deletionWindowInDays", 30)
    clients("kms").schedule_key_deletion(KeyId=resource.id, PendingWindowInDays=days)


def drain_and_delete(clients: RegionClients, resource: Registration) -> None:
    """The provider empties a group, protected instances included, and deletes it when they are gone."""
    autoscaling, name = clients("autoscaling"), resource.id
    autoscaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, MaxSize=0, DesiredCapacity=0)
    autoscaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)


def delete_role(clients: RegionClients, resource: Registration) -> None:
    """With whatever is still attached to it."""
    iam, name = clients("iam"), resource.id
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for policy_name in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy_name)
    iam.delete_role(RoleName=name)


def delete_instance_profile(clients: RegionClients, resource: Registration) -> None:
    """Empty first: IAM refuses a profile with a role."""
    iam, name = clients("iam"), resource.id
    for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def delete_internet_gateway(clients: RegionClients, resource: Registration) -> None:
    """Detached from its network first."""
    ec2 = clients("ec2")
    ec2.detach_internet_gateway(InternetGatewayId=resource.id, VpcId=resource.inputs["vpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=resource.id)


def revoke(direction: str) -> Deleter:
    """One rule of a security group, by its id."""

    def delete(clients: RegionClients, resource: Registration) -> None:
        act = getattr(clients("ec2"), f"revoke_security_group_{direction}")
        act(GroupId=resource.inputs["securityGroupId"], SecurityGroupRuleIds=[resource.id])

    return delete


def listed(service: str, operation: str, parameter: str) -> Deleter:
    """One call that takes a list of ids."""

    def delete(clients: RegionClients, resource: Registration) -> None:
        getattr(clients(service), operation)(**{parameter: [resource.id]})

    return delete


def delete_schedule(clients: RegionClients, resource: Registration) -> None:
    """Its id is ``group/name``."""
    group, _, name = resource.id.partition("/")
    clients("scheduler").delete_schedule(GroupName=group, Name=name)


def remove_target(clients: RegionClients, resource: Registration) -> None:
    """One target of a rule."""
    clients("events").remove_targets(Rule=resource.inputs["rule"], Ids=[resource.outputs["targetId"]])


_DELETERS: dict[str, Deleter] = {
    "autoscaling/group": drain_and_delete,
    "autoscaling/lifecycleHook": call(
        "autoscaling",
        "delete_lifecycle_hook",
        LifecycleHookName="id",
        AutoScalingGroupName="autoscalingGroupName",
    ),
    "autoscaling/policy": call(
        "autoscaling", "delete_policy", PolicyName="name", AutoScalingGroupName="autoscalingGroupName"
    ),
    "budgets/budget": call("budgets", "delete_budget", AccountId="accountId", BudgetName="name"),
    "cloudwatch/dashboard": listed("cloudwatch", "delete_dashboards", "DashboardNames"),
    "cloudwatch/eventRule": call("events", "delete_rule", Name="name"),
    "cloudwatch/eventTarget": remove_target,
    "cloudwatch/logGroup": call("logs", "delete_log_group", logGroupName="name"),
    "cloudwatch/metricAlarm": listed("cloudwatch", "delete_alarms", "AlarmNames"),
    "ec2/defaultSecurityGroup": nothing,
    "ec2/eip": call("ec2", "release_address", AllocationId="allocationId"),
    "ec2/flowLog": listed("ec2", "delete_flow_logs", "FlowLogIds"),
    "ec2/internetGateway": delete_internet_gateway,
    "ec2/launchTemplate": call("ec2", "delete_launch_template", LaunchTemplateId="id"),
    "ec2/natGateway": call("ec2", "delete_nat_gateway", NatGatewayId="id"),
    "ec2/networkInterface": call("ec2", "delete_network_interface", NetworkInterfaceId="id"),
    "ec2/route": call(
        "ec2", "delete_route", RouteTableId="routeTableId", DestinationCidrBlock="destinationCidrBlock"
    ),
    "cloudtrail/trail": call("cloudtrail", "delete_trail", Name="name"),
    "ec2/routeTable": call("ec2", "delete_route_table", RouteTableId="id"),
    "ec2/routeTableAssociation": call("ec2", "disassociate_route_table", AssociationId="id"),
    "ec2/securityGroup": call("ec2", "delete_security_group", GroupId="id"),
    "ec2/subnet": call("ec2", "delete_subnet", SubnetId="id"),
    "ec2/vpc": call("ec2", "delete_vpc", VpcId="id"),
    "ec2/vpcEndpoint": listed("ec2", "delete_vpc_endpoints", "VpcEndpointIds"),
    "efs/fileSystem": call("efs", "delete_file_system", FileSystemId="id"),
    "efs/fileSystemPolicy": nothing,  # moto 5.2.5 knows no DeleteFileSystemPolicy
    "efs/mountTarget": call("efs", "delete_mount_target", MountTargetId="id"),
    "fsx/lustreFileSystem": call("fsx", "delete_file_system", FileSystemId="id"),
    "iam/instanceProfile": delete_instance_profile,
    "iam/policy": call("iam", "delete_policy", PolicyArn="id"),
    "iam/role": delete_role,
    "iam/rolePolicy": call("iam", "delete_role_policy", RoleName="role", PolicyName="name"),
    "iam/rolePolicyAttachment": call("iam", "detach_role_policy", RoleName="role", PolicyArn="policyArn"),
    "iam/serviceLinkedRole": call("iam", "delete_role", RoleName="name"),
    "kms/alias": call("kms", "delete_alias", AliasName="id"),
    "kms/key": schedule_key_deletion,
    "lambda/function": call("lambda", "delete_function", FunctionName="id"),
    "lambda/functionEventInvokeConfig": call(
        "lambda", "delete_function_event_invoke_config", FunctionName="functionName"
    ),
    "lambda/permission": call("lambda", "remove_permission", FunctionName="function", StatementId="id"),
    "secretsmanager/secret": call("secretsmanager", "delete_secret", SecretId="id"),
    "s3/bucket": call("s3", "delete_bucket", Bucket="id"),
    "s3/bucketLifecycleConfiguration": call("s3", "delete_bucket_lifecycle", Bucket="bucket"),
    "s3/bucketObjectv2": delete_every_version,
    "s3/bucketOwnershipControls": call("s3", "delete_bucket_ownership_controls", Bucket="bucket"),
    "s3/bucketLogging": logging_off,
    "s3/bucketPolicy": call("s3", "delete_bucket_policy", Bucket="bucket"),
    "s3/bucketPublicAccessBlock": call("s3", "delete_public_access_block", Bucket="bucket"),
    "s3/bucketReplicationConfig": call("s3", "delete_bucket_replication", Bucket="bucket"),
    "s3/bucketServerSideEncryptionConfiguration": call("s3", "delete_bucket_encryption", Bucket="bucket"),
    "s3/bucketVersioning": suspend_versions,
    "scheduler/schedule": delete_schedule,
    "scheduler/scheduleGroup": call("scheduler", "delete_schedule_group", Name="id"),
    "sns/topic": call("sns", "delete_topic", TopicArn="arn"),
    "sns/topicPolicy": nothing,  # the topic's default policy comes back; it goes next
    "sns/topicSubscription": call("sns", "unsubscribe", SubscriptionArn="id"),
    "sqs/queue": call("sqs", "delete_queue", QueueUrl="url"),
    "sqs/queuePolicy": nothing,  # it is deleted with its queue
    "ssm/document": call("ssm", "delete_document", Name="name"),
    "ssm/parameter": call("ssm", "delete_parameter", Name="name"),
    "vpc/securityGroupEgressRule": revoke("egress"),
    "vpc/securityGroupIngressRule": revoke("ingress"),
}
DELETERS: Mapping[str, Deleter] = {token(kind): deleter for kind, deleter in _DELETERS.items()}
