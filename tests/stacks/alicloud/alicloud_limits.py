"""Checks of the provider before any call of an API, for every resource that this project declares.

Source of each entry: the ValidateFunc and ConflictsWith in ``alicloud/resource_alicloud_<resource>.go`` of
github.com/aliyun/terraform-provider-alicloud at 81c43b6 (2026-08-21), and where there is none the argument
reference in ``website/docs/r/<resource>.html.markdown`` beside it.
"""

from typing import Any

from tests.stacks.alicloud.required_when import token

# kind -> path -> what the provider takes; a path's [] is any index.
_ALLOWED: dict[str, dict[str, set[Any]]] = {
    "vpc/network": {"dnsHostnameStatus": {"ENABLED", "DISABLED"}},
    "vpc/natGateway": {
        "natType": {"Enhanced", "Normal"},
        "networkType": {"internet", "intranet"},
        "paymentType": {"PayAsYouGo", "Subscription"},
        "internetChargeType": {"PayByLcu", "PayBySpec"},
    },
    "vpc/routeTable": {"associateType": {"VSwitch", "Gateway"}},
    "vpc/flowLog": {
        "resourceType": {"NetworkInterface", "VPC", "VSwitch"},
        "trafficType": {"All", "Allow", "Drop"},
        "status": {"Active", "Inactive"},
        "aggregationInterval": {"1", "5", "10"},
    },
    "ecs/eipAddress": {
        "internetChargeType": {"PayByBandwidth", "PayByTraffic"},
        "paymentType": {"Subscription", "PayAsYouGo"},
    },
    "ecs/securityGroup": {
        "securityGroupType": {"normal", "enterprise"},
        "innerAccessPolicy": {"Accept", "Drop"},
    },
    "ecs/securityGroupRule": {
        "type": {"ingress", "egress"},
        "ipProtocol": {"tcp", "udp", "icmp", "icmpv6", "gre", "all"},
        "policy": {"accept", "drop"},
        "nicType": {"internet", "intranet"},
    },
    "privatelink/vpcEndpoint": {"endpointType": {"Interface", "GatewayLoadBalancer"}},
    "kms/key": {
        "automaticRotation": {"Enabled", "Disabled"},
        "deletionProtection": {"Enabled", "Disabled"},
        "keyUsage": {"ENCRYPT/DECRYPT", "SIGN/VERIFY"},
        "keySpec": {"Aliyun_AES_256", "Aliyun_AES_128", "Aliyun_AES_192"},
    },
    "oss/bucket": {
        "storageClass": {"Standard", "IA", "Archive", "ColdArchive"},
        "redundancyType": {"LRS", "ZRS"},
        "versioning.status": {"Enabled", "Suspended"},
        "serverSideEncryptionRule.sseAlgorithm": {"AES256", "KMS", "SM4"},
    },
    "oss/bucketAcl": {"acl": {"private", "public-read", "public-read-write"}},
    "oss/bucketHttpsConfig": {"tlsVersions[]": {"TLSv1.2", "TLSv1.3"}},
    "nas/fileSystem": {
        "fileSystemType": {"standard", "extreme", "cpfs", "cpfsse"},
        "protocolType": {"NFS", "SMB", "cpfs"},
        "storageType": {"standard", "advance", "advance_100", "advance_200"},
        "encryptType": {0, 1, 2},
    },
    "nas/accessGroup": {"fileSystemType": {"standard", "extreme"}},
    "nas/accessRule": {
        "rwAccessType": {"RDWR", "RDONLY"},
        "userAccessType": {"no_squash", "root_squash", "all_squash"},
    },
    "ess/scalingGroup": {
        "multiAzPolicy": {"PRIORITY", "BALANCE", "COST_OPTIMIZED", "COMPOSABLE"},
        "healthCheckType": {"ECS", "NONE", "LOAD_BALANCER"},
        "scalingPolicy": {"recycle", "release", "forceRecycle", "forceRelease"},
        "groupType": {"ECS", "ECI"},
        "removalPolicies[]": {"OldestInstance", "NewestInstance", "OldestScalingConfiguration"},
        "launchTemplateVersion": {"Latest", "Default"},
    },
    "ess/suspendProcess": {
        "process": {"ScaleIn", "ScaleOut", "HealthCheck", "AlarmNotification", "ScheduledAction"}
    },
    "ess/lifecycleHook": {
        "lifecycleTransition": {"SCALE_IN", "SCALE_OUT"},
        "defaultResult": {"CONTINUE", "ABANDON", "ROLLBACK"},
    },
    "ess/scalingRule": {
        "adjustmentType": {"QuantityChangeInCapacity", "PercentChangeInCapacity", "TotalCapacity"},
        "scalingRuleType": {
            *("SimpleScalingRule", "TargetTrackingScalingRule", "StepScalingRule", "PredictiveScalingRule")
        },
    },
    "ess/alarm": {
        "metricType": {"system", "custom"},
        "statistics": {"Average", "Minimum", "Maximum"},
        "comparisonOperator": {">", ">=", "<", "<="},
        "period": {60, 120, 300, 900},
    },
    "ess/scalingConfiguration": {
        "systemDiskCategory": {
            *("cloud", "ephemeral_ssd", "cloud_ssd", "cloud_essd", "cloud_efficiency", "cloud_essd_xc1")
        },
        "networkInterfaces[].networkInterfaceTrafficMode": {"Standard", "HighPerformance"},
        "networkInterfaces[].instanceType": {"Primary", "Secondary"},
        "resourcePoolOptionsStrategy": {"PrivatePoolFirst", "PrivatePoolOnly", "None"},
        "spotStrategy": {"NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"},
    },
    "ecs/ecsLaunchTemplate": {
        "spotStrategy": {"NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"},
        "instanceChargeType": {"PostPaid", "PrePaid"},
        "networkType": {"classic", "vpc"},
        "httpTokens": {"optional", "required"},
        "httpEndpoint": {"enabled", "disabled"},
        "systemDisk.performanceLevel": {"PL0", "PL1", "PL2", "PL3"},
    },
    "ecs/command": {"type": {"RunBatScript", "RunPowerShellScript", "RunShellScript"}},
    "ecs/instance": {
        "maintenanceAction": {"Stop", "AutoRecover", "AutoRedeploy"},
        "httpTokens": {"optional", "required"},
        "httpEndpoint": {"enabled", "disabled"},
    },
    "kms/secret": {
        "secretDataType": {"text", "binary"},
        "secretType": {"Generic", "Rds", "Redis", "RAMCredentials", "ECS", "PolarDB"},
    },
    "ram/rolePolicyAttachment": {"policyType": {"System", "Custom"}},
    "ram/policy": {"rotateStrategy": {"None", "DeleteOldestNonDefaultVersionWhenLimitExceeded"}},
    "cms/alarm": {"escalationsCritical.comparisonOperator": {">", ">=", "<", "<=", "==", "!="}},
    "cms/alarmContact": {"lang": {"en", "zh-cn"}},
    "ecs/ecsImageComponent": {"componentType": {"Build", "Test"}, "systemType": {"Linux", "Windows"}},
    "ecs/ecsImagePipeline": {"baseImageType": {"IMAGE", "IMAGE_FAMILY"}},
    "ecs/imageImport": {
        "diskDeviceMappings[].format": {"RAW", "VHD", "qcow2"},
        "architecture": {"x86_64", "i386"},
        "osType": {"windows", "linux"},
        "licenseType": {"Auto", "Aliyun", "BYOL"},
    },
    "oss/bucketObject": {
        "serverSideEncryption": {"KMS", "AES256"},
        "acl": {"private", "public-read", "public-read-write"},
    },
    "fc/v3Function": {
        "runtime": {"python3.9", "python3.10", "python3.12"},
        "logConfig.logBeginRule": {"None", "DefaultRegex"},
    },
    "fc/v3Trigger": {"triggerType": {"timer", "http", "oss", "log", "eventbridge"}},
}
ALLOWED = {(token(kind), path): allowed for kind, rows in _ALLOWED.items() for path, allowed in rows.items()}

# (type, path) -> lowest and highest value, from the same sources.
BETWEEN = {
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "systemDiskSize"): (20, 500),
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "internetMaxBandwidthOut"): (0, 100),
    ("alicloud:kms/key:Key", "pendingWindowInDays"): (7, 366),
    ("alicloud:ess/scalingGroup:ScalingGroup", "maxSize"): (0, 2000),
    # From 0 by its ValidateFunc, but a 0 is never sent (GetOk) and the group then has no expected number.
    ("alicloud:ess/scalingGroup:ScalingGroup", "desiredCapacity"): (1, 2000),
    ("alicloud:ess/scalingGroup:ScalingGroup", "spotInstancePools"): (1, 10),
    ("alicloud:ess/scalingGroup:ScalingGroup", "defaultCooldown"): (0, 86_400),
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "systemDiskSize"): (20, 500),
    ("alicloud:ecs/instance:Instance", "internetMaxBandwidthOut"): (0, 100),
    ("alicloud:ess/lifecycleHook:LifecycleHook", "heartbeatTimeout"): (30, 21_600),
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "httpPutResponseHopLimit"): (1, 64),
    ("alicloud:ecs/securityGroupRule:SecurityGroupRule", "priority"): (1, 100),
    ("alicloud:cms/alarm:Alarm", "silenceTime"): (300, 86_400),
    ("alicloud:fc/v3Function:V3Function", "memorySize"): (64, 32_768),
    ("alicloud:fc/v3Function:V3Function", "cpu"): (0.05, 16),
    ("alicloud:fc/v3Function:V3Function", "instanceConcurrency"): (0, 200),
    ("alicloud:log/store:Store", "maxSplitShardCount"): (1, 256),
    ("alicloud:log/store:Store", "retentionPeriod"): (1, 3650),
}

# type -> pairs that the provider refuses together (ConflictsWith), from the same sources.
CONFLICTS = {
    "alicloud:oss/bucketObject:BucketObject": [("source", "content")],
    "alicloud:vpc/snatEntry:SnatEntry": [("sourceVswitchId", "sourceCidr")],
    "alicloud:ecs/securityGroupRule:SecurityGroupRule": [("cidrIp", "sourceSecurityGroupId")],
    "alicloud:ess/scalingConfiguration:ScalingConfiguration": [
        ("instanceType", "instanceTypes"),
        ("securityGroupId", "networkInterfaces"),
        ("securityGroupIds", "networkInterfaces"),
    ],
    "alicloud:ess/scalingGroup:ScalingGroup": [("healthCheckType", "healthCheckTypes")],
    "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate": [
        ("launchTemplateName", "name"),
        ("userData", "userdata"),
        ("defaultVersionNumber", "updateDefaultVersionNumber"),
    ],
    "alicloud:cms/alarm:Alarm": [("metricDimensions", "dimensions")],
    "alicloud:kms/key:Key": [("pendingWindowInDays", "deletionWindowInDays")],
}

# (type, key) -> a pattern the whole text must match, from the same sources.
PATTERNS = {
    ("alicloud:ecs/ecsImageComponent:EcsImageComponent", "imageComponentName"): r"[a-zA-Z][\w:.-]{1,127}",
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "name"): r"[a-zA-Z][\w:.-]{1,127}",
    ("alicloud:ecs/instance:Instance", "instanceName"): r"[a-zA-Z0-9][\w.-]{1,127}",
    # KMS API, CreateSecret
    ("alicloud:kms/secret:Secret", "secretName"): r"[\w/+=.@-]{1,192}",
    ("alicloud:kms/secret:Secret", "versionId"): r".{1,64}",
    ("alicloud:log/project:Project", "projectName"): r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
    ("alicloud:fc/v3Function:V3Function", "functionName"): r"[a-zA-Z_][0-9a-zA-Z_-]{0,127}",
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "launchTemplateName"): r"[a-zA-Z][\w:.-]{1,127}",
    ("alicloud:ess/scalingRule:ScalingRule", "scalingRuleName"): r"[0-9a-zA-Z][\w.-]{1,63}",
    ("alicloud:ess/scalingGroup:ScalingGroup", "scalingGroupName"): r"[0-9a-zA-Z][\w.-]{1,63}",
    ("alicloud:cms/alarmContact:AlarmContact", "alarmContactName"): r".{2,40}",
    ("alicloud:oss/bucket:Bucket", "bucket"): r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
    ("alicloud:ram/role:Role", "roleName"): r"[\w-]{1,64}",
    ("alicloud:ram/policy:Policy", "policyName"): r"[\w-]{1,128}",
    # Not days: KMS answers in seconds (API DescribeKey, RotationInterval), and the provider compares texts.
    ("alicloud:kms/key:Key", "rotationInterval"): r"\d{6,7}s",
}
