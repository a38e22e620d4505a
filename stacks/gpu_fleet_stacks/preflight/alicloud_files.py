"""Check the existing file systems on Alibaba Cloud: present, encrypted, open to the stack's vSwitches."""

from collections.abc import Iterator, Sequence
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.usable import unless_missing
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingFileSystem, ExistingNetwork

ACTIVE = "Active"
READ_WRITE = "RDWR"
CPFS = "cpfs"
NOT_FOUND = "InvalidFileSystem.NotFound"  # API DescribeFileSystems, "Error codes"


def file_systems(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Check the homes and the scratch that the stack file names."""
    existing, network = stack.storage.existing, stack.network.existing
    for subject, named in (("homes", existing.home), ("scratch", existing.scratch)):
        if named is not None and network is not None:
            yield guarded(subject, partial(_files, stack, cloud, subject, named, network))


def _files(
    stack: Stack, cloud: Alicloud, subject: str, named: ExistingFileSystem, network: ExistingNetwork
) -> Finding:
    """Check one file system by DescribeFileSystems and DescribeMountTargets.

    CPFS has no encryption and no access rules.
    """
    asked = partial(cloud.ask, "nas", "DescribeFileSystems", RegionId=stack.region, FileSystemId=named.id)
    systems = listed(unless_missing(asked, NOT_FOUND), "FileSystems", "FileSystem")
    if not systems:
        remedy = f"name another storage.existing.{'home' if subject == 'homes' else 'scratch'}.id"
        return Finding(subject, Rating.PROBLEM, f"{named.id} is not in {stack.region}", remedy)
    kind = str(systems[0]["FileSystemType"])
    if kind != CPFS and not systems[0].get("EncryptType"):
        remedy = "have its owner copy the files to an encrypted one"
        return Finding(subject, Rating.PROBLEM, f"{named.id} is not encrypted", remedy)
    here = _mount_targets(stack, cloud, named, network)
    if not here:
        says = f"{named.id} has no active mount target in {network.vpc_id}"
        remedy = (
            f"its owner runs: aliyun nas CreateMountTarget --RegionId {stack.region} "
            f"--FileSystemId {named.id} --NetworkType Vpc --VpcId {network.vpc_id} "
            "--VSwitchId VSWITCH --AccessGroupName GROUP"
        )
        return Finding(subject, Rating.PROBLEM, says, remedy)
    if kind == CPFS:
        return Finding(subject, Rating.FINE, f"{named.id} has a mount target in {network.vpc_id}")
    first = min(here, key=lambda target: str(target["MountTargetDomain"]))
    group = str(first["AccessGroup"])
    rules, cidrs = _rules(stack, cloud, group, kind), _cidrs(stack, cloud, network)
    shut = [cidr for cidr in cidrs if not any(_lets_in(rule, cidr) for rule in rules)]
    if not shut:
        says = f"{named.id} is encrypted, and lets the stack's vSwitches in"
        return Finding(subject, Rating.FINE, says)
    says = f"the access group {group} of {named.id} does not let {', '.join(shut)} write"
    return Finding(subject, Rating.PROBLEM, says, _opening(stack.region, group, kind, shut))


def _mount_targets(
    stack: Stack, cloud: Alicloud, named: ExistingFileSystem, network: ExistingNetwork
) -> list[dict[str, Any]]:
    """Return the active mount targets of a file system in the stack's VPC."""
    answer = cloud.ask("nas", "DescribeMountTargets", RegionId=stack.region, FileSystemId=named.id)
    return [
        target
        for target in listed(answer, "MountTargets", "MountTarget")
        if target.get("VpcId") == network.vpc_id and target.get("Status") == ACTIVE
    ]


def _opening(region: str, group: str, kind: str, cidrs: Sequence[str]) -> str:
    """Return what its owner runs, so that an access group lets networks write."""
    return "its owner runs: " + "; ".join(
        f"aliyun nas CreateAccessRule --RegionId {region} --AccessGroupName {group} "
        f"--FileSystemType {kind} --SourceCidrIp {cidr} --RWAccessType {READ_WRITE} --Priority 1"
        for cidr in cidrs
    )


def _rules(stack: Stack, cloud: Alicloud, group: str, kind: str) -> list[dict[str, Any]]:
    """Return the rules of an access group: API DescribeAccessRules, which gives 100 a page at most."""
    answer = cloud.ask(
        "nas",
        "DescribeAccessRules",
        RegionId=stack.region,
        AccessGroupName=group,
        FileSystemType=kind,
        PageSize="100",
    )
    return listed(answer, "AccessRules", "AccessRule")


def _cidrs(stack: Stack, cloud: Alicloud, network: ExistingNetwork) -> list[str]:
    """Return the CIDRs of the stack's existing vSwitches; another finding reports missing ones."""
    answers = [
        cloud.ask("vpc", "DescribeVSwitches", RegionId=stack.region, VSwitchId=network.subnets[zone])
        for zone in stack.network.zones
    ]
    vswitches = [vswitch for answer in answers for vswitch in listed(answer, "VSwitches", "VSwitch")]
    return sorted({str(vswitch["CidrBlock"]) for vswitch in vswitches})


def _lets_in(rule: dict[str, Any], cidr: str) -> bool:
    source = str(rule.get("SourceCidrIp") or "")
    if not source or rule.get("RWAccess") != READ_WRITE:
        return False
    return IPv4Network(cidr).subnet_of(IPv4Network(source))
