"""Permissions that the types of an AWS stack need from their deployer, as data."""

from collections.abc import Mapping

from gpu_fleet_stacks.deployer.aws_grants import (
    AUTOSCALING_ROLE,
    BUCKET,
    BUCKET_SETTINGS,
    EC2,
    FILES,
    FIRST_TAGS,
    FUNCTION,
    GROUP,
    HERE,
    INTERFACES,
    KEYS,
    LOOK_EC2,
    LUSTRE,
    NEW,
    OBJECT,
    OBJECTS,
    OWN,
    OWN_EC2,
    PROFILE,
    ROLES,
    SERVICE_LINKED,
    builder,
    look,
    made_in_ec2,
    named,
    new,
    own,
    service_linked,
)
from gpu_fleet_stacks.deployer.grants import Grant

TABLE: Mapping[str, tuple[Grant, ...]] = {
    "aws:autoscaling/group:Group": (
        named(
            "autoscaling",
            "autoscaling:CreateAutoScalingGroup autoscaling:UpdateAutoScalingGroup "
            "autoscaling:DeleteAutoScalingGroup autoscaling:CreateOrUpdateTags autoscaling:DeleteTags "
            "autoscaling:EnableMetricsCollection autoscaling:DisableMetricsCollection "
            "autoscaling:SuspendProcesses autoscaling:ResumeProcesses autoscaling:SetDesiredCapacity "
            "autoscaling:SetInstanceProtection",
            GROUP,
        ),
        look("autoscaling:Describe*"),
        LOOK_EC2,
        # A group checks whether its caller may launch its template
        # (docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-template-permissions.html).
        new("ec2:RunInstances", f"{EC2}instance/*", f"{EC2}volume/*"),
        Grant(
            "ec2:RunInstances",
            (
                f"{EC2}network-interface/*",
                f"{EC2}capacity-reservation/*",
                "arn:{partition}:ec2:{region}::image/*",
                f"{EC2}image/*",
                "arn:{partition}:ec2:{region}::snapshot/*",
                f"{EC2}snapshot/*",
            ),
        ),
        own("ec2:RunInstances", OWN_EC2),
        Grant(
            "ec2:CreateTags",
            (f"{EC2}instance/*", f"{EC2}volume/*"),
            {"StringEquals": {"ec2:CreateAction": "RunInstances", **NEW["StringEquals"]}},
        ),
        service_linked("spot.amazonaws.com"),
        # `destroy --terminate-stopped`
        own("ec2:TerminateInstances", f"{EC2}instance/*"),
    ),
    "aws:autoscaling/lifecycleHook:LifecycleHook": (
        named("autoscaling", "autoscaling:PutLifecycleHook autoscaling:DeleteLifecycleHook", GROUP),
        look("autoscaling:Describe*"),
    ),
    "aws:budgets/budget:Budget": (
        Grant(
            "budgets:ViewBudget budgets:ModifyBudget budgets:TagResource budgets:UntagResource "
            "budgets:ListTagsForResource",
            ("arn:{partition}:budgets::{account}:budget/gpu-fleet-{stack}",),
        ),
    ),
    "aws:cloudtrail/trail:Trail": (
        named(
            "cloudtrail",
            "cloudtrail:CreateTrail cloudtrail:UpdateTrail cloudtrail:DeleteTrail cloudtrail:StartLogging "
            "cloudtrail:StopLogging cloudtrail:GetTrail cloudtrail:GetTrailStatus cloudtrail:AddTags "
            "cloudtrail:RemoveTags cloudtrail:ListTags cloudtrail:PutEventSelectors "
            "cloudtrail:GetEventSelectors cloudtrail:GetInsightSelectors",
            "trail/gpu-fleet-{stack}*",
        ),
        look("cloudtrail:DescribeTrails"),
        service_linked("cloudtrail.amazonaws.com"),
    ),
    "aws:cloudwatch/dashboard:Dashboard": (
        Grant(
            "cloudwatch:PutDashboard cloudwatch:GetDashboard cloudwatch:DeleteDashboards",
            ("arn:{partition}:cloudwatch::{account}:dashboard/gpu-fleet-{stack}",),
        ),
    ),
    "aws:cloudwatch/eventRule:EventRule": (
        named(
            "events",
            "events:PutRule events:DescribeRule events:DeleteRule events:EnableRule events:DisableRule "
            "events:TagResource events:UntagResource events:ListTagsForResource",
            "rule/gpu-fleet-{stack}-*",
        ),
    ),
    "aws:cloudwatch/eventTarget:EventTarget": (
        named(
            "events",
            "events:PutTargets events:RemoveTargets events:ListTargetsByRule",
            "rule/gpu-fleet-{stack}-*",
        ),
    ),
    "aws:cloudwatch/logGroup:LogGroup": (
        named(
            "logs",
            "logs:CreateLogGroup logs:DeleteLogGroup logs:PutRetentionPolicy logs:DeleteRetentionPolicy "
            "logs:AssociateKmsKey logs:DisassociateKmsKey logs:TagResource logs:UntagResource "
            "logs:ListTagsForResource logs:TagLogGroup logs:UntagLogGroup logs:ListTagsLogGroup",
            "log-group:/gpu-fleet/{stack}/*",
            "log-group:/aws/lambda/gpu-fleet-{stack}-*",
            "log-group:/aws/imagebuilder/gpu-fleet-{stack}*",
        ),
        look("logs:DescribeLogGroups"),
    ),
    "aws:cloudwatch/metricAlarm:MetricAlarm": (
        named(
            "cloudwatch",
            "cloudwatch:PutMetricAlarm cloudwatch:DeleteAlarms cloudwatch:TagResource "
            "cloudwatch:UntagResource cloudwatch:ListTagsForResource",
            "alarm:gpu-fleet-{stack}-*",
        ),
        look("cloudwatch:DescribeAlarms"),
    ),
    # It exists with the VPC, without a tag: it is tagged first, then changed by its tag.
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": (
        Grant(
            "ec2:CreateTags",
            (f"{EC2}security-group/*",),
            FIRST_TAGS,
        ),
        own(
            "ec2:RevokeSecurityGroupIngress ec2:RevokeSecurityGroupEgress ec2:CreateTags ec2:DeleteTags",
            OWN_EC2,
        ),
        LOOK_EC2,
    ),
    "aws:ec2/eip:Eip": made_in_ec2(
        "elastic-ip",
        "ec2:AllocateAddress",
        "ec2:ReleaseAddress ec2:AssociateAddress ec2:DisassociateAddress",
    ),
    "aws:ec2/flowLog:FlowLog": made_in_ec2("vpc-flow-log", "ec2:CreateFlowLogs", "ec2:DeleteFlowLogs"),
    "aws:ec2/internetGateway:InternetGateway": made_in_ec2(
        "internet-gateway",
        "ec2:CreateInternetGateway",
        "ec2:AttachInternetGateway ec2:DetachInternetGateway ec2:DeleteInternetGateway",
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": made_in_ec2(
        "launch-template",
        "ec2:CreateLaunchTemplate",
        "ec2:CreateLaunchTemplateVersion ec2:ModifyLaunchTemplate ec2:DeleteLaunchTemplate",
    ),
    "aws:ec2/natGateway:NatGateway": made_in_ec2(
        "natgateway", "ec2:CreateNatGateway", "ec2:DeleteNatGateway"
    ),
    "aws:ec2/networkInterface:NetworkInterface": made_in_ec2(
        "network-interface",
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface ec2:DetachNetworkInterface ec2:ModifyNetworkInterfaceAttribute "
        "ec2:AssignPrivateIpAddresses ec2:UnassignPrivateIpAddresses",
    ),
    "aws:ec2/placementGroup:PlacementGroup": made_in_ec2(
        "placement-group", "ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"
    ),
    "aws:ec2/route:Route": (own("ec2:CreateRoute ec2:ReplaceRoute ec2:DeleteRoute", OWN_EC2), LOOK_EC2),
    "aws:ec2/routeTable:RouteTable": made_in_ec2(
        "route-table",
        "ec2:CreateRouteTable",
        "ec2:DeleteRouteTable ec2:CreateRoute ec2:ReplaceRoute ec2:DeleteRoute ec2:DisassociateRouteTable",
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        own("ec2:AssociateRouteTable ec2:DisassociateRouteTable ec2:ReplaceRouteTableAssociation", OWN_EC2),
        LOOK_EC2,
    ),
    "aws:ec2/securityGroup:SecurityGroup": made_in_ec2(
        "security-group",
        "ec2:CreateSecurityGroup",
        "ec2:DeleteSecurityGroup ec2:RevokeSecurityGroupEgress ec2:RevokeSecurityGroupIngress",
    ),
    "aws:ec2/subnet:Subnet": made_in_ec2(
        "subnet", "ec2:CreateSubnet", "ec2:DeleteSubnet ec2:ModifySubnetAttribute"
    ),
    "aws:ec2/vpc:Vpc": made_in_ec2("vpc", "ec2:CreateVpc", "ec2:DeleteVpc ec2:ModifyVpcAttribute"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": made_in_ec2(
        "vpc-endpoint", "ec2:CreateVpcEndpoint", "ec2:ModifyVpcEndpoint ec2:DeleteVpcEndpoints"
    ),
    "aws:efs/backupPolicy:BackupPolicy": (
        own("elasticfilesystem:PutBackupPolicy elasticfilesystem:DescribeBackupPolicy", FILES),
        service_linked("backup.amazonaws.com"),
    ),
    "aws:efs/fileSystem:FileSystem": (
        # supports no resource, and needs TagResource too
        Grant(
            "elasticfilesystem:CreateFileSystem",
            ("*",),
            {"StringEquals": {**NEW["StringEquals"], **HERE["StringEquals"]}},
        ),
        Grant(
            "elasticfilesystem:TagResource",
            (FILES,),
            {"StringEquals": {"elasticfilesystem:CreateAction": "CreateFileSystem", **NEW["StringEquals"]}},
        ),
        own(
            "elasticfilesystem:UpdateFileSystem elasticfilesystem:DeleteFileSystem "
            "elasticfilesystem:PutLifecycleConfiguration elasticfilesystem:UpdateFileSystemProtection "
            "elasticfilesystem:TagResource elasticfilesystem:UntagResource "
            "elasticfilesystem:ListTagsForResource",
            FILES,
        ),
        look("elasticfilesystem:Describe*"),
        service_linked("elasticfilesystem.amazonaws.com"),
    ),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": (
        own(
            "elasticfilesystem:PutFileSystemPolicy elasticfilesystem:DeleteFileSystemPolicy "
            "elasticfilesystem:DescribeFileSystemPolicy",
            FILES,
        ),
    ),
    "aws:efs/mountTarget:MountTarget": (
        own(
            "elasticfilesystem:CreateMountTarget elasticfilesystem:DeleteMountTarget "
            "elasticfilesystem:ModifyMountTargetSecurityGroups",
            FILES,
        ),
        look("elasticfilesystem:Describe*"),
        *INTERFACES,
    ),
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": (
        new("fsx:CreateDataRepositoryAssociation", f"{LUSTRE}association/*"),
        Grant("fsx:TagResource", (f"{LUSTRE}association/*",), FIRST_TAGS),
        own(
            "fsx:CreateDataRepositoryAssociation fsx:UpdateDataRepositoryAssociation "
            "fsx:DeleteDataRepositoryAssociation fsx:TagResource fsx:UntagResource fsx:ListTagsForResource",
            f"{LUSTRE}association/*",
            f"{LUSTRE}file-system/*",
        ),
        look("fsx:Describe*"),
        # docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html#fsx-adding-permissions-s3
        Grant(
            "iam:CreateServiceLinkedRole iam:AttachRolePolicy iam:PutRolePolicy",
            (f"{SERVICE_LINKED}/s3.data-source.lustre.fsx.amazonaws.com/*",),
        ),
    ),
    "aws:fsx/lustreFileSystem:LustreFileSystem": (
        new("fsx:CreateFileSystem", f"{LUSTRE}file-system/*"),
        Grant("fsx:TagResource", (f"{LUSTRE}file-system/*",), FIRST_TAGS),
        own(
            "fsx:UpdateFileSystem fsx:DeleteFileSystem fsx:TagResource fsx:UntagResource "
            "fsx:ListTagsForResource",
            f"{LUSTRE}file-system/*",
        ),
        look("fsx:Describe*"),
        service_linked("fsx.amazonaws.com"),
    ),
    "aws:iam/instanceProfile:InstanceProfile": (
        Grant(
            "iam:CreateInstanceProfile iam:GetInstanceProfile iam:DeleteInstanceProfile "
            "iam:AddRoleToInstanceProfile iam:RemoveRoleFromInstanceProfile iam:TagInstanceProfile "
            "iam:UntagInstanceProfile iam:ListInstanceProfileTags",
            (PROFILE,),
        ),
    ),
    "aws:iam/role:Role": ROLES,
    "aws:iam/rolePolicy:RolePolicy": ROLES,
    "aws:iam/serviceLinkedRole:ServiceLinkedRole": (
        Grant(
            "iam:CreateServiceLinkedRole",
            (AUTOSCALING_ROLE,),
            {"StringEquals": {"iam:AWSServiceName": "autoscaling.amazonaws.com"}},
        ),
        Grant(
            "iam:GetRole iam:UpdateRoleDescription iam:DeleteServiceLinkedRole "
            "iam:GetServiceLinkedRoleDeletionStatus iam:TagRole iam:UntagRole iam:ListRoleTags",
            (AUTOSCALING_ROLE,),
        ),
        Grant(
            "iam:PassRole",
            (AUTOSCALING_ROLE,),
            {"StringEquals": {"iam:PassedToService": "autoscaling.amazonaws.com"}},
        ),
    ),
    "aws:imagebuilder/component:Component": builder(
        "component", "imagebuilder:CreateComponent imagebuilder:DeleteComponent"
    ),
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": builder(
        "distribution-configuration",
        "imagebuilder:CreateDistributionConfiguration imagebuilder:UpdateDistributionConfiguration "
        "imagebuilder:DeleteDistributionConfiguration",
    ),
    "aws:imagebuilder/imagePipeline:ImagePipeline": builder(
        "image-pipeline",
        "imagebuilder:CreateImagePipeline imagebuilder:UpdateImagePipeline imagebuilder:DeleteImagePipeline",
    ),
    "aws:imagebuilder/imageRecipe:ImageRecipe": builder(
        "image-recipe", "imagebuilder:CreateImageRecipe imagebuilder:DeleteImageRecipe"
    ),
    "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": builder(
        "infrastructure-configuration",
        "imagebuilder:CreateInfrastructureConfiguration imagebuilder:UpdateInfrastructureConfiguration "
        "imagebuilder:DeleteInfrastructureConfiguration",
    ),
    "aws:imagebuilder/lifecyclePolicy:LifecyclePolicy": builder(
        "lifecycle-policy",
        "imagebuilder:CreateLifecyclePolicy imagebuilder:UpdateLifecyclePolicy "
        "imagebuilder:DeleteLifecyclePolicy",
    ),
    "aws:imagebuilder/workflow:Workflow": builder(
        "workflow/*", "imagebuilder:CreateWorkflow imagebuilder:DeleteWorkflow"
    ),
    "aws:kms/alias:Alias": (
        named("kms", "kms:CreateAlias kms:UpdateAlias kms:DeleteAlias", "alias/gpu-fleet-{stack}"),
        own("kms:CreateAlias kms:UpdateAlias kms:DeleteAlias", KEYS),
        look("kms:ListAliases"),
    ),
    "aws:kms/key:Key": (
        # CreateKey supports no resource, and needs TagResource too.
        Grant("kms:CreateKey", ("*",), {"StringEquals": {**NEW["StringEquals"], **HERE["StringEquals"]}}),
        Grant(
            "kms:TagResource",
            (KEYS,),
            FIRST_TAGS,
        ),
        own(
            "kms:DescribeKey kms:GetKeyPolicy kms:PutKeyPolicy kms:GetKeyRotationStatus "
            "kms:EnableKeyRotation kms:DisableKeyRotation kms:UpdateKeyDescription kms:EnableKey "
            "kms:DisableKey kms:ListResourceTags kms:TagResource kms:UntagResource "
            "kms:ScheduleKeyDeletion kms:CancelKeyDeletion",
            KEYS,
        ),
        # objects, secrets and file systems are written and made under it in the caller's name
        own("kms:Decrypt kms:Encrypt kms:GenerateDataKey kms:GenerateDataKeyWithoutPlaintext", KEYS),
        Grant("kms:CreateGrant", (KEYS,), {**OWN, "Bool": {"kms:GrantIsForAWSResource": "true"}}),
    ),
    "aws:lambda/function:Function": (
        named(
            "lambda",
            "lambda:CreateFunction lambda:GetFunction lambda:GetFunctionConfiguration "
            "lambda:GetFunctionCodeSigningConfig lambda:GetRuntimeManagementConfig "
            "lambda:GetFunctionRecursionConfig lambda:ListVersionsByFunction lambda:UpdateFunctionCode "
            "lambda:UpdateFunctionConfiguration lambda:DeleteFunction lambda:PutFunctionConcurrency "
            "lambda:GetFunctionConcurrency lambda:DeleteFunctionConcurrency lambda:TagResource "
            "lambda:UntagResource lambda:ListTags",
            FUNCTION,
        ),
    ),
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig": (
        named(
            "lambda",
            "lambda:PutFunctionEventInvokeConfig lambda:UpdateFunctionEventInvokeConfig "
            "lambda:GetFunctionEventInvokeConfig lambda:DeleteFunctionEventInvokeConfig",
            FUNCTION,
        ),
    ),
    "aws:lambda/permission:Permission": (
        named("lambda", "lambda:AddPermission lambda:RemovePermission lambda:GetPolicy", FUNCTION),
    ),
    "aws:s3/bucket:Bucket": BUCKET_SETTINGS,
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": BUCKET_SETTINGS,
    "aws:s3/bucketLogging:BucketLogging": BUCKET_SETTINGS,
    "aws:s3/bucketObjectv2:BucketObjectv2": (
        Grant(
            OBJECT,
            tuple(f"arn:{{partition}}:s3:::gpu-fleet-{{stack}}-records-{{account}}/{key}" for key in OBJECTS),
        ),
    ),
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": BUCKET_SETTINGS,
    "aws:s3/bucketPolicy:BucketPolicy": BUCKET_SETTINGS,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": BUCKET_SETTINGS,
    "aws:s3/bucketReplicationConfig:BucketReplicationConfig": BUCKET_SETTINGS,
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": BUCKET_SETTINGS,
    "aws:s3/bucketVersioning:BucketVersioning": BUCKET_SETTINGS,
    "aws:scheduler/schedule:Schedule": (
        named(
            "scheduler",
            "scheduler:CreateSchedule scheduler:GetSchedule scheduler:UpdateSchedule "
            "scheduler:DeleteSchedule",
            "schedule/default/gpu-fleet-{stack}-*",
        ),
    ),
    "aws:secretsmanager/secret:Secret": (
        named(
            "secretsmanager",
            "secretsmanager:CreateSecret secretsmanager:DescribeSecret secretsmanager:UpdateSecret "
            "secretsmanager:DeleteSecret secretsmanager:GetResourcePolicy secretsmanager:TagResource "
            "secretsmanager:UntagResource",
            "secret:gpu-fleet-{stack}-*",
        ),
    ),
    "aws:sns/topic:Topic": (
        named(
            "sns",
            "sns:CreateTopic sns:DeleteTopic sns:GetTopicAttributes sns:SetTopicAttributes sns:TagResource "
            "sns:UntagResource sns:ListTagsForResource sns:GetDataProtectionPolicy",
            "gpu-fleet-{stack}-*",
        ),
    ),
    "aws:sns/topicPolicy:TopicPolicy": (
        named("sns", "sns:GetTopicAttributes sns:SetTopicAttributes", "gpu-fleet-{stack}-*"),
    ),
    "aws:sns/topicSubscription:TopicSubscription": (
        named(
            "sns",
            "sns:Subscribe sns:ListSubscriptionsByTopic",
            "gpu-fleet-{stack}-*",
        ),
        # these support no topic to be restricted to
        look("sns:GetSubscriptionAttributes sns:SetSubscriptionAttributes sns:Unsubscribe"),
    ),
    "aws:sqs/queue:Queue": (
        named(
            "sqs",
            "sqs:CreateQueue sqs:DeleteQueue sqs:GetQueueAttributes sqs:SetQueueAttributes sqs:GetQueueUrl "
            "sqs:TagQueue sqs:UntagQueue sqs:ListQueueTags",
            "gpu-fleet-{stack}-*",
        ),
    ),
    "aws:ssm/document:Document": (
        named(
            "ssm",
            "ssm:CreateDocument ssm:DescribeDocument ssm:DescribeDocumentPermission ssm:GetDocument "
            "ssm:UpdateDocument ssm:UpdateDocumentDefaultVersion ssm:DeleteDocument ssm:AddTagsToResource "
            "ssm:RemoveTagsFromResource ssm:ListTagsForResource",
            "document/gpu-fleet-{stack}-*",
        ),
    ),
    "aws:ssm/parameter:Parameter": (
        named(
            "ssm",
            "ssm:PutParameter ssm:GetParameter ssm:GetParameters ssm:GetParametersByPath "
            "ssm:DeleteParameter ssm:AddTagsToResource ssm:RemoveTagsFromResource ssm:ListTagsForResource",
            "parameter/imagebuilder/gpu-fleet-{stack}/*",
            "parameter/imagebuilder/gpu-fleet-{stack}",
        ),
        look("ssm:DescribeParameters"),
    ),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": made_in_ec2(
        "security-group-rule",
        "ec2:AuthorizeSecurityGroupEgress",
        "ec2:RevokeSecurityGroupEgress ec2:ModifySecurityGroupRules",
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": made_in_ec2(
        "security-group-rule",
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:RevokeSecurityGroupIngress ec2:ModifySecurityGroupRules",
    ),
}

# Reads of every `destroy`: the size of file systems, and the resources that the key encrypts.
DESTROY = (
    LOOK_EC2,
    look("elasticfilesystem:DescribeFileSystems fsx:DescribeBackups fsx:DescribeFileSystems"),
)

# Permissions of `destroy --delete-data` to empty buckets.
EMPTY_BUCKETS = (
    Grant("s3:ListBucketMultipartUploads", (BUCKET,), HERE),
    Grant("s3:DeleteObject s3:DeleteObjectVersion s3:AbortMultipartUpload", (f"{BUCKET}/*",)),
)
