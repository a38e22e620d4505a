"""Inputs that Alibaba Cloud's provider and APIs document as required only under a condition.

No schema has these: a resource that breaks one passes every preview and is refused at ``up``, or does not do
what it says. Each row was read on 2026-11-21; provider means the argument reference in website/docs/r of
terraform-provider-alicloud at 81c43b6 (1.289.0).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Inputs = Mapping[str, Any]
Condition = Callable[[Inputs], bool]
PROVIDER = "https://registry.terraform.io/providers/aliyun/alicloud/latest/docs/resources/"
API = "https://www.alibabacloud.com/help/en/"


@dataclass(frozen=True)
class Rule:
    """One documented condition.

    Attributes:
        kind: the provider's token without its cloud and class.
        page: its page, below ``PROVIDER`` or the developer reference of a product of ``API``.
        when: returns whether it applies to some inputs.
        holds: returns whether these inputs keep it.
    """

    kind: str
    page: str
    when: Condition
    holds: Condition

    @property
    def type(self) -> str:
        return token(self.kind)

    @property
    def link(self) -> str:
        product, slash, page = self.page.rpartition("/")
        return f"{API}{product}/developer-reference/{page}" if slash else f"{PROVIDER}{page}"

    def broken(self, inputs: Inputs) -> bool:
        return self.when(inputs) and not self.holds(inputs)


def token(kind: str) -> str:
    """Return ``ess/alarm`` as the provider writes it: ``alicloud:ess/alarm:Alarm``."""
    name = kind.partition("/")[2]
    return f"alicloud:{kind}:{name[0].upper()}{name[1:]}"


def always(_: Inputs) -> bool:
    return True


def has(*keys: str) -> Condition:
    """Return a check that each of these is set and not empty; the provider does not send empty values."""
    return lambda inputs: all(inputs.get(key) for key in keys)


def one_of(*keys: str) -> Condition:
    return lambda inputs: any(inputs.get(key) for key in keys)


def none_of(*keys: str) -> Condition:
    return lambda inputs: not any(key in inputs for key in keys)


def given(*keys: str) -> Condition:
    return lambda inputs: any(key in inputs for key in keys)


def equal(key: str, *values: Any) -> Condition:
    return lambda inputs: inputs.get(key) in values


def of_oss(inputs: Inputs) -> bool:
    return str(inputs["serviceName"]).endswith(".oss")


def each(key: str, holds: Condition) -> Condition:
    return lambda inputs: all(holds(part) for part in inputs.get(key, ()))


SPOT_OPTIONS = (
    *("onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotInstancePools"),
    "spotInstanceRemedy",
)
CUSTOM, PRIVATE = equal("metricType", "custom"), equal("resourcePoolOptionsStrategy", "PrivatePoolOnly")
ALARM = "auto-scaling/api-createalarm"
CONFIGURATION = "auto-scaling/api-createscalingconfiguration"
TEMPLATE = "ecs/api-ecs-2014-05-26-createlaunchtemplate"
ROTATION = "kms/key-management-service/api-kms-2016-01-20-updaterotationpolicy"

_RULES: dict[str, tuple[tuple[str, Condition, Condition], ...]] = {
    "vpc/gatewayEndpoint": (("vpc_gateway_endpoint#policy_document", of_oss, has("policyDocument")),),
    "ess/alarm": (
        # GroupId is required when MetricType is custom; 0 is not sent
        (ALARM, CUSTOM, lambda inputs: int(inputs.get("cloudMonitorGroupId") or 0) > 0),
        (ALARM, CUSTOM, has("metricName", "dimensions")),
        # user_id and scaling_group are filled in by themselves and may not be given
        (
            "ess_alarm#dimensions",
            always,
            lambda inputs: not {"user_id", "scaling_group"} & set(inputs.get("dimensions") or ()),
        ),
    ),
    "ess/scalingGroup": (
        # these are valid only if multi_az_policy is COST_OPTIMIZED
        (
            "ess_scaling_group#on_demand_base_capacity",
            given(*SPOT_OPTIONS),
            equal("multiAzPolicy", "COST_OPTIMIZED"),
        ),
        # desired_capacity of 0 is dropped by the provider (GetOk)
        ("ess_scaling_group#desired_capacity", given("desiredCapacity"), has("desiredCapacity")),
        ("ess_scaling_group#launch_template_version", has("launchTemplateId"), has("launchTemplateVersion")),
    ),
    "ess/scalingConfiguration": (
        # an interface names its security groups when none is named outside
        (
            CONFIGURATION,
            has("networkInterfaces"),
            each("networkInterfaces", has("securityGroupIds", "instanceType")),
        ),
        # security_group_id or security_group_ids must be assigned, but for an update with interfaces
        (
            "ess_scaling_configuration#security_group_ids",
            always,
            one_of("securityGroupId", "securityGroupIds", "networkInterfaces"),
        ),
        (
            "ess_scaling_configuration#instance_types",
            always,
            one_of("instanceType", "instanceTypes", "instanceTypeOverrides", "instancePatternInfos"),
        ),
        (
            "ess_scaling_configuration#resource_pool_options_strategy",
            PRIVATE,
            has("resourcePoolOptionsPrivatePoolIds"),
        ),
        # a KMS key takes effect only on an encrypted system disk
        (CONFIGURATION, has("systemDiskKmsKeyId"), has("systemDiskEncrypted")),
    ),
    "ecs/ecsLaunchTemplate": (
        (
            "ecs_launch_template#period",
            equal("instanceChargeType", "PostPaid"),
            none_of("period", "autoRenew"),
        ),
        (TEMPLATE, one_of("httpTokens", "httpPutResponseHopLimit"), equal("httpEndpoint", "enabled")),
        # a KMS key takes effect only on an encrypted disk
        (TEMPLATE, has("dataDisks"), each("dataDisks", has("encrypted", "kmsKeyId"))),
    ),
    "ess/scalingRule": (
        (
            "ess_scaling_rule#adjustment_value",
            equal("scalingRuleType", "SimpleScalingRule"),
            lambda inputs: bool(inputs.get("adjustmentType")) and "adjustmentValue" in inputs,
        ),
    ),
    "kms/key": (
        ("kms_key#rotation_interval", equal("automaticRotation", "Enabled"), has("rotationInterval")),
        # an interval under 365 days needs a key in a KMS instance
        (ROTATION, has("rotationInterval"), has("dkmsInstanceId")),
    ),
    "kms/secret": (
        # in KMS 3.0 encryption_key_id and dkms_instance_id are required
        ("kms_secret#dkms_instance_id", always, has("encryptionKeyId", "dkmsInstanceId")),
    ),
    "ecs/instance": (
        ("instance#image_id", always, one_of("imageId", "launchTemplateId", "launchTemplateName")),
        ("instance#private_ip", has("privateIp"), has("vswitchId")),
    ),
    "nas/fileSystem": (
        ("nas_file_system#kms_key_id", equal("encryptType", 2), has("kmsKeyId")),
        ("nas_file_system#zone_id", equal("fileSystemType", "extreme", "cpfs"), has("zoneId", "capacity")),
        ("nas_file_system#vswitch_id", equal("fileSystemType", "cpfs"), has("vpcId", "vswitchId")),
    ),
    "nas/mountTarget": (
        ("nas/api-nas-2017-06-26-createmounttarget", equal("networkType", "Vpc"), has("vpcId", "vswitchId")),
    ),
    "log/store": (
        ("log_store#max_split_shard_count", equal("autoSplit", True), has("maxSplitShardCount")),
        (
            "log_store#encrypt_conf-user_cmk_info",
            has("encryptConf"),
            lambda inputs: has("cmkKeyId", "arn", "regionId")(inputs["encryptConf"].get("userCmkInfo") or {}),
        ),
    ),
    "log/storeIndex": (("log_store_index#field_search", always, one_of("fullText", "fieldSearches")),),
    "ecs/securityGroupRule": (
        (
            "security_group_rule",
            always,
            one_of("cidrIp", "sourceSecurityGroupId", "prefixListId", "ipv6CidrIp"),
        ),
        (
            "security_group_rule#port_range",
            always,
            lambda inputs: (
                (inputs["ipProtocol"] in ("all", "icmp", "gre")) is (inputs["portRange"] == "-1/-1")
            ),
        ),
    ),
    "ecs/eipAddress": (
        ("eip_address#period", equal("paymentType", "PayAsYouGo"), none_of("period", "pricingCycle")),
    ),
    "vpc/natGateway": (("nat_gateway#vswitch_id", equal("natType", "Enhanced"), has("vswitchId")),),
    "vpc/snatEntry": (("snat_entry#source_vswitch_id", always, one_of("sourceVswitchId", "sourceCidr")),),
    "cms/alarm": (
        (
            "cms_alarm#metric_dimensions",
            lambda inputs: inputs["project"] != "acs_prometheus",
            one_of("dimensions", "metricDimensions"),
        ),
        (
            "cms_alarm#escalations_critical",
            has("escalationsCritical"),
            lambda inputs: has("statistics", "comparisonOperator", "threshold", "times")(
                inputs["escalationsCritical"]
            ),
        ),
    ),
    "oss/bucket": (
        (
            "oss_bucket#kms_master_key_id",
            lambda inputs: "kmsMasterKeyId" in (inputs.get("serverSideEncryptionRule") or {}),
            lambda inputs: inputs["serverSideEncryptionRule"]["sseAlgorithm"] == "KMS",
        ),
    ),
    "oss/bucketObject": (("oss_bucket_object#source", always, one_of("source", "content")),),
    "oss/bucketHttpsConfig": (
        ("oss_bucket_https_config#tls_versions", equal("enable", True), has("tlsVersions")),
    ),
    "privatelink/vpcEndpoint": (
        (
            "privatelink_vpc_endpoint#service_name",
            equal("endpointType", "Interface"),
            lambda inputs: one_of("serviceId", "serviceName")(inputs) and has("securityGroupIds")(inputs),
        ),
    ),
    "fc/v3Function": (
        # cpu and memory are given together, in a ratio of 1:1 to 1:4
        (
            "fcv3_function#cpu",
            one_of("cpu", "memorySize"),
            lambda inputs: 1 <= inputs["memorySize"] / 1024 / inputs["cpu"] <= 4,
        ),
    ),
    "ecs/ecsImagePipeline": (
        ("ecs_image_pipeline#base_image", equal("baseImageType", "IMAGE", "IMAGE_FAMILY"), has("baseImage")),
        # internet_max_bandwidth_out is needed where the builder's vSwitch has no NAT
        ("ecs_image_pipeline#vswitch_id", has("vswitchId"), has("internetMaxBandwidthOut")),
    ),
    "vpc/routeTable": (("route_table#associate_type", always, has("associateType")),),
    "ecs/eipAssociation": (
        # instance_type is required where the instance is not of ECS
        (
            "eip_association#instance_type",
            lambda inputs: not str(inputs["instanceId"]).startswith("i-"),
            has("instanceType"),
        ),
    ),
    "vpc/switch": (("vswitch#cidr_block", none_of("isDefault"), has("cidrBlock", "vpcId", "zoneId")),),
}
RULES = [Rule(kind, *row) for kind, rows in _RULES.items() for row in rows]

# Types whose argument references name no such condition for what is declared here.
_UNCONDITIONAL = """
    cms/alarmContact cms/alarmContactGroup cms/monitorGroup ecs/command ecs/ecsImageComponent
    ecs/imageImport ecs/securityGroup ess/lifecycleHook ess/suspendProcess fc/v3ConcurrencyConfig
    fc/v3Trigger kms/alias log/project nas/accessGroup nas/accessRule oss/bucketAcl
    oss/bucketPolicy oss/bucketPublicAccessBlock privatelink/vpcEndpointZone ram/policy ram/role
    ram/rolePolicyAttachment vpc/flowLog vpc/network vpc/routeEntry vpc/routeTableAttachment
"""
UNCONDITIONAL = frozenset(map(token, _UNCONDITIONAL.split()))
