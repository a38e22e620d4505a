"""Check the existing file systems on AWS: present, of the right kind, open to the stack's subnets."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.usable import unless_missing
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingFileSystem, ExistingNetwork

NFS = (2049, 2049)
# docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE = ((988, 988), (1018, 1023))
AVAILABLE = "available"  # API MountTargetDescription.LifeCycleState
ANYBODY = ("*", {"AWS": "*"})
MOUNT = "elasticfilesystem:ClientMount"


def file_systems(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check the homes and the scratch that the stack file names."""
    existing, network = stack.storage.existing, stack.network.existing
    if network is not None and existing.home is not None:
        yield guarded("homes", partial(_home, stack, aws, existing.home, network))
    if network is not None and existing.scratch is not None:
        yield guarded("scratch", partial(_scratch, stack, aws, existing.scratch, network))


def _home(stack: Stack, aws: Aws, named: ExistingFileSystem, network: ExistingNetwork) -> Finding:
    """Check that homes are encrypted, need no IAM, and have a mount target in each zone for the subnets."""
    id_, key = named.id, "storage.existing.home.id"
    asked = partial(aws.ask, "efs", "describe_file_systems", FileSystemId=id_)
    systems = unless_missing(asked, "FileSystemNotFound").get("FileSystems")
    if not systems:
        return Finding("homes", Rating.PROBLEM, f"{id_} is not in {stack.region}", f"name another {key}")
    if not systems[0].get("Encrypted"):
        remedy = "have its owner copy the files to an encrypted one"
        return Finding("homes", Rating.PROBLEM, f"{id_} is not encrypted", remedy)
    if not _takes_everybody(aws, id_):
        says = f"the policy of {id_} requires IAM to mount, and instances mount without it"
        remedy = (
            f"have its owner allow {MOUNT} to any principal through a mount target, or name another in {key}"
        )
        return Finding("homes", Rating.PROBLEM, says, remedy)
    targets = aws.ask("efs", "describe_mount_targets", FileSystemId=id_)["MountTargets"]
    usable = {
        str(target["AvailabilityZoneName"]): target
        for target in targets
        if target.get("VpcId") == network.vpc_id and target["LifeCycleState"] == AVAILABLE
    }
    if missing := [zone for zone in stack.network.zones if zone not in usable]:
        says = f"{id_} has no mount target of {network.vpc_id} in {', '.join(missing)}"
        remedy = "; ".join(
            f"aws efs create-mount-target --region {stack.region} --file-system-id {id_} "
            f"--subnet-id {network.subnets[zone]} --security-groups GROUP"
            for zone in missing
        )
        return Finding("homes", Rating.PROBLEM, says, remedy)
    groups = {group for zone in stack.network.zones for group in _groups_of_target(aws, usable[zone])}
    return _openness(stack, aws, network, Doors("homes", id_, groups, (NFS,)))


def _takes_everybody(aws: Aws, id_: str) -> bool:
    """Return whether clients may mount without IAM: without a policy, or by a statement for any principal.

    docs.aws.amazon.com/efs/latest/ug/iam-access-control-nfs-efs.html, "default policy".
    """
    asked = partial(aws.ask, "efs", "describe_file_system_policy", FileSystemId=id_)
    text = unless_missing(asked, "PolicyNotFound").get("Policy")
    statements: list[dict[str, Any]] = json.loads(text)["Statement"] if text else []
    return not statements or any(
        statement["Effect"] == "Allow"
        and statement.get("Principal") in ANYBODY
        and {MOUNT, "elasticfilesystem:*", "*"} & set(_listed(statement.get("Action", ())))
        for statement in statements
    )


def _listed(one_or_many: str | Iterable[str]) -> list[str]:
    return [one_or_many] if isinstance(one_or_many, str) else list(one_or_many)


def _groups_of_target(aws: Aws, target: dict[str, Any]) -> list[str]:
    asked = target["MountTargetId"]
    answer = aws.ask("efs", "describe_mount_target_security_groups", MountTargetId=asked)
    return [str(group) for group in answer["SecurityGroups"]]


def _scratch(stack: Stack, aws: Aws, named: ExistingFileSystem, network: ExistingNetwork) -> Finding:
    id_, key = named.id, "storage.existing.scratch"
    asked = partial(aws.ask, "fsx", "describe_file_systems", FileSystemIds=[id_])
    systems = unless_missing(asked, "FileSystemNotFound").get("FileSystems")
    if not systems:
        says = f"{id_} is not in {stack.region}"
        return Finding("scratch", Rating.PROBLEM, says, f"name another {key}.id")
    (files,) = systems
    if files["FileSystemType"] != "LUSTRE":
        says = f"{id_} is of kind {files['FileSystemType']}"
        return Finding("scratch", Rating.PROBLEM, says, f"name one of kind LUSTRE as {key}.id")
    if files["VpcId"] != network.vpc_id:
        says = f"{id_} is in {files['VpcId']}"
        return Finding("scratch", Rating.PROBLEM, says, f"name one in {network.vpc_id} as {key}.id")
    name = files["LustreConfiguration"]["MountName"]
    if name != named.mount_name:
        says = f"the mount name of {id_} is {name}"
        return Finding("scratch", Rating.PROBLEM, says, f"{key}.mount_name: {name}")
    interfaces = aws.pages(
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces",
        NetworkInterfaceIds=files["NetworkInterfaceIds"],
    )
    groups = {str(group["GroupId"]) for interface in interfaces for group in interface["Groups"]}
    return _openness(stack, aws, network, Doors("scratch", id_, groups, LUSTRE))


@dataclass(frozen=True)
class Doors:
    """Network access to a file system.

    Attributes:
        groups: security groups of its interfaces; a client needs to be allowed by one of them.
        spans: first and last port of each range that instances use.
    """

    subject: str
    id: str
    groups: set[str]
    spans: tuple[tuple[int, int], ...]


def _openness(stack: Stack, aws: Aws, network: ExistingNetwork, doors: Doors) -> Finding:
    """Check that its security groups allow the stack's subnets: by their CIDRs, or by the pools' groups."""
    rules = list(
        aws.pages(
            "ec2",
            "describe_security_group_rules",
            "SecurityGroupRules",
            Filters=[{"Name": "group-id", "Values": sorted(doors.groups)}],
        )
    )
    subnets = aws.ask("ec2", "describe_subnets", SubnetIds=list(network.subnets.values()))["Subnets"]
    cidrs = sorted(str(subnet["CidrBlock"]) for subnet in subnets)
    pools = _groups_of_pools(stack, aws, network)
    shut = [
        (span, cidr)
        for span in doors.spans
        for cidr in cidrs
        if not any(_lets_in(rule, span, cidr, pools) for rule in rules)
    ]
    if not shut:
        return Finding(
            doors.subject, Rating.FINE, f"{doors.id} is encrypted, and lets the stack's subnets in"
        )
    says = f"the groups of {doors.id} do not let in " + ", ".join(
        f"{cidr} at TCP {_ports(span)}" for span, cidr in shut
    )
    command = f"aws ec2 authorize-security-group-ingress --region {stack.region} --group-id"
    remedy = "its owner runs: " + "; ".join(
        f"{command} {min(doors.groups)} --protocol tcp --port {_ports(span)} --cidr {cidr}"
        for span, cidr in shut
    )
    return Finding(doors.subject, Rating.PROBLEM, says, remedy)


def _groups_of_pools(stack: Stack, aws: Aws, network: ExistingNetwork) -> set[str]:
    """Return the security groups of the pools, where the stack is deployed already."""
    filters = {"vpc-id": network.vpc_id, "tag:gpu-fleet:stack": stack.name}
    groups = aws.pages(
        "ec2",
        "describe_security_groups",
        "SecurityGroups",
        Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()],
    )
    return {str(group["GroupId"]) for group in groups}


def _lets_in(rule: dict[str, Any], span: tuple[int, int], cidr: str, pools: set[str]) -> bool:
    if rule["IsEgress"] or rule["IpProtocol"] not in ("tcp", "-1"):
        return False
    if rule["IpProtocol"] == "tcp" and not (rule["FromPort"] <= span[0] and span[1] <= rule["ToPort"]):
        return False
    if rule.get("ReferencedGroupInfo", {}).get("GroupId") in pools:
        return True
    return "CidrIpv4" in rule and IPv4Network(cidr).subnet_of(IPv4Network(rule["CidrIpv4"]))


def _ports(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"
