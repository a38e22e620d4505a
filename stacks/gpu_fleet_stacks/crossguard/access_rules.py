"""Rules for network access and permissions."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_fleet_stacks.crossguard.model import (
    Finding,
    PolicyRule,
    Resource,
    Severity,
    is_on,
    items,
    statements,
)

ANYWHERE = frozenset({"0.0.0.0/0", "::/0"})

# type -> the inputs that hold policies of an identity's permissions
IDENTITY_POLICIES = {
    "aws:iam/rolePolicy:RolePolicy": ("policy",),
    "aws:iam/policy:Policy": ("policy",),
    "aws:iam/userPolicy:UserPolicy": ("policy",),
    "aws:iam/groupPolicy:GroupPolicy": ("policy",),
    "alicloud:ram/policy:Policy": ("policyDocument",),
}
AWS_ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
# type -> the inputs that hold a resource's policies
RESOURCE_POLICIES = {
    "aws:iam/role:Role": ("assumeRolePolicy",),
    "aws:kms/key:Key": ("policy",),
    "aws:s3/bucketPolicy:BucketPolicy": ("policy",),
    "aws:sns/topicPolicy:TopicPolicy": ("policy",),
    "aws:sqs/queue:Queue": ("policy",),
    "aws:sqs/queuePolicy:QueuePolicy": ("policy",),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": ("policy",),
    AWS_ENDPOINT: ("policy",),
    "alicloud:ram/role:Role": ("assumeRolePolicyDocument", "document"),
    "alicloud:kms/key:Key": ("policy",),
    "alicloud:oss/bucketPolicy:BucketPolicy": ("policy",),
    "alicloud:privatelink/vpcEndpoint:VpcEndpoint": ("policyDocument",),
}


def public_ingress(resource: Resource) -> Iterator[Finding]:
    """Find rules of any kind that allow the whole internet in."""
    for port, networks in _ingress(resource):
        for network in ANYWHERE & set(networks):
            yield f"lets {network} in on {port}"


def _ingress(resource: Resource) -> Iterator[tuple[str, list[str]]]:
    """Yield each ingress rule of a resource: its ports, and the networks that it allows."""
    inputs = resource.inputs
    match resource.type:
        case "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
            yield _ports(inputs), items(inputs.get("cidrIpv4")) + items(inputs.get("cidrIpv6"))
        case "aws:ec2/securityGroup:SecurityGroup" | "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup":
            for rule in items(inputs.get("ingress")):
                yield _ports(rule), items(rule.get("cidrBlocks")) + items(rule.get("ipv6CidrBlocks"))
        case "aws:ec2/securityGroupRule:SecurityGroupRule" if inputs.get("type") == "ingress":
            yield _ports(inputs), items(inputs.get("cidrBlocks")) + items(inputs.get("ipv6CidrBlocks"))
        case "alicloud:ecs/securityGroupRule:SecurityGroupRule":
            if inputs.get("type") == "ingress" and inputs.get("policy", "accept") == "accept":
                ports = f"{inputs.get('ipProtocol')} {inputs.get('portRange', 'any port')}"
                yield ports, items(inputs.get("cidrIp")) + items(inputs.get("ipv6CidrIp"))


def _ports(rule: Mapping[str, Any]) -> str:
    protocol = rule.get("ipProtocol", rule.get("protocol"))
    return f"{protocol} {rule.get('fromPort', 'any port')}"


def public_address(resource: Resource) -> Iterator[Finding]:
    """Find instances with a public address, and subnets that would give them one."""
    inputs = resource.inputs
    match resource.type:
        case "aws:ec2/launchTemplate:LaunchTemplate":
            cards = items(inputs.get("networkInterfaces"))
            if any(is_on(card.get("associatePublicIpAddress")) for card in cards):
                yield "asks for a public address (associatePublicIpAddress)"
        case "aws:ec2/instance:Instance" if is_on(inputs.get("associatePublicIpAddress")):
            yield "asks for a public address (associatePublicIpAddress)"
        case "aws:ec2/subnet:Subnet" if is_on(inputs.get("mapPublicIpOnLaunch")):
            yield "gives every instance a public address (mapPublicIpOnLaunch)"
        case "aws:ec2/eip:Eip" if inputs.get("instance"):
            yield "is the public address of an instance"
        case (
            "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
            | "alicloud:ess/scalingConfiguration:ScalingConfiguration"
            | "alicloud:ecs/instance:Instance"
        ) if float(inputs.get("internetMaxBandwidthOut") or 0) > 0:
            yield f"asks for a public address (internetMaxBandwidthOut = {inputs['internetMaxBandwidthOut']})"
        case "alicloud:ecs/eipAssociation:EipAssociation" if inputs.get("instanceType") == "EcsInstance":
            yield "gives an instance a public address (instanceType)"


def metadata_tokens(resource: Resource) -> Iterator[Finding]:
    """Find instances whose metadata service answers without a session token."""
    inputs = resource.inputs
    match resource.type:
        case "aws:ec2/launchTemplate:LaunchTemplate" | "aws:ec2/instance:Instance":
            tokens = (inputs.get("metadataOptions") or {}).get("httpTokens")
        case "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate" | "alicloud:ecs/instance:Instance":
            tokens = inputs.get("httpTokens")
        case _:
            return
    if tokens != "required":
        yield f"its metadata service answers without a token (httpTokens = {tokens!r})"


def metadata_tokens_by_image(resource: Resource) -> Iterator[Finding]:
    """Find Alibaba Cloud's scaling configurations: without such an input the image must require tokens."""
    if resource.type == "alicloud:ess/scalingConfiguration:ScalingConfiguration":
        yield "the type has no input for metadata tokens, so nothing here proves that its image does"


def wildcard(resource: Resource) -> Iterator[Finding]:
    """Find identities that may do every action of a service, or every action at all, on every resource."""
    for statement in _policies(resource, IDENTITY_POLICIES):
        actions = [action for action in items(statement.get("Action")) if str(action).endswith("*")]
        broad = [action for action in actions if action == "*" or str(action).endswith(":*")]
        if statement.get("Effect") == "Allow" and "*" in items(statement.get("Resource")) and broad:
            yield f"allows {', '.join(broad)} on every resource"
        if statement.get("Effect") == "Allow" and "NotAction" in statement:
            yield "allows whatever it does not name (NotAction)"


def anyone(resource: Resource) -> Iterator[Finding]:
    """Find resources that everyone in the world may use: an allow statement without a condition.

    An endpoint's policy grants nothing and only limits what passes, so it only has to name resources.
    """
    for statement in _policies(resource, RESOURCE_POLICIES):
        if statement.get("Effect") != "Allow" or statement.get("Condition"):
            continue
        if resource.type == AWS_ENDPOINT and "*" not in items(statement.get("Resource")):
            continue
        principal = statement.get("Principal")
        named = principal.values() if isinstance(principal, Mapping) else [principal]
        if any(item == "*" for value in named for item in items(value)):
            yield f"allows {', '.join(map(str, items(statement.get('Action'))))} to anybody (Principal *)"


def _policies(resource: Resource, where: Mapping[str, tuple[str, ...]]) -> Iterator[Mapping[str, Any]]:
    for key in where.get(resource.type, ()):
        yield from statements(resource.inputs.get(key))


RULES = (
    PolicyRule(
        "no-public-ingress",
        "a port that is open to the internet is found within the hour",
        "name the networks that need it: access.ssh_from, or use Session Manager, which needs no port",
        Severity.CRITICAL,
        each=public_ingress,
    ),
    PolicyRule(
        "no-public-address",
        "a GPU instance with a public address is one mistake from the internet",
        "leave instances in private subnets; NAT and endpoints let them out",
        Severity.HIGH,
        each=public_address,
    ),
    PolicyRule(
        "metadata-tokens",
        "a forged request from a notebook would read the instance's credentials",
        "require session tokens (IMDSv2): httpTokens = required",
        Severity.HIGH,
        each=metadata_tokens,
    ),
    PolicyRule(
        "metadata-tokens-by-image",
        "elastic RDMA needs a scaling configuration, which cannot require tokens",
        "boot an image that requires them at first boot: ModifyInstanceMetadataOptions",
        Severity.MEDIUM,
        each=metadata_tokens_by_image,
        advisory=True,
    ),
    PolicyRule(
        "no-wildcard",
        "if an identity may do everything, its leak exposes everything",
        "name the actions, or the resources they may touch",
        Severity.CRITICAL,
        each=wildcard,
    ),
    PolicyRule(
        "no-anyone",
        "a principal of * without a condition allows the whole world",
        "name accounts, roles or services, or bind the statement by a condition",
        Severity.CRITICAL,
        each=anyone,
    ),
)
