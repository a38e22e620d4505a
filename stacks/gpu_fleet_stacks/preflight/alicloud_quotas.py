"""Quotas of Alibaba Cloud against the stack at its maximum, plus what the account uses already."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_fleet_stacks.catalog.instance_types import InstanceType
from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.preflight.needs import vcpus
from gpu_fleet_stacks.settings import Market, Stack
from gpu_fleet_stacks.settings.quantities import gateways

# www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeaccountattributes
POSTPAID, SPOT = "postpaid", "spot"
# quotas.console.aliyun.com/products/vpc/quotas?query=vpc_quota_instances_num
NETWORKS = "vpc_quota_instances_num"
# The group of quotas by instance type, to which the vCPU quotas belong.
BY_TYPE = "ecs-spec"
CONSOLE = "https://quotas.console.aliyun.com/products"


def quotas(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Check every quota that the stack needs."""
    for quota, demand in vcpus(stack, quota_of).items():
        subject = f"vCPUs for {', '.join(demand.pools)}, {quota}"
        yield guarded(subject, partial(_vcpus, stack, cloud, subject, quota, demand.vcpus))
    if many := gateways(stack.network):
        yield guarded("elastic addresses", partial(_addresses, stack, cloud, many))
    if stack.network.existing is None:
        yield guarded("VPCs", partial(_networks, stack, cloud))


def quota_of(_: InstanceType, market: Market) -> str:
    """Return the vCPU quota that limits a market; all types share it."""
    return SPOT if market is Market.SPOT else POSTPAID


def increase(product: str, code: str, value: int, region: str) -> str:
    """Return the command that asks for a higher quota."""
    return (
        f"aliyun quotas CreateQuotaApplication --ProductCode {product} --QuotaActionCode {code} "
        f"--DesireValue {value} --Reason gpu-fleet --Dimensions.1.Key regionId --Dimensions.1.Value {region}"
    )


def _vcpus(stack: Stack, cloud: Alicloud, subject: str, quota: str, wanted: int) -> Finding:
    """Check vCPUs; the usage includes this stack once it is deployed, since the cloud reports one number."""
    names = [f"{bound}-{quota}-instance-vcpu-count" for bound in ("max", "used")]
    asked = {f"AttributeName.{number}": name for number, name in enumerate(names, 1)}
    answer = cloud.ask("ecs", "DescribeAccountAttributes", RegionId=stack.region, **asked)
    values = {
        item["AttributeName"]: listed(item, "AttributeValues", "ValueItem")
        for item in listed(answer, "AccountAttributeItems", "AccountAttributeItem")
    }
    missing = [name for name in names if not values.get(name)]
    if missing:
        raise CannotCheckError(f"DescribeAccountAttributes says no {', '.join(missing)}")
    allowed, used = (int(values[name][0]["Value"]) for name in names)
    says = f"needs {wanted}, {used} in use, {allowed} allowed"
    if wanted + used <= allowed:
        return Finding(subject, Rating.FINE, says)
    # the code of the quota differs by family, and only the console lists them
    remedy = f"ask for {wanted + used} at {CONSOLE}/{BY_TYPE}/quotas"
    # below the limit for the stack alone: this stack itself may use the rest
    rating = Rating.PROBLEM if wanted > allowed else Rating.NOTE
    return Finding(subject, rating, says, remedy)


def _of_product(stack: Stack, cloud: Alicloud, product: str, **more: str) -> list[dict[str, Any]]:
    """Return the quotas of a product in the stack's region; without a region Quota Center means Hangzhou."""
    region = {"Dimensions.1.Key": "regionId", "Dimensions.1.Value": stack.region}
    answer = cloud.ask("quotas", "ListProductQuotas", ProductCode=product, MaxResults="100", **region, **more)
    return listed(answer, "Quotas")


def _networks(stack: Stack, cloud: Alicloud) -> Finding:
    quotas = _of_product(stack, cloud, "vpc", QuotaActionCode=NETWORKS)
    if not quotas:
        raise CannotCheckError(f"Quota Center lists no {NETWORKS} in {stack.region}")
    return _room(stack, "VPCs", "vpc", quotas[0], 1)


def _addresses(stack: Stack, cloud: Alicloud, wanted: int) -> Finding:
    """Note any eip quota that is nearly used up: no public list gives the code of the number of addresses."""
    counted = [
        quota
        for quota in _of_product(stack, cloud, "eip")
        # 0 is a feature that is off, below 0 is unlimited
        if quota.get("TotalUsage") is not None and float(quota["TotalQuota"]) > 0
    ]
    if not counted:
        raise CannotCheckError(f"Quota Center lists no quota of eip with its use in {stack.region}")
    tight = [quota for quota in counted if wanted + float(quota["TotalUsage"]) > float(quota["TotalQuota"])]
    subject = "elastic addresses"
    if not tight:
        return Finding(subject, Rating.FINE, f"needs {wanted}; no quota of eip is tight")
    said = "; ".join(
        f"{_name(quota)}: {_count(quota, 'TotalUsage')} of {_count(quota, 'TotalQuota')}" for quota in tight
    )
    first = tight[0]
    remedy = increase("eip", first["QuotaActionCode"], wanted + _count(first, "TotalUsage"), stack.region)
    return Finding(subject, Rating.NOTE, f"needs {wanted}; in use {said}", remedy)


def _room(stack: Stack, subject: str, product: str, quota: dict[str, Any], wanted: int) -> Finding:
    """Check one quota of Quota Center; the usage includes this stack once it is deployed."""
    allowed, used = _count(quota, "TotalQuota"), _count(quota, "TotalUsage")
    says = f"needs {wanted}, {used} in use, {allowed} allowed ({_name(quota)})"
    if wanted + used <= allowed:
        return Finding(subject, Rating.FINE, says)
    remedy = increase(product, quota["QuotaActionCode"], wanted + used, stack.region)
    return Finding(subject, Rating.PROBLEM if wanted > allowed else Rating.NOTE, says, remedy)


def _name(quota: dict[str, Any]) -> str:
    return str(quota.get("QuotaDescription") or quota["QuotaActionCode"])


def _count(quota: dict[str, Any], key: str) -> int:
    return int(float(quota.get(key) or 0))
