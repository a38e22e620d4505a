"""Quotas of Alibaba Cloud against what a stack needs at its fullest, on top of what the account uses."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from stacks.calls.alicloud import Alicloud, listed
from stacks.calls.errors import CannotCheckError
from stacks.catalog.instance_types import InstanceType
from stacks.preflight.findings import Finding, Rating, guarded
from stacks.preflight.needs import vcpus
from stacks.settings import Market, Stack
from stacks.settings.quantities import gateways

# www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeaccountattributes
POSTPAID, SPOT = "postpaid", "spot"
# quotas.console.aliyun.com/products/vpc/quotas?query=vpc_quota_instances_num
NETWORKS = "vpc_quota_instances_num"
# Quotas by instance type, of which vCPUs are.
BY_TYPE = "ecs-spec"
CONSOLE = "https://quotas.console.aliyun.com/products"


def quotas(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Every quota that the stack touches."""
    for quota, demand in vcpus(stack, quota_of).items():
        subject = f"vCPUs for {', '.join(demand.pools)}, {quota}"
        yield guarded(subject, partial(_vcpus, stack, cloud, subject, quota, demand.vcpus))
    if many := gateways(stack.network):
        yield guarded("elastic addresses", partial(_addresses, stack, cloud, many))
    if stack.network.existing is None:
        yield guarded("VPCs", partial(_networks, stack, cloud))


def quota_of(_: InstanceType, market: Market) -> str:
    """The vCPU quota that limits a market; all types share it."""
    return SPOT if market is Market.SPOT else POSTPAID


def increase(product: str, code: str, value: int, region: str) -> str:
    """The command that asks for more."""
    return (
        f"aliyun quotas CreateQuotaApplication --ProductCode {product} --QuotaActionCode {code} "
        f"--DesireValue {value} --Reason gpu-fleet --Dimensions.1.Key regionId --Dimensions.1.Value {region}"
    )


def _vcpus(stack: Stack, cloud: Alicloud, subject: str, quota: str, wanted: int) -> Finding:
    """What is in use counts this stack too where it stands already: the cloud does not separate them."""
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
    # below the limit for the stack alone: whatever uses the rest may be this stack itself
    rating = Rating.PROBLEM if wanted > allowed else Rating.NOTE
    return Finding(subject, rating, says, remedy)


def _of_product(stack: Stack, cloud: Alicloud, product: str, **more: str) -> list[dict[str, Any]]:
    """Quota Center answers for Hangzhou unless a dimension names another region."""
    region = {"Dimensions.1.Key": "regionId", "Dimensions.1.Value": stack.region}
    answer = cloud.ask("quotas", "ListProductQuotas", ProductCode=product, MaxResults="100", **region, **more)
    return listed(answer, "Quotas")


def _networks(stack: Stack, cloud: Alicloud) -> Finding:
    quotas = _of_product(stack, cloud, "vpc", QuotaActionCode=NETWORKS)
    if not quotas:
        raise CannotCheckError(f"Quota Center lists no {NETWORKS} in {stack.region}")
    return _room(stack, "VPCs", "vpc", quotas[0], 1)


def _addresses(stack: Stack, cloud: Alicloud, wanted: int) -> Finding:
    """No public list has the code of the number of addresses: any tight quota of theirs is noted."""
    counted = [
        quota
        for quota in _of_product(stack, cloud, "eip")
        # of 0 are features that are off, below 0 is unlimited
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
    """A quota of Quota Center; its use counts this stack too where it stands already."""
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
