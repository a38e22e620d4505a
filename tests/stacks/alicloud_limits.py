"""What the provider checks before it calls any API, of every resource that this project declares.

Source of each entry: the ValidateFunc and ConflictsWith in ``alicloud/resource_alicloud_<resource>.go`` of
github.com/aliyun/terraform-provider-alicloud at 81c43b6 (2026-08-21), and where there is none the argument
reference in ``website/docs/r/<resource>.html.markdown`` beside it.
"""

# The docstring of the SDK spells what the provider calls ScaleIn as SCALE_IN: the generator rewrote an enum.
# github.com/aliyun/terraform-provider-alicloud, alicloud/resource_alicloud_ess_suspend_process.go
MISDOCUMENTED = "alicloud:ess/suspendProcess:SuspendProcess"

# (type, path) -> what the provider takes; a path's [] is any index.
ALLOWED = {
    ("alicloud:vpc/network:Network", "dnsHostnameStatus"): {"ENABLED", "DISABLED"},
    ("alicloud:vpc/natGateway:NatGateway", "natType"): {"Enhanced", "Normal"},
    ("alicloud:vpc/natGateway:NatGateway", "networkType"): {"internet", "intranet"},
    ("alicloud:vpc/natGateway:NatGateway", "paymentType"): {"PayAsYouGo", "Subscription"},
    ("alicloud:vpc/natGateway:NatGateway", "internetChargeType"): {"PayByLcu", "PayBySpec"},
    ("alicloud:vpc/routeTable:RouteTable", "associateType"): {"VSwitch", "Gateway"},
    ("alicloud:vpc/flowLog:FlowLog", "resourceType"): {"NetworkInterface", "VPC", "VSwitch"},
    ("alicloud:vpc/flowLog:FlowLog", "trafficType"): {"All", "Allow", "Drop"},
    ("alicloud:vpc/flowLog:FlowLog", "status"): {"Active", "Inactive"},
    ("alicloud:vpc/flowLog:FlowLog", "aggregationInterval"): {"1", "5", "10"},
    ("alicloud:ecs/eipAddress:EipAddress", "internetChargeType"): {"PayByBandwidth", "PayByTraffic"},
    ("alicloud:ecs/eipAddress:EipAddress", "paymentType"): {"Subscription", "PayAsYouGo"},
    ("alicloud:ecs/securityGroup:SecurityGroup", "securityGroupType"): {"normal", "enterprise"},
    ("alicloud:ecs/securityGroup:SecurityGroup", "innerAccessPolicy"): {"Accept", "Drop"},
    ("alicloud:ecs/securityGroupRule:SecurityGroupRule", "type"): {"ingress", "egress"},
    ("alicloud:ecs/securityGroupRule:SecurityGroupRule", "ipProtocol"): {
        "tcp",
        "udp",
        "icmp",
        "icmpv6",
        "gre",
        "all",
    },
    ("alicloud:ecs/securityGroupRule:SecurityGroupRule", "policy"): {"accept", "drop"},
    ("alicloud:ecs/securityGroupRule:SecurityGroupRule", "nicType"): {"internet", "intranet"},
    ("alicloud:privatelink/vpcEndpoint:VpcEndpoint", "endpointType"): {"Interface", "GatewayLoadBalancer"},
    ("alicloud:kms/key:Key", "automaticRotation"): {"Enabled", "Disabled"},
    ("alicloud:kms/key:Key", "deletionProtection"): {"Enabled", "Disabled"},
    ("alicloud:kms/key:Key", "keyUsage"): {"ENCRYPT/DECRYPT", "SIGN/VERIFY"},
    ("alicloud:kms/key:Key", "keySpec"): {"Aliyun_AES_256", "Aliyun_AES_128", "Aliyun_AES_192"},
    ("alicloud:oss/bucket:Bucket", "storageClass"): {"Standard", "IA", "Archive", "ColdArchive"},
    ("alicloud:oss/bucket:Bucket", "redundancyType"): {"LRS", "ZRS"},
    ("alicloud:oss/bucket:Bucket", "versioning.status"): {"Enabled", "Suspended"},
    ("alicloud:oss/bucket:Bucket", "serverSideEncryptionRule.sseAlgorithm"): {"AES256", "KMS", "SM4"},
    ("alicloud:oss/bucketAcl:BucketAcl", "acl"): {"private", "public-read", "public-read-write"},
    ("alicloud:oss/bucketHttpsConfig:BucketHttpsConfig", "tlsVersions[]"): {"TLSv1.2", "TLSv1.3"},
    ("alicloud:nas/fileSystem:FileSystem", "fileSystemType"): {"standard", "extreme", "cpfs", "cpfsse"},
    ("alicloud:nas/fileSystem:FileSystem", "protocolType"): {"NFS", "SMB", "cpfs"},
    ("alicloud:nas/fileSystem:FileSystem", "storageType"): {
        "standard",
        "advance",
        "advance_100",
        "advance_200",
    },
    ("alicloud:nas/fileSystem:FileSystem", "encryptType"): {0, 1, 2},
    ("alicloud:nas/accessGroup:AccessGroup", "fileSystemType"): {"standard", "extreme"},
    ("alicloud:nas/accessRule:AccessRule", "rwAccessType"): {"RDWR", "RDONLY"},
    ("alicloud:nas/accessRule:AccessRule", "userAccessType"): {"no_squash", "root_squash", "all_squash"},
    ("alicloud:ess/scalingGroup:ScalingGroup", "multiAzPolicy"): {
        "PRIORITY",
        "BALANCE",
        "COST_OPTIMIZED",
        "COMPOSABLE",
    },
    ("alicloud:ess/scalingGroup:ScalingGroup", "healthCheckType"): {"ECS", "NONE", "LOAD_BALANCER"},
    ("alicloud:ess/scalingGroup:ScalingGroup", "scalingPolicy"): {
        "recycle",
        "release",
        "forceRecycle",
        "forceRelease",
    },
    ("alicloud:ess/scalingGroup:ScalingGroup", "groupType"): {"ECS", "ECI"},
    ("alicloud:ess/scalingGroup:ScalingGroup", "removalPolicies[]"): {
        "OldestInstance",
        "NewestInstance",
        "OldestScalingConfiguration",
    },
    ("alicloud:ess/scalingGroup:ScalingGroup", "launchTemplateVersion"): {"Latest", "Default"},
    ("alicloud:ess/suspendProcess:SuspendProcess", "process"): {
        "ScaleIn",
        "ScaleOut",
        "HealthCheck",
        "AlarmNotification",
        "ScheduledAction",
    },
    ("alicloud:ess/lifecycleHook:LifecycleHook", "lifecycleTransition"): {"SCALE_IN", "SCALE_OUT"},
    ("alicloud:ess/lifecycleHook:LifecycleHook", "defaultResult"): {"CONTINUE", "ABANDON", "ROLLBACK"},
    ("alicloud:ess/scalingRule:ScalingRule", "adjustmentType"): {
        "QuantityChangeInCapacity",
        "PercentChangeInCapacity",
        "TotalCapacity",
    },
    ("alicloud:ess/scalingRule:ScalingRule", "scalingRuleType"): {
        "SimpleScalingRule",
        "TargetTrackingScalingRule",
        "StepScalingRule",
        "PredictiveScalingRule",
    },
    ("alicloud:ess/alarm:Alarm", "metricType"): {"system", "custom"},
    ("alicloud:ess/alarm:Alarm", "statistics"): {"Average", "Minimum", "Maximum"},
    ("alicloud:ess/alarm:Alarm", "comparisonOperator"): {">", ">=", "<", "<="},
    ("alicloud:ess/alarm:Alarm", "period"): {60, 120, 300, 900},
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "systemDiskCategory"): {
        "cloud",
        "ephemeral_ssd",
        "cloud_ssd",
        "cloud_essd",
        "cloud_efficiency",
        "cloud_essd_xc1",
    },
    (
        "alicloud:ess/scalingConfiguration:ScalingConfiguration",
        "networkInterfaces[].networkInterfaceTrafficMode",
    ): {
        "Standard",
        "HighPerformance",
    },
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "networkInterfaces[].instanceType"): {
        "Primary",
        "Secondary",
    },
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "resourcePoolOptionsStrategy"): {
        "PrivatePoolFirst",
        "PrivatePoolOnly",
        "None",
    },
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "spotStrategy"): {
        "NoSpot",
        "SpotAsPriceGo",
        "SpotWithPriceLimit",
    },
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "spotStrategy"): {
        "NoSpot",
        "SpotAsPriceGo",
        "SpotWithPriceLimit",
    },
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "instanceChargeType"): {"PostPaid", "PrePaid"},
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "networkType"): {"classic", "vpc"},
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "httpTokens"): {"optional", "required"},
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "httpEndpoint"): {"enabled", "disabled"},
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "systemDisk.performanceLevel"): {
        "PL0",
        "PL1",
        "PL2",
        "PL3",
    },
    ("alicloud:ram/rolePolicyAttachment:RolePolicyAttachment", "policyType"): {"System", "Custom"},
    ("alicloud:ram/policy:Policy", "rotateStrategy"): {
        "None",
        "DeleteOldestNonDefaultVersionWhenLimitExceeded",
    },
    ("alicloud:cms/alarm:Alarm", "escalationsCritical.comparisonOperator"): {
        ">",
        ">=",
        "<",
        "<=",
        "==",
        "!=",
    },
    ("alicloud:cms/alarmContact:AlarmContact", "lang"): {"en", "zh-cn"},
    ("alicloud:ecs/ecsImageComponent:EcsImageComponent", "componentType"): {"Build", "Test"},
    ("alicloud:ecs/ecsImageComponent:EcsImageComponent", "systemType"): {"Linux", "Windows"},
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "baseImageType"): {"IMAGE", "IMAGE_FAMILY"},
    ("alicloud:ecs/imageImport:ImageImport", "diskDeviceMappings[].format"): {"RAW", "VHD", "qcow2"},
    ("alicloud:ecs/imageImport:ImageImport", "architecture"): {"x86_64", "i386"},
    ("alicloud:ecs/imageImport:ImageImport", "osType"): {"windows", "linux"},
    ("alicloud:ecs/imageImport:ImageImport", "licenseType"): {"Auto", "Aliyun", "BYOL"},
    ("alicloud:oss/bucketObject:BucketObject", "serverSideEncryption"): {"KMS", "AES256"},
    ("alicloud:oss/bucketObject:BucketObject", "acl"): {"private", "public-read", "public-read-write"},
    ("alicloud:fc/v3Function:V3Function", "runtime"): {"python3.9", "python3.10", "python3.12"},
    ("alicloud:fc/v3Function:V3Function", "logConfig.logBeginRule"): {"None", "DefaultRegex"},
    ("alicloud:fc/v3Trigger:V3Trigger", "triggerType"): {"timer", "http", "oss", "log", "eventbridge"},
}

# (type, path) -> lowest and highest value, from the same sources.
BETWEEN = {
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "systemDiskSize"): (20, 500),
    ("alicloud:ecs/ecsImagePipeline:EcsImagePipeline", "internetMaxBandwidthOut"): (0, 100),
    ("alicloud:kms/key:Key", "pendingWindowInDays"): (7, 366),
    ("alicloud:ess/scalingGroup:ScalingGroup", "maxSize"): (0, 2000),
    ("alicloud:ess/scalingGroup:ScalingGroup", "desiredCapacity"): (0, 2000),
    ("alicloud:ess/scalingGroup:ScalingGroup", "spotInstancePools"): (1, 10),
    ("alicloud:ess/scalingGroup:ScalingGroup", "defaultCooldown"): (0, 86_400),
    ("alicloud:ess/scalingConfiguration:ScalingConfiguration", "systemDiskSize"): (20, 500),
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
    ("alicloud:log/project:Project", "projectName"): r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
    ("alicloud:fc/v3Function:V3Function", "functionName"): r"[a-zA-Z_][0-9a-zA-Z_-]{0,127}",
    ("alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", "launchTemplateName"): r"[a-zA-Z][\w:.-]{1,127}",
    ("alicloud:ess/scalingRule:ScalingRule", "scalingRuleName"): r"[0-9a-zA-Z][\w.-]{1,63}",
    ("alicloud:ess/scalingGroup:ScalingGroup", "scalingGroupName"): r"[0-9a-zA-Z][\w.-]{1,63}",
    ("alicloud:cms/alarmContact:AlarmContact", "alarmContactName"): r".{2,40}",
    ("alicloud:oss/bucket:Bucket", "bucket"): r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
    ("alicloud:ram/role:Role", "roleName"): r"[\w-]{1,64}",
    ("alicloud:ram/policy:Policy", "policyName"): r"[\w-]{1,128}",
    ("alicloud:kms/key:Key", "rotationInterval"): r"([7-9]|[1-8]\d|90)d",
}
