"""Security groups and their standalone rules in moto."""

from typing import Any

from gpu_fleet_stacks.rehearsal.aws_resources.ec2_tags import tag_specifications
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import Created, Inputs, physical_name, picked, with_tags_all


def security_group(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:ec2/securityGroup:SecurityGroup.

    AWS adds an egress rule to anywhere to every new group. The provider removes it, and so does this
    function.
    """
    ec2 = clients("ec2")
    group_name = physical_name(name, inputs)
    description = inputs.get("description", "Managed by Pulumi")
    tags = tag_specifications("security-group", inputs)
    made = ec2.create_security_group(
        GroupName=group_name, Description=description, **picked(inputs, {"VpcId": "vpcId"}), **tags
    )
    identifier = made["GroupId"]
    _empty(clients, identifier)
    for direction, rules in (("ingress", inputs.get("ingress", [])), ("egress", inputs.get("egress", []))):
        authorize = getattr(ec2, f"authorize_security_group_{direction}")
        for rule in rules:
            authorize(GroupId=identifier, IpPermissions=[_inline_permission(identifier, rule)])
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"security-group/{identifier}"),
        name=group_name,
        description=description,
        ownerId=clients.account_id,
    )


def default_security_group(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Adopt the VPC's own group as an aws:ec2/defaultSecurityGroup:DefaultSecurityGroup, and empty it."""
    ec2 = clients("ec2")
    filters = [{"Name": "vpc-id", "Values": [inputs["vpcId"]]}, {"Name": "group-name", "Values": ["default"]}]
    identifier = ec2.describe_security_groups(Filters=filters)["SecurityGroups"][0]["GroupId"]
    _empty(clients, identifier)
    if inputs.get("tags"):
        pairs = tag_specifications("security-group", inputs)["TagSpecifications"][0]["Tags"]
        ec2.create_tags(Resources=[identifier], Tags=pairs)
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"security-group/{identifier}"),
        name="default",
        ownerId=clients.account_id,
    )


def ingress_rule(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    return _standalone(clients, inputs, "ingress")


def egress_rule(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    return _standalone(clients, inputs, "egress")


def _standalone(clients: RegionClients, inputs: Inputs, direction: str) -> Created:
    authorize = getattr(clients("ec2"), f"authorize_security_group_{direction}")
    made = authorize(
        GroupId=inputs["securityGroupId"],
        IpPermissions=[_permission(inputs)],
        **tag_specifications("security-group-rule", inputs),
    )
    identifier = made["SecurityGroupRules"][0]["SecurityGroupRuleId"]
    arn = clients.arn("ec2", f"security-group-rule/{identifier}")
    return identifier, with_tags_all(inputs, arn=arn, securityGroupRuleId=identifier)


def _permission(inputs: Inputs) -> dict[str, Any]:
    """Return one rule with exactly one peer as EC2's IpPermission."""
    text = {"Description": inputs["description"]} if "description" in inputs else {}
    permission = picked(inputs, {"IpProtocol": "ipProtocol", "FromPort": "fromPort", "ToPort": "toPort"})
    peers = {
        "cidrIpv4": ("IpRanges", "CidrIp"),
        "cidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
        "prefixListId": ("PrefixListIds", "PrefixListId"),
        "referencedSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
    }
    for key, (parameter, field) in peers.items():
        if key in inputs:
            permission[parameter] = [{field: inputs[key], **text}]
    return permission


def _inline_permission(group_id: str, rule: Inputs) -> dict[str, Any]:
    """Return a rule that is written inside a group as EC2's IpPermission."""
    text = {"Description": rule["description"]} if rule.get("description") else {}
    groups = [*rule.get("securityGroups", []), *([group_id] if rule.get("self") else [])]
    return {
        "IpProtocol": rule["protocol"],
        "FromPort": rule["fromPort"],
        "ToPort": rule["toPort"],
        "IpRanges": [{"CidrIp": cidr, **text} for cidr in rule.get("cidrBlocks", [])],
        "Ipv6Ranges": [{"CidrIpv6": cidr, **text} for cidr in rule.get("ipv6CidrBlocks", [])],
        "PrefixListIds": [
            {"PrefixListId": prefix_list, **text} for prefix_list in rule.get("prefixListIds", [])
        ],
        "UserIdGroupPairs": [{"GroupId": group, **text} for group in groups],
    }


def _empty(clients: RegionClients, group_id: str) -> None:
    ec2 = clients("ec2")
    group = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"][0]
    if group["IpPermissionsEgress"]:
        ec2.revoke_security_group_egress(GroupId=group_id, IpPermissions=group["IpPermissionsEgress"])
    if group["IpPermissions"]:
        ec2.revoke_security_group_ingress(GroupId=group_id, IpPermissions=group["IpPermissions"])


CREATORS = {
    "aws:ec2/securityGroup:SecurityGroup": security_group,
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": default_security_group,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": ingress_rule,
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": egress_rule,
}
