"""Permissions that the types of an Alibaba Cloud stack need from their deployer. Data.

RAM names an action after the API's call. Names restrict a bucket, a role, a policy, a function and a log
project to the stack. The resource's tag ``gpu-fleet:stack`` restricts deletions and limits in ECS, VPC and
Auto Scaling. Creations there are restricted to region and account only: the provider tags many types by a
second call. CloudMonitor has no resources, and reads are open.
"""

from collections.abc import Mapping

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.deployer.grants import Grant

OWN: Mapping[str, Mapping[str, str]] = {"StringEquals": {"acs:ResourceTag/gpu-fleet:stack": "{stack}"}}


def look(actions: str) -> Grant:
    """Return a grant of actions that only read."""
    return Grant(actions)


def here(service: str, actions: str, *kinds: str) -> Grant:
    """Return a grant on all resources of some types in the stack's region and account."""
    return Grant(actions, tuple(f"acs:{service}:{{region}}:{{account}}:{kind}/*" for kind in kinds))


def own(service: str, actions: str, *kinds: str) -> Grant:
    """Return a grant on the resources of some types that have the stack's tag."""
    return Grant(actions, here(service, actions, *kinds).resources, OWN)


def service_linked(*services: str) -> Grant:
    """Allow a service to create its own role with the first resource in an account."""
    return Grant(
        "ram:CreateServiceLinkedRole",
        ("acs:ram:*:{account}:role/*",),
        {"StringEquals": {"ram:ServiceName": services}},
    )


LOOK_ECS = look("ecs:Describe* ecs:List*")
LOOK_VPC = look("vpc:Describe* vpc:List* vpc:Get*")
LOOK_ESS = look("ess:Describe* ess:List*")
TAG_ECS = "ecs:TagResources ecs:UntagResources"
TAG_VPC = "vpc:TagResources vpc:UnTagResources"

BUCKET = "acs:oss:*:{account}:gpu-fleet-{stack}-*-{account}"
BUCKETS = (
    Grant(
        "oss:PutBucket oss:DeleteBucket oss:GetBucket* oss:ListObjects oss:ListObjectVersions "
        "oss:PutBucketAcl oss:PutBucketEncryption oss:DeleteBucketEncryption oss:PutBucketVersioning "
        "oss:PutBucketLifecycle oss:DeleteBucketLifecycle oss:PutBucketLogging oss:DeleteBucketLogging "
        "oss:PutBucketTagging oss:DeleteBucketTagging oss:PutBucketPolicy oss:DeleteBucketPolicy "
        "oss:PutBucketHttpsConfig oss:PutBucketPublicAccessBlock oss:DeleteBucketPublicAccessBlock",
        (BUCKET,),
    ),
    look("oss:ListBuckets"),
)
OBJECTS = ("image/*", keys.stored(keys.POLICY), keys.stored(keys.ACCOUNTS), keys.stored(keys.ROSTER))

MONITOR_ALARM = Grant(
    "cms:PutResourceMetricRule cms:DeleteMetricRules cms:EnableMetricRules cms:DisableMetricRules "
    "cms:AddTags cms:RemoveTags cms:Describe*"
)
GROUPS = ("scalinggroup", "scalingconfiguration", "scalingrule", "alarm")
ROUTES = here(
    "vpc", "vpc:CreateRouteEntry vpc:DeleteRouteEntry vpc:DeleteRouteEntries", "routetable", "vrouter"
)
ROLES = ("acs:ram:*:{account}:role/gpu-fleet-{stack}-*",)
POLICIES = ("acs:ram:*:{account}:policy/gpu-fleet-{stack}-*",)
FUNCTIONS = ("acs:fc:{region}:{account}:functions/gpu-fleet-{stack}-*",)
PROJECT = "acs:log:{region}:{account}:project/gpu-fleet-{stack}-*"
KEYS = ("acs:kms:{region}:{account}:key/*", "acs:kms:{region}:{account}:key")
# An alias is authorised with its key.
ALIASES = ("acs:kms:{region}:{account}:alias/gpu-fleet-{stack}", "acs:kms:{region}:{account}:alias")

TABLE: Mapping[str, tuple[Grant, ...]] = {
    "alicloud:cms/alarm:Alarm": (MONITOR_ALARM,),
    "alicloud:cms/alarmContact:AlarmContact": (Grant("cms:PutContact cms:DeleteContact cms:Describe*"),),
    "alicloud:cms/alarmContactGroup:AlarmContactGroup": (
        Grant("cms:PutContactGroup cms:DeleteContactGroup cms:Describe*"),
    ),
    "alicloud:cms/monitorGroup:MonitorGroup": (
        Grant(
            "cms:CreateMonitorGroup cms:ModifyMonitorGroup cms:DeleteMonitorGroup cms:AddTags cms:RemoveTags "
            # the first `up` reports a first value of each metric:
            # stacks/gpu_fleet_stacks/plan_check/first_values.py
            "cms:PutCustomMetric cms:Describe*"
        ),
    ),
    "alicloud:ecs/command:Command": (
        here("ecs", "ecs:CreateCommand ecs:ModifyCommand ecs:DeleteCommand", "command"),
        LOOK_ECS,
    ),
    "alicloud:ecs/ecsImageComponent:EcsImageComponent": (
        here("ecs", f"ecs:CreateImageComponent ecs:DeleteImageComponent {TAG_ECS}", "imagecomponent"),
        LOOK_ECS,
    ),
    "alicloud:ecs/ecsImagePipeline:EcsImagePipeline": (
        here(
            "ecs",
            f"ecs:CreateImagePipeline ecs:ModifyImagePipeline ecs:DeleteImagePipeline {TAG_ECS}",
            "imagepipeline",
        ),
        LOOK_ECS,
    ),
    "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate": (
        here("ecs", f"ecs:CreateLaunchTemplate {TAG_ECS}", "launchtemplate"),
        own(
            "ecs",
            "ecs:CreateLaunchTemplateVersion ecs:DeleteLaunchTemplateVersion "
            "ecs:ModifyLaunchTemplateDefaultVersion ecs:DeleteLaunchTemplate",
            "launchtemplate",
        ),
        LOOK_ECS,
    ),
    "alicloud:ecs/eipAddress:EipAddress": (
        here("vpc", f"vpc:AllocateEipAddress {TAG_VPC}", "eip"),
        own("vpc", "vpc:ModifyEipAddressAttribute vpc:ReleaseEipAddress", "eip"),
        LOOK_VPC,
    ),
    "alicloud:ecs/eipAssociation:EipAssociation": (
        own("vpc", "vpc:AssociateEipAddress vpc:UnassociateEipAddress", "eip", "natgateway"),
        LOOK_VPC,
    ),
    "alicloud:ecs/imageImport:ImageImport": (
        here("ecs", "ecs:ImportImage ecs:ModifyImageAttribute ecs:DeleteImage ecs:CancelTask", "image"),
        LOOK_ECS,
    ),
    "alicloud:ecs/instance:Instance": (
        here("ecs", "ecs:RunInstances", "instance", "image", "securitygroup", "vswitch", "snapshot"),
        here("ecs", TAG_ECS, "instance", "disk"),
        here("vpc", "vpc:DescribeVSwitches", "vswitch"),
        own(
            "ecs",
            "ecs:ModifyInstanceAttribute ecs:ModifyInstanceMetadataOptions ecs:AttachInstanceRamRole "
            "ecs:DetachInstanceRamRole ecs:JoinSecurityGroup ecs:LeaveSecurityGroup ecs:StartInstance "
            "ecs:StopInstance ecs:DeleteInstance",
            "instance",
        ),
        LOOK_ECS,
    ),
    "alicloud:ecs/securityGroup:SecurityGroup": (
        here("ecs", f"ecs:CreateSecurityGroup {TAG_ECS}", "securitygroup"),
        own(
            "ecs",
            "ecs:ModifySecurityGroupAttribute ecs:ModifySecurityGroupPolicy ecs:DeleteSecurityGroup",
            "securitygroup",
        ),
        LOOK_ECS,
    ),
    "alicloud:ecs/securityGroupRule:SecurityGroupRule": (
        own(
            "ecs",
            "ecs:AuthorizeSecurityGroup ecs:AuthorizeSecurityGroupEgress ecs:RevokeSecurityGroup "
            "ecs:RevokeSecurityGroupEgress ecs:ModifySecurityGroupRule ecs:ModifySecurityGroupEgressRule",
            "securitygroup",
        ),
        LOOK_ECS,
    ),
    "alicloud:ess/alarm:Alarm": (
        here(
            "ess",
            "ess:CreateAlarm ess:ModifyAlarm ess:DeleteAlarm ess:EnableAlarm ess:DisableAlarm",
            *GROUPS,
        ),
        LOOK_ESS,
    ),
    "alicloud:ess/lifecycleHook:LifecycleHook": (
        own(
            "ess",
            "ess:CreateLifecycleHook ess:ModifyLifecycleHook ess:DeleteLifecycleHook",
            "scalinggroup",
        ),
        LOOK_ESS,
    ),
    "alicloud:ess/scalingConfiguration:ScalingConfiguration": (
        here(
            "ess",
            "ess:CreateScalingConfiguration ess:ModifyScalingConfiguration ess:DeleteScalingConfiguration",
            *GROUPS,
        ),
        LOOK_ESS,
    ),
    "alicloud:ess/scalingGroup:ScalingGroup": (
        here("ess", "ess:CreateScalingGroup ess:TagResources ess:UntagResources", "scalinggroup"),
        own(
            "ess",
            "ess:ModifyScalingGroup ess:EnableScalingGroup ess:DisableScalingGroup ess:DeleteScalingGroup "
            "ess:SetGroupDeletionProtection ess:SetInstancesProtection",
            "scalinggroup",
        ),
        LOOK_ESS,
        LOOK_ECS,
        # `destroy --terminate-stopped`
        own("ecs", "ecs:DeleteInstances", "instance"),
    ),
    "alicloud:ess/scalingRule:ScalingRule": (
        here("ess", "ess:CreateScalingRule ess:ModifyScalingRule ess:DeleteScalingRule", *GROUPS),
        LOOK_ESS,
    ),
    "alicloud:ess/suspendProcess:SuspendProcess": (
        own("ess", "ess:SuspendProcesses ess:ResumeProcesses", "scalinggroup"),
        LOOK_ESS,
    ),
    "alicloud:fc/v3ConcurrencyConfig:V3ConcurrencyConfig": (
        Grant("fc:PutConcurrencyConfig fc:GetConcurrencyConfig fc:DeleteConcurrencyConfig", FUNCTIONS),
    ),
    "alicloud:fc/v3Function:V3Function": (
        Grant("fc:CreateFunction fc:GetFunction fc:UpdateFunction fc:DeleteFunction", FUNCTIONS),
        Grant("fc:TagResources fc:UntagResources fc:ListTagResources", FUNCTIONS),
    ),
    "alicloud:fc/v3Trigger:V3Trigger": (
        Grant(
            "fc:CreateTrigger fc:GetTrigger fc:UpdateTrigger fc:DeleteTrigger",
            (*FUNCTIONS, f"{FUNCTIONS[0]}/triggers/*"),
        ),
    ),
    "alicloud:kms/alias:Alias": (
        Grant("kms:CreateAlias kms:UpdateAlias kms:DeleteAlias", (*ALIASES, *KEYS)),
        look("kms:ListAliases"),
    ),
    "alicloud:kms/key:Key": (
        Grant(
            "kms:CreateKey kms:DescribeKey kms:UpdateKeyDescription kms:UpdateRotationPolicy kms:EnableKey "
            "kms:DisableKey kms:SetDeletionProtection kms:GetKeyPolicy kms:SetKeyPolicy kms:TagResource "
            "kms:UntagResource kms:TagResources kms:UntagResources kms:ListResourceTags "
            "kms:ListTagResources kms:ScheduleKeyDeletion kms:CancelKeyDeletion",
            KEYS,
        ),
        # objects are written under it in the caller's name
        Grant("kms:Decrypt kms:Encrypt kms:GenerateDataKey", KEYS),
    ),
    "alicloud:kms/secret:Secret": (
        Grant(
            "kms:CreateSecret kms:DescribeSecret kms:UpdateSecret kms:DeleteSecret kms:TagResource "
            "kms:UntagResource kms:ListResourceTags kms:ListSecretVersionIds kms:PutSecretValue "
            "kms:GetSecretValue",
            (
                "acs:kms:{region}:{account}:secret/gpu-fleet-{stack}-*",
                "acs:kms:{region}:{account}:secret",
            ),
        ),
    ),
    "alicloud:log/project:Project": (
        Grant(
            "log:CreateProject log:GetProject log:UpdateProject log:DeleteProject log:TagResources "
            "log:UntagResources log:ListTagResources log:GetProjectPolicy",
            (PROJECT, "acs:log:{region}:{account}:project/*/tag/*"),
        ),
    ),
    "alicloud:log/store:Store": (
        Grant(
            "log:CreateLogStore log:GetLogStore log:UpdateLogStore log:DeleteLogStore log:ListShards "
            "log:GetLogStoreMeteringMode log:UpdateLogStoreMeteringMode",
            (f"{PROJECT}/logstore/*",),
        ),
    ),
    # www.alibabacloud.com/help/en/sls/developer-reference/api-sls-2020-12-30-createindex
    "alicloud:log/storeIndex:StoreIndex": (
        Grant(
            "log:CreateIndex log:GetIndex log:UpdateIndex log:DeleteIndex",
            (f"{PROJECT}/logstore/*",),
        ),
    ),
    "alicloud:nas/accessGroup:AccessGroup": (
        here("nas", "nas:CreateAccessGroup nas:ModifyAccessGroup nas:DeleteAccessGroup", "accessgroup"),
        look("nas:Describe* nas:List*"),
    ),
    "alicloud:nas/accessRule:AccessRule": (
        here("nas", "nas:CreateAccessRule nas:ModifyAccessRule nas:DeleteAccessRule", "accessgroup"),
        look("nas:Describe* nas:List*"),
    ),
    "alicloud:nas/fileSystem:FileSystem": (
        here(
            "nas",
            "nas:CreateFileSystem nas:ModifyFileSystem nas:UpgradeFileSystem nas:DeleteFileSystem "
            "nas:TagResources nas:UntagResources nas:EnableRecycleBin nas:GetRecycleBinAttribute",
            "filesystem",
        ),
        look("nas:Describe* nas:List*"),
        LOOK_VPC,
        service_linked("extreme.nas.aliyuncs.com", "encryption.nas.aliyuncs.com"),
    ),
    "alicloud:nas/mountTarget:MountTarget": (
        here("nas", "nas:CreateMountTarget nas:ModifyMountTarget nas:DeleteMountTarget", "filesystem"),
        look("nas:Describe* nas:List*"),
        LOOK_VPC,
    ),
    "alicloud:oss/bucket:Bucket": BUCKETS,
    "alicloud:oss/bucketAcl:BucketAcl": BUCKETS,
    "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig": BUCKETS,
    "alicloud:oss/bucketObject:BucketObject": (
        Grant(
            "oss:PutObject oss:GetObject oss:DeleteObject oss:GetObjectAcl oss:PutObjectAcl "
            "oss:AbortMultipartUpload oss:ListParts",
            tuple(f"acs:oss:*:{{account}}:gpu-fleet-{{stack}}-records-{{account}}/{key}" for key in OBJECTS),
        ),
    ),
    "alicloud:oss/bucketPolicy:BucketPolicy": BUCKETS,
    "alicloud:oss/bucketReplication:BucketReplication": (
        Grant("oss:PutBucketReplication oss:DeleteBucketReplication", (BUCKET,)),
    ),
    "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock": BUCKETS,
    "alicloud:privatelink/vpcEndpoint:VpcEndpoint": (
        here(
            "privatelink",
            "privatelink:CreateVpcEndpoint privatelink:UpdateVpcEndpointAttribute "
            "privatelink:DeleteVpcEndpoint privatelink:AttachSecurityGroupToVpcEndpoint "
            "privatelink:DetachSecurityGroupFromVpcEndpoint privatelink:TagResources "
            "privatelink:UntagResources",
            "vpcendpoint",
        ),
        look("privatelink:Get* privatelink:List*"),
        LOOK_VPC,
        LOOK_ECS,
        service_linked("privatelink.aliyuncs.com"),
    ),
    "alicloud:privatelink/vpcEndpointZone:VpcEndpointZone": (
        here(
            "privatelink",
            "privatelink:AddZoneToVpcEndpoint privatelink:RemoveZoneFromVpcEndpoint",
            "vpcendpoint",
        ),
        look("privatelink:Get* privatelink:List*"),
    ),
    "alicloud:ram/policy:Policy": (
        Grant(
            "ram:CreatePolicy ram:GetPolicy ram:DeletePolicy ram:CreatePolicyVersion ram:GetPolicyVersion "
            "ram:DeletePolicyVersion ram:ListPolicyVersions ram:SetDefaultPolicyVersion "
            "ram:UpdatePolicyDescription ram:ListEntitiesForPolicy ram:TagResources ram:UntagResources "
            "ram:ListTagResources",
            POLICIES,
        ),
        # `force` detaches a policy from its roles before it is deleted
        Grant("ram:DetachPolicyFromRole", (*ROLES, *POLICIES)),
    ),
    "alicloud:ram/role:Role": (
        Grant(
            "ram:CreateRole ram:GetRole ram:UpdateRole ram:DeleteRole ram:ListPoliciesForRole "
            "ram:TagResources ram:UntagResources ram:ListTagResources",
            ROLES,
        ),
        Grant("ram:DetachPolicyFromRole", (*ROLES, *POLICIES)),
    ),
    "alicloud:ram/rolePolicyAttachment:RolePolicyAttachment": (
        # on both, so that only the stack's policies can be attached to its roles
        Grant("ram:AttachPolicyToRole ram:DetachPolicyFromRole", (*ROLES, *POLICIES)),
        Grant("ram:ListPoliciesForRole", ROLES),
    ),
    "alicloud:vpc/flowLog:FlowLog": (
        here(
            "vpc",
            "vpc:CreateFlowLog vpc:ModifyFlowLogAttribute vpc:ActiveFlowLog vpc:DeactiveFlowLog "
            f"vpc:DeleteFlowLog {TAG_VPC}",
            "flowlog",
            "vpc",
        ),
        LOOK_VPC,
    ),
    "alicloud:vpc/gatewayEndpoint:GatewayEndpoint": (
        here(
            "vpc",
            "vpc:CreateVpcGatewayEndpoint vpc:UpdateVpcGatewayEndpointAttribute "
            "vpc:DeleteVpcGatewayEndpoint vpc:AssociateRouteTablesWithVpcGatewayEndpoint "
            f"vpc:DissociateRouteTablesFromVpcGatewayEndpoint {TAG_VPC}",
            "gatewayendpoint",
            "vpc",
            "routetable",
        ),
        LOOK_VPC,
    ),
    "alicloud:vpc/natGateway:NatGateway": (
        here("vpc", f"vpc:CreateNatGateway {TAG_VPC}", "natgateway", "vpc", "vswitch"),
        own(
            "vpc",
            "vpc:ModifyNatGatewayAttribute vpc:DeletionProtection vpc:DeleteNatGateway",
            "natgateway",
        ),
        LOOK_VPC,
        service_linked("nat.aliyuncs.com"),
    ),
    "alicloud:vpc/network:Network": (
        here("vpc", f"vpc:CreateVpc {TAG_VPC}", "vpc"),
        own("vpc", "vpc:ModifyVpcAttribute vpc:DeleteVpc", "vpc"),
        LOOK_VPC,
    ),
    "alicloud:vpc/routeEntry:RouteEntry": (ROUTES, LOOK_VPC),
    "alicloud:vpc/routeTable:RouteTable": (
        here("vpc", f"vpc:CreateRouteTable {TAG_VPC}", "routetable", "vpc"),
        own("vpc", "vpc:ModifyRouteTableAttributes vpc:DeleteRouteTable", "routetable"),
        LOOK_VPC,
    ),
    "alicloud:vpc/routeTableAttachment:RouteTableAttachment": (
        own("vpc", "vpc:AssociateRouteTable vpc:UnassociateRouteTable", "routetable", "vswitch"),
        LOOK_VPC,
    ),
    "alicloud:vpc/snatEntry:SnatEntry": (
        here("vpc", "vpc:CreateSnatEntry vpc:ModifySnatEntry vpc:DeleteSnatEntry", "snattable"),
        LOOK_VPC,
    ),
    "alicloud:vpc/switch:Switch": (
        here("vpc", f"vpc:CreateVSwitch {TAG_VPC}", "vswitch", "vpc"),
        own("vpc", "vpc:ModifyVSwitchAttribute vpc:DeleteVSwitch", "vswitch"),
        LOOK_VPC,
    ),
}

# Permissions of `destroy --delete-data` to empty buckets.
EMPTY_BUCKETS = (
    Grant("oss:ListMultipartUploads", (BUCKET,)),
    Grant("oss:DeleteObject oss:DeleteObjectVersion oss:AbortMultipartUpload", (f"{BUCKET}/*",)),
)
