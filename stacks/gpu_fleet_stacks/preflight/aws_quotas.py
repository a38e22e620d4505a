"""Quotas of AWS against the stack at its maximum, plus the account's usage beside this stack."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog.instance_types import Cloud, InstanceType
from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.needs import vcpus
from gpu_fleet_stacks.preflight.usable import unless_missing
from gpu_fleet_stacks.settings import Market, Stack
from gpu_fleet_stacks.settings.quantities import gateways

# docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html
ADDRESSES, NETWORKS = "L-0263D0A3", "L-F678F1CE"
# docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html: sweep and mover reserve one run each,
# and 100 must stay for functions that reserve none. A new account has 10, so it refuses the functions.
FUNCTIONS, KEPT_UNRESERVED = "L-B99A9384", 100
RESERVING = ("reaper", "capacity")
TAG = f"{naming.PROJECT}:stack"
RUNNING = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]


@dataclass(frozen=True)
class Need:
    """A demand on one quota.

    Attributes:
        service, code: the quota, as Service Quotas names it.
        wanted: units that the stack needs.
        used: units that the account uses beside this stack.
    """

    subject: str
    service: str
    code: str
    wanted: int
    used: Callable[[], int]


def quotas(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check every quota that the stack needs."""

    for need in (*_of_instances(stack, aws), *_of_the_network(stack, aws), _of_functions(stack, aws)):
        yield guarded(need.subject, partial(_held, stack, aws, need))


def quota_of(kind: InstanceType, market: Market) -> str | None:
    """Return the vCPU quota of a type; reservations count as on demand."""
    return kind.quota_code_spot if market is Market.SPOT else kind.quota_code


def increase(stack: Stack, need: Need, value: int) -> str:
    """Return the command that asks for a higher quota."""
    return (
        f"aws service-quotas request-service-quota-increase --region {stack.region} "
        f"--service-code {need.service} --quota-code {need.code} --desired-value {value}"
    )


def _held(stack: Stack, aws: Aws, need: Need) -> Finding:
    quota = aws.ask("service-quotas", "get_service_quota", ServiceCode=need.service, QuotaCode=need.code)
    allowed = int(quota["Quota"]["Value"])
    # too little even for the stack alone: the account's usage need not be read
    used = 0 if need.wanted > allowed else need.used()
    says = f"needs {need.wanted}, {used} in use beside it, {allowed} allowed ({need.code})"
    if need.wanted + used <= allowed:
        return Finding(need.subject, Rating.FINE, says)
    return Finding(need.subject, Rating.PROBLEM, says, increase(stack, need, need.wanted + used))


def _of_instances(stack: Stack, aws: Aws) -> Iterator[Need]:
    @cache
    def running() -> dict[str, int]:
        return _running(stack, aws)

    def others(code: str) -> int:
        return running().get(code, 0)

    for code, demand in vcpus(stack, quota_of).items():
        subject = f"vCPUs for {', '.join(demand.pools)}"
        yield Need(subject, "ec2", code, demand.vcpus, partial(others, code))


def _of_the_network(stack: Stack, aws: Aws) -> Iterator[Need]:
    def others(operation: str, key: str) -> int:
        return sum(not _own(stack, owned) for owned in aws.pages("ec2", operation, key))

    if many := gateways(stack.network):
        used = partial(others, "describe_addresses", "Addresses")
        yield Need("elastic addresses", "ec2", ADDRESSES, many, used)
    if stack.network.existing is None:
        yield Need("VPCs", "vpc", NETWORKS, 1, partial(others, "describe_vpcs", "Vpcs"))


def _of_functions(stack: Stack, aws: Aws) -> Need:
    wanted = KEPT_UNRESERVED + len(RESERVING)
    return Need("functions at once", "lambda", FUNCTIONS, wanted, partial(_reserved, stack, aws))


def _reserved(stack: Stack, aws: Aws) -> int:
    """Return the runs that functions of the account have reserved, without this stack's own."""
    limit = aws.ask("lambda", "get_account_settings")["AccountLimit"]
    own = sum(_reserved_by(aws, naming.prefixed(stack.name, label)) for label in RESERVING)
    return int(limit["ConcurrentExecutions"]) - int(limit["UnreservedConcurrentExecutions"]) - own


def _reserved_by(aws: Aws, function: str) -> int:
    asked = partial(aws.ask, "lambda", "get_function_concurrency", FunctionName=function)
    reserved: int = unless_missing(asked, "ResourceNotFoundException").get("ReservedConcurrentExecutions", 0)
    return reserved


def _running(stack: Stack, aws: Aws) -> dict[str, int]:
    """Return quota code -> virtual CPUs of the account's instances that are not this stack's."""
    vcpus: dict[str, int] = {}
    for instance in aws.instances(RUNNING):
        code = None if _own(stack, instance) else _code_of(instance)
        if code is not None:
            options = instance.get("CpuOptions") or {}
            cpus = options.get("CoreCount", 0) * options.get("ThreadsPerCore", 1)
            vcpus[code] = vcpus.get(code, 0) + cpus
    return vcpus


def _code_of(instance: dict[str, Any]) -> str | None:
    """Return the quota that an instance counts against: its type's, or that of a type of the same family."""
    name, spot = instance["InstanceType"], instance.get("InstanceLifecycle") == "spot"
    known = catalog.load()
    kind = known.find(name) or next(
        (kind for kind in known.of_cloud(Cloud.AWS) if _letters(kind.name) == _letters(name)), None
    )
    return None if kind is None else quota_of(kind, Market.SPOT if spot else Market.ON_DEMAND)


def _letters(name: str) -> str:
    """Return the family's letters: ``p4d.24xlarge`` -> ``p``."""
    return re.split(r"[0-9]", name, maxsplit=1)[0]


def _own(stack: Stack, resource: dict[str, Any]) -> bool:
    return any(tag["Key"] == TAG and tag["Value"] == stack.name for tag in resource.get("Tags") or ())
