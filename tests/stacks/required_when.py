"""What Alibaba Cloud's provider and APIs document as required only under a condition.

No schema says these: a resource that breaks one passes every preview and is refused at ``up``, or does not do
what it says. Each row was read on 2026-11-21; provider means the argument reference in website/docs/r of
terraform-provider-alicloud at 81c43b6 (1.289.0).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Inputs = Mapping[str, Any]
PROVIDER = "https://registry.terraform.io/providers/aliyun/alicloud/latest/docs/resources/"
API = "https://www.alibabacloud.com/help/en/"


@dataclass(frozen=True)
class Rule:
    """One documented condition.

    Attributes:
        type: the provider's token.
        says: the condition, in the documentation's terms.
        link: where it stands.
        when: whether it applies to some inputs.
        holds: whether these inputs keep it.
    """

    type: str
    says: str
    link: str
    when: Callable[[Inputs], bool]
    holds: Callable[[Inputs], bool]


def always(_: Inputs) -> bool:
    return True


def has(*keys: str) -> Callable[[Inputs], bool]:
    """Each of these is given and is no empty value, which the provider would not send."""
    return lambda inputs: all(inputs.get(key) for key in keys)


def one_of(*keys: str) -> Callable[[Inputs], bool]:
    return lambda inputs: any(inputs.get(key) for key in keys)


def none_of(*keys: str) -> Callable[[Inputs], bool]:
    return lambda inputs: not any(key in inputs for key in keys)


def equal(key: str, *values: Any) -> Callable[[Inputs], bool]:
    return lambda inputs: inputs.get(key) in values


def of_oss(inputs: Inputs) -> bool:
    return str(inputs["serviceName"]).endswith(".oss")


def each(key: str, holds: Callable[[Inputs], bool]) -> Callable[[Inputs], bool]:
    return lambda inputs: all(holds(part) for part in inputs.get(key, ()))


SPOT_OPTIONS = ("onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotInstancePools")
GROUP, CONFIGURATION = (
    "alicloud:ess/scalingGroup:ScalingGroup",
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration"),
)
ALARM, TEMPLATE = "alicloud:ess/alarm:Alarm", "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
FILES, LOG = "alicloud:nas/fileSystem:FileSystem", "alicloud:log/store:Store"

RULES = (
    Rule(
        "alicloud:vpc/gatewayEndpoint:GatewayEndpoint",
        "policy_document is required when the cloud service is oss",
        f"{PROVIDER}vpc_gateway_endpoint#policy_document",
        of_oss,
        has("policyDocument"),
    ),
    Rule(
        ALARM,
        "GroupId is required when MetricType is custom; 0 is not sent",
        f"{API}auto-scaling/developer-reference/api-createalarm",
        equal("metricType", "custom"),
        lambda inputs: int(inputs.get("cloudMonitorGroupId") or 0) > 0,
    ),
    Rule(
        ALARM,
        "the dimensions of a custom metric must be given",
        f"{API}auto-scaling/developer-reference/api-createalarm",
        equal("metricType", "custom"),
        has("metricName", "dimensions"),
    ),
    Rule(
        ALARM,
        "user_id and scaling_group are filled in by themselves and may not be given",
        f"{PROVIDER}ess_alarm#dimensions",
        always,
        lambda inputs: not {"user_id", "scaling_group"} & set(inputs.get("dimensions") or ()),
    ),
    Rule(
        GROUP,
        "these are valid only if multi_az_policy is COST_OPTIMIZED",
        f"{PROVIDER}ess_scaling_group#on_demand_base_capacity",
        lambda inputs: any(key in inputs for key in (*SPOT_OPTIONS, "spotInstanceRemedy")),
        equal("multiAzPolicy", "COST_OPTIMIZED"),
    ),
    Rule(
        GROUP,
        "desired_capacity of 0 is dropped by the provider (GetOk)",
        f"{PROVIDER}ess_scaling_group#desired_capacity",
        lambda inputs: "desiredCapacity" in inputs,
        has("desiredCapacity"),
    ),
    Rule(
        GROUP,
        "a group with a launch template names its version",
        f"{PROVIDER}ess_scaling_group#launch_template_version",
        has("launchTemplateId"),
        has("launchTemplateVersion"),
    ),
    Rule(
        CONFIGURATION,
        "an interface names its security groups when none is named outside",
        f"{API}auto-scaling/developer-reference/api-createscalingconfiguration",
        has("networkInterfaces"),
        each("networkInterfaces", has("securityGroupIds", "instanceType")),
    ),
    Rule(
        CONFIGURATION,
        "security_group_id or security_group_ids must be assigned, but for an update with interfaces",
        f"{PROVIDER}ess_scaling_configuration#security_group_ids",
        always,
        one_of("securityGroupId", "securityGroupIds", "networkInterfaces"),
    ),
    Rule(
        CONFIGURATION,
        "one of instance_type, instance_types, instance_type_override, instance_pattern_info",
        f"{PROVIDER}ess_scaling_configuration#instance_types",
        always,
        one_of("instanceType", "instanceTypes", "instanceTypeOverrides", "instancePatternInfos"),
    ),
    Rule(
        CONFIGURATION,
        "PrivatePoolOnly must specify ResourcePoolOptions.PrivatePoolIds",
        f"{PROVIDER}ess_scaling_configuration#resource_pool_options_strategy",
        equal("resourcePoolOptionsStrategy", "PrivatePoolOnly"),
        has("resourcePoolOptionsPrivatePoolIds"),
    ),
    Rule(
        CONFIGURATION,
        "a KMS key takes effect only on an encrypted system disk",
        f"{API}auto-scaling/developer-reference/api-createscalingconfiguration",
        has("systemDiskKmsKeyId"),
        has("systemDiskEncrypted"),
    ),
    Rule(
        TEMPLATE,
        "period is required only when instance_charge_type is PrePaid",
        f"{PROVIDER}ecs_launch_template#period",
        equal("instanceChargeType", "PostPaid"),
        none_of("period", "autoRenew"),
    ),
    Rule(
        TEMPLATE,
        "HttpTokens and the hop limit take effect only when HttpEndpoint is enabled",
        f"{API}ecs/developer-reference/api-ecs-2014-05-26-createlaunchtemplate",
        one_of("httpTokens", "httpPutResponseHopLimit"),
        equal("httpEndpoint", "enabled"),
    ),
    Rule(
        TEMPLATE,
        "a KMS key takes effect only on an encrypted disk",
        f"{API}ecs/developer-reference/api-ecs-2014-05-26-createlaunchtemplate",
        has("dataDisks"),
        each("dataDisks", has("encrypted", "kmsKeyId")),
    ),
    Rule(
        "alicloud:ess/scalingRule:ScalingRule",
        "adjustment_type and adjustment_value are required for simple rules",
        f"{PROVIDER}ess_scaling_rule#adjustment_value",
        equal("scalingRuleType", "SimpleScalingRule"),
        lambda inputs: bool(inputs.get("adjustmentType")) and "adjustmentValue" in inputs,
    ),
    Rule(
        "alicloud:kms/key:Key",
        "rotation_interval is required if automatic_rotation is Enabled",
        f"{PROVIDER}kms_key#rotation_interval",
        equal("automaticRotation", "Enabled"),
        has("rotationInterval"),
    ),
    Rule(
        "alicloud:kms/key:Key",
        "an interval under 365 days needs a key in a KMS instance",
        f"{API}kms/key-management-service/developer-reference/api-kms-2016-01-20-updaterotationpolicy",
        has("rotationInterval"),
        has("dkmsInstanceId"),
    ),
    Rule(
        "alicloud:kms/secret:Secret",
        "in KMS 3.0 encryption_key_id and dkms_instance_id are required",
        f"{PROVIDER}kms_secret#dkms_instance_id",
        always,
        has("encryptionKeyId", "dkmsInstanceId"),
    ),
    Rule(
        "alicloud:ecs/instance:Instance",
        "one of image_id, launch_template_id and launch_template_name must be set",
        f"{PROVIDER}instance#image_id",
        always,
        one_of("imageId", "launchTemplateId", "launchTemplateName"),
    ),
    Rule(
        "alicloud:ecs/instance:Instance",
        "private_ip is valid when vswitch_id is specified",
        f"{PROVIDER}instance#private_ip",
        has("privateIp"),
        has("vswitchId"),
    ),
    Rule(
        FILES,
        "kms_key_id is required when encrypt_type is 2",
        f"{PROVIDER}nas_file_system#kms_key_id",
        equal("encryptType", 2),
        has("kmsKeyId"),
    ),
    Rule(
        FILES,
        "zone_id and capacity are required when file_system_type is extreme or cpfs",
        f"{PROVIDER}nas_file_system#zone_id",
        equal("fileSystemType", "extreme", "cpfs"),
        has("zoneId", "capacity"),
    ),
    Rule(
        FILES,
        "vpc_id and vswitch_id are required when file_system_type is cpfs",
        f"{PROVIDER}nas_file_system#vswitch_id",
        equal("fileSystemType", "cpfs"),
        has("vpcId", "vswitchId"),
    ),
    Rule(
        "alicloud:nas/mountTarget:MountTarget",
        "vpc_id and vswitch_id are required when network_type is Vpc",
        f"{API}nas/developer-reference/api-nas-2017-06-26-createmounttarget",
        equal("networkType", "Vpc"),
        has("vpcId", "vswitchId"),
    ),
    Rule(
        LOG,
        "max_split_shard_count must be given when auto_split is true",
        f"{PROVIDER}log_store#max_split_shard_count",
        equal("autoSplit", True),
        has("maxSplitShardCount"),
    ),
    Rule(
        LOG,
        "an own key names its id, region and the role that may use it",
        f"{PROVIDER}log_store#encrypt_conf-user_cmk_info",
        has("encryptConf"),
        lambda inputs: has("cmkKeyId", "arn", "regionId")(inputs["encryptConf"].get("userCmkInfo") or {}),
    ),
    Rule(
        "alicloud:log/storeIndex:StoreIndex",
        "at least one of full_text and field_search",
        f"{PROVIDER}log_store_index#field_search",
        always,
        one_of("fullText", "fieldSearches"),
    ),
    Rule(
        "alicloud:ecs/securityGroupRule:SecurityGroupRule",
        "one of cidr_ip, source_security_group_id, prefix_list_id, ipv6_cidr_ip",
        f"{PROVIDER}security_group_rule",
        always,
        one_of("cidrIp", "sourceSecurityGroupId", "prefixListId", "ipv6CidrIp"),
    ),
    Rule(
        "alicloud:ecs/securityGroupRule:SecurityGroupRule",
        "port_range is -1/-1 when ip_protocol is all, icmp or gre, and nothing else for tcp or udp",
        f"{PROVIDER}security_group_rule#port_range",
        always,
        lambda inputs: (inputs["ipProtocol"] in ("all", "icmp", "gre")) is (inputs["portRange"] == "-1/-1"),
    ),
    Rule(
        "alicloud:ecs/eipAddress:EipAddress",
        "period is required if payment_type is Subscription, and may not be given else",
        f"{PROVIDER}eip_address#period",
        equal("paymentType", "PayAsYouGo"),
        none_of("period", "pricingCycle"),
    ),
    Rule(
        "alicloud:vpc/natGateway:NatGateway",
        "vswitch_id is required when nat_type is Enhanced",
        f"{PROVIDER}nat_gateway#vswitch_id",
        equal("natType", "Enhanced"),
        has("vswitchId"),
    ),
    Rule(
        "alicloud:vpc/snatEntry:SnatEntry",
        "one of source_vswitch_id and source_cidr",
        f"{PROVIDER}snat_entry#source_vswitch_id",
        always,
        one_of("sourceVswitchId", "sourceCidr"),
    ),
    Rule(
        "alicloud:cms/alarm:Alarm",
        "one of dimensions and metric_dimensions must be set unless project is acs_prometheus",
        f"{PROVIDER}cms_alarm#metric_dimensions",
        lambda inputs: inputs["project"] != "acs_prometheus",
        one_of("dimensions", "metricDimensions"),
    ),
    Rule(
        "alicloud:cms/alarm:Alarm",
        "an escalation names statistics, operator, threshold and times together",
        f"{PROVIDER}cms_alarm#escalations_critical",
        has("escalationsCritical"),
        lambda inputs: has("statistics", "comparisonOperator", "threshold", "times")(
            inputs["escalationsCritical"]
        ),
    ),
    Rule(
        "alicloud:oss/bucket:Bucket",
        "kms_master_key_id is valid only when sse_algorithm is KMS",
        f"{PROVIDER}oss_bucket#kms_master_key_id",
        lambda inputs: "kmsMasterKeyId" in (inputs.get("serverSideEncryptionRule") or {}),
        lambda inputs: inputs["serverSideEncryptionRule"]["sseAlgorithm"] == "KMS",
    ),
    Rule(
        "alicloud:oss/bucketObject:BucketObject",
        "one of source and content",
        f"{PROVIDER}oss_bucket_object#source",
        always,
        one_of("source", "content"),
    ),
    Rule(
        "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig",
        "tls_versions is required when enable is true",
        f"{PROVIDER}oss_bucket_https_config#tls_versions",
        equal("enable", True),
        has("tlsVersions"),
    ),
    Rule(
        "alicloud:privatelink/vpcEndpoint:VpcEndpoint",
        "one of service_id and service_name; an interface endpoint names its security groups",
        f"{PROVIDER}privatelink_vpc_endpoint#service_name",
        equal("endpointType", "Interface"),
        lambda inputs: one_of("serviceId", "serviceName")(inputs) and has("securityGroupIds")(inputs),
    ),
    Rule(
        "alicloud:fc/v3Function:V3Function",
        "cpu and memory are given together, in a ratio of 1:1 to 1:4",
        f"{PROVIDER}fcv3_function#cpu",
        one_of("cpu", "memorySize"),
        lambda inputs: 1 <= inputs["memorySize"] / 1024 / inputs["cpu"] <= 4,
    ),
    Rule(
        "alicloud:ecs/ecsImagePipeline:EcsImagePipeline",
        "base_image is required when base_image_type is IMAGE or IMAGE_FAMILY",
        f"{PROVIDER}ecs_image_pipeline#base_image",
        equal("baseImageType", "IMAGE", "IMAGE_FAMILY"),
        has("baseImage"),
    ),
    Rule(
        "alicloud:ecs/ecsImagePipeline:EcsImagePipeline",
        "internet_max_bandwidth_out is needed where the builder's vSwitch has no NAT",
        f"{PROVIDER}ecs_image_pipeline#vswitch_id",
        has("vswitchId"),
        has("internetMaxBandwidthOut"),
    ),
    Rule(
        "alicloud:vpc/routeTable:RouteTable",
        "associate_type says what the table may be attached to",
        f"{PROVIDER}route_table#associate_type",
        always,
        has("associateType"),
    ),
    Rule(
        "alicloud:ecs/eipAssociation:EipAssociation",
        "instance_type is required where the instance is not of ECS",
        f"{PROVIDER}eip_association#instance_type",
        lambda inputs: not str(inputs["instanceId"]).startswith("i-"),
        has("instanceType"),
    ),
    Rule(
        "alicloud:vpc/switch:Switch",
        "cidr_block and vpc_id are required if is_default is not set",
        f"{PROVIDER}vswitch#cidr_block",
        none_of("isDefault"),
        has("cidrBlock", "vpcId", "zoneId"),
    ),
)

# Types whose argument references name no such condition for what is declared here.
UNCONDITIONAL = frozenset(
    {
        *("alicloud:cms/alarmContact:AlarmContact", "alicloud:cms/alarmContactGroup:AlarmContactGroup"),
        *("alicloud:cms/monitorGroup:MonitorGroup", "alicloud:ecs/ecsImageComponent:EcsImageComponent"),
        *("alicloud:ecs/imageImport:ImageImport", "alicloud:ecs/securityGroup:SecurityGroup"),
        *("alicloud:ess/lifecycleHook:LifecycleHook", "alicloud:ess/suspendProcess:SuspendProcess"),
        *("alicloud:fc/v3ConcurrencyConfig:V3ConcurrencyConfig", "alicloud:fc/v3Trigger:V3Trigger"),
        *("alicloud:kms/alias:Alias", "alicloud:log/project:Project", "alicloud:nas/accessGroup:AccessGroup"),
        *("alicloud:nas/accessRule:AccessRule", "alicloud:oss/bucketAcl:BucketAcl"),
        *("alicloud:oss/bucketPolicy:BucketPolicy", "alicloud:ram/policy:Policy", "alicloud:ram/role:Role"),
        *("alicloud:ecs/command:Command", "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock"),
        "alicloud:privatelink/vpcEndpointZone:VpcEndpointZone",
        *("alicloud:ram/rolePolicyAttachment:RolePolicyAttachment", "alicloud:vpc/flowLog:FlowLog"),
        *("alicloud:vpc/network:Network", "alicloud:vpc/routeEntry:RouteEntry"),
        "alicloud:vpc/routeTableAttachment:RouteTableAttachment",
    }
)
