"""How the AWS provider deletes each resource type that stands in moto: its own calls, in its own order.

Read from terraform-provider-aws, whose code Pulumi's provider runs: the ``Delete`` function of each resource.
"""

from collections.abc import Callable, Mapping

from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.registrations import Registration

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


def delete_service_linked_role(clients: RegionClients, resource: Registration) -> None:
    """A task of IAM's own; moto has none, and knows the role as any other."""
    clients("iam").delete_role(RoleName=resource.outputs["name"])


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


def disassociate(clients: RegionClients, resource: Registration) -> None:
    """A subnet goes back to the main table."""
    clients("ec2").disassociate_route_table(AssociationId=resource.id)


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


def delete_role_policy(clients: RegionClients, resource: Registration) -> None:
    """A policy inside a role."""
    role, _, name = resource.id.partition(":")
    clients("iam").delete_role_policy(RoleName=role, PolicyName=name)


def delete_schedule(clients: RegionClients, resource: Registration) -> None:
    """Its id is ``group/name``."""
    group, _, name = resource.id.partition("/")
    clients("scheduler").delete_schedule(GroupName=group, Name=name)


def remove_target(clients: RegionClients, resource: Registration) -> None:
    """One target of a rule."""
    clients("events").remove_targets(Rule=resource.inputs["rule"], Ids=[resource.outputs["targetId"]])


DELETERS: Mapping[str, Deleter] = {
    "aws:autoscaling/group:Group": drain_and_delete,
    "aws:autoscaling/lifecycleHook:LifecycleHook": call(
        "autoscaling",
        "delete_lifecycle_hook",
        LifecycleHookName="id",
        AutoScalingGroupName="autoscalingGroupName",
    ),
    "aws:autoscaling/policy:Policy": call(
        "autoscaling", "delete_policy", PolicyName="name", AutoScalingGroupName="autoscalingGroupName"
    ),
    "aws:budgets/budget:Budget": call("budgets", "delete_budget", AccountId="accountId", BudgetName="name"),
    "aws:cloudwatch/dashboard:Dashboard": listed("cloudwatch", "delete_dashboards", "DashboardNames"),
    "aws:cloudwatch/eventRule:EventRule": call("events", "delete_rule", Name="name"),
    "aws:cloudwatch/eventTarget:EventTarget": remove_target,
    "aws:cloudwatch/logGroup:LogGroup": call("logs", "delete_log_group", logGroupName="name"),
    "aws:cloudwatch/metricAlarm:MetricAlarm": listed("cloudwatch", "delete_alarms", "AlarmNames"),
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": nothing,
    "aws:ec2/eip:Eip": call("ec2", "release_address", AllocationId="allocationId"),
    "aws:ec2/flowLog:FlowLog": listed("ec2", "delete_flow_logs", "FlowLogIds"),
    "aws:ec2/internetGateway:InternetGateway": delete_internet_gateway,
    "aws:ec2/launchTemplate:LaunchTemplate": call("ec2", "delete_launch_template", LaunchTemplateId="id"),
    "aws:ec2/natGateway:NatGateway": call("ec2", "delete_nat_gateway", NatGatewayId="id"),
    "aws:ec2/networkInterface:NetworkInterface": call(
        "ec2", "delete_network_interface", NetworkInterfaceId="id"
    ),
    "aws:ec2/route:Route": call(
        "ec2",
        "delete_route",
        RouteTableId="routeTableId",
        DestinationCidrBlock="destinationCidrBlock",
    ),
    "aws:cloudtrail/trail:Trail": call("cloudtrail", "delete_trail", Name="name"),
    "aws:ec2/routeTable:RouteTable": call("ec2", "delete_route_table", RouteTableId="id"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": disassociate,
    "aws:ec2/securityGroup:SecurityGroup": call("ec2", "delete_security_group", GroupId="id"),
    "aws:ec2/subnet:Subnet": call("ec2", "delete_subnet", SubnetId="id"),
    "aws:ec2/vpc:Vpc": call("ec2", "delete_vpc", VpcId="id"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": listed("ec2", "delete_vpc_endpoints", "VpcEndpointIds"),
    "aws:efs/fileSystem:FileSystem": call("efs", "delete_file_system", FileSystemId="id"),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": nothing,  # moto 5.2.5 knows no DeleteFileSystemPolicy
    "aws:efs/mountTarget:MountTarget": call("efs", "delete_mount_target", MountTargetId="id"),
    "aws:fsx/lustreFileSystem:LustreFileSystem": call("fsx", "delete_file_system", FileSystemId="id"),
    "aws:iam/instanceProfile:InstanceProfile": delete_instance_profile,
    "aws:iam/policy:Policy": call("iam", "delete_policy", PolicyArn="id"),
    "aws:iam/role:Role": delete_role,
    "aws:iam/rolePolicy:RolePolicy": delete_role_policy,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": call(
        "iam", "detach_role_policy", RoleName="role", PolicyArn="policyArn"
    ),
    "aws:iam/serviceLinkedRole:ServiceLinkedRole": delete_service_linked_role,
    "aws:kms/alias:Alias": call("kms", "delete_alias", AliasName="id"),
    "aws:kms/key:Key": schedule_key_deletion,
    "aws:lambda/function:Function": call("lambda", "delete_function", FunctionName="id"),
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig": call(
        "lambda", "delete_function_event_invoke_config", FunctionName="functionName"
    ),
    "aws:lambda/permission:Permission": call(
        "lambda", "remove_permission", FunctionName="function", StatementId="id"
    ),
    "aws:secretsmanager/secret:Secret": call("secretsmanager", "delete_secret", SecretId="id"),
    "aws:s3/bucket:Bucket": call("s3", "delete_bucket", Bucket="id"),
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": call(
        "s3", "delete_bucket_lifecycle", Bucket="bucket"
    ),
    "aws:s3/bucketObjectv2:BucketObjectv2": delete_every_version,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": call(
        "s3", "delete_bucket_ownership_controls", Bucket="bucket"
    ),
    "aws:s3/bucketLogging:BucketLogging": logging_off,
    "aws:s3/bucketPolicy:BucketPolicy": call("s3", "delete_bucket_policy", Bucket="bucket"),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": call(
        "s3", "delete_public_access_block", Bucket="bucket"
    ),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": call(
        "s3", "delete_bucket_encryption", Bucket="bucket"
    ),
    "aws:s3/bucketVersioning:BucketVersioning": suspend_versions,
    "aws:scheduler/schedule:Schedule": delete_schedule,
    "aws:scheduler/scheduleGroup:ScheduleGroup": call("scheduler", "delete_schedule_group", Name="id"),
    "aws:sns/topic:Topic": call("sns", "delete_topic", TopicArn="arn"),
    "aws:sns/topicPolicy:TopicPolicy": nothing,  # the topic's default policy comes back; it goes next
    "aws:sns/topicSubscription:TopicSubscription": call("sns", "unsubscribe", SubscriptionArn="id"),
    "aws:sqs/queue:Queue": call("sqs", "delete_queue", QueueUrl="url"),
    "aws:sqs/queuePolicy:QueuePolicy": nothing,  # it is deleted with its queue
    "aws:ssm/document:Document": call("ssm", "delete_document", Name="name"),
    "aws:ssm/parameter:Parameter": call("ssm", "delete_parameter", Name="name"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": revoke("egress"),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": revoke("ingress"),
}
