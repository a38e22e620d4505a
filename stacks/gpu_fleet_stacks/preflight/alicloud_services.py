"""Check the services that must be activated once in an Alibaba Cloud account before any deployment."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight import usable
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.settings import Stack

# No call tests whether these are activated without activating them. Their references list no code of a read
# for it. The provider's data sources of the same name call Open...Service
# (terraform-provider-alicloud, data_source_alicloud_fc_service.go, cms_service.go, nas_service.go).
UNTOLD = {
    "Function Compute": "https://fcnext.console.aliyun.com",
    "CloudMonitor": "https://cloudmonitor.console.aliyun.com",
}
NAS_CONSOLE = "https://nasnext.console.aliyun.com"
OSS_CONSOLE = "https://oss.console.aliyun.com"

Reachable = Callable[[str], bool]


@dataclass(frozen=True)
class Role:
    """A role that a service assumes.

    Attributes:
        by_itself: the service makes the role at the first call by an identity that may
            ``ram:CreateServiceLinkedRole``.
    """

    name: str
    why: str
    remedy: str
    by_itself: bool = False


def linked(service: str) -> str:
    """Return the command that makes a service-linked role."""
    return f"aliyun resourcemanager CreateServiceLinkedRole --ServiceName {service}"


def roles(stack: Stack) -> tuple[Role, ...]:
    """Return the roles that a stack needs; pure.

    Their names: www.alibabacloud.com/help/en/auto-scaling, "Service-linked role"; ecs, "Encrypt disks" and
    "Import custom images"; those of NAS: help.aliyun.com/zh/ram/developer-reference, below it
    aliyunservicerolepolicyfornasextreme and ...fornasencryption. NAS makes its own roles, as its error code
    SubAccount.NoEncryptionSLRPermission shows.
    """
    grant = "open https://ram.console.aliyun.com/role/authorize and grant"
    scaling, disks = "AliyunServiceRoleForAutoScaling", "AliyunECSDiskEncryptDefaultRole"
    imports = "AliyunECSImageImportDefaultRole"
    needed = [
        Role(scaling, "Auto Scaling makes no group", linked("ess.aliyuncs.com")),
        Role(disks, "no disk takes the stack's key", f"{grant} {disks} to ECS"),
    ]
    if stack.storage.home:
        needed += [
            Role(
                f"AliyunServiceRoleForNas{kind}",
                why,
                linked(f"{kind.lower()}.nas.aliyuncs.com"),
                by_itself=True,
            )
            for kind, why in (
                ("Extreme", "NAS mounts no home"),
                ("Encryption", "no home takes the stack's key"),
            )
        ]
    if stack.image.disk is not None:
        needed.append(Role(imports, "ECS cannot read image.disk", f"{grant} {imports} to ECS"))
    return tuple(needed)


def services(
    stack: Stack, cloud: Alicloud, reachable: Reachable | None = None, s3: Any = None
) -> Iterator[Finding]:
    """Check roles, opened services, and the way to OSS.

    Args:
        reachable: whether a host answers from here; by default by a connection.
        s3: boto3's client for OSS; by default with the credentials of the environment.
    """
    for role in roles(stack):
        yield guarded(f"role {role.name}", partial(_role, role, cloud))
    if stack.network.existing is None:
        yield guarded("flow logs", partial(_flow_logs, stack, cloud))
    yield guarded("KMS", partial(_kms, cloud))
    yield guarded("Simple Log Service", partial(_logs, cloud))
    if stack.network.interface_endpoints:
        yield guarded("PrivateLink", partial(_privatelink, stack, cloud))
    for kind in file_systems(stack):
        yield guarded(f"NAS {kind}", partial(_nas, stack, cloud, kind))
    yield _to_open(stack)

    def buckets() -> Any:
        return s3 or oss.client(stack.region)

    answers = reachable or oss.reachable
    yield guarded("OSS", lambda: _oss_is_open(buckets()))
    yield guarded("OSS from here", lambda: _way_to_oss(stack, answers, buckets))
    yield guarded("name", lambda: _name(stack, buckets()))
    for name in stack.storage.existing.buckets:
        yield guarded(f"bucket {name}", partial(_existing_bucket, stack, buckets, name))


def _role(role: Role, cloud: Alicloud) -> Finding:
    answer = usable.unless_missing(partial(cloud.ask, "ram", "GetRole", RoleName=role.name), "EntityNotExist")
    subject = f"role {role.name}"
    if answer:
        return Finding(subject, Rating.FINE, "exists")
    if role.by_itself:
        says = f"is missing: {role.why}; callers with ram:CreateServiceLinkedRole make it"
        return Finding(subject, Rating.NOTE, says, role.remedy)
    return Finding(subject, Rating.PROBLEM, f"is missing: {role.why}", role.remedy)


def _flow_logs(stack: Stack, cloud: Alicloud) -> Finding:
    """Check that flow logs are activated: API GetFlowLogServiceStatus."""
    answer = cloud.ask("vpc", "GetFlowLogServiceStatus", RegionId=stack.region)
    if answer.get("Enabled") in (True, "true"):
        return Finding("flow logs", Rating.FINE, "are activated")
    says = "are not activated: the network's flow log is refused"
    return Finding(
        "flow logs", Rating.PROBLEM, says, f"aliyun vpc OpenFlowLogService --RegionId {stack.region}"
    )


def _kms(cloud: Alicloud) -> Finding:
    """Check that KMS is activated: API DescribeAccountKmsStatus: Enabled, NotEnabled, InDebt, Suspended.

    www.alibabacloud.com/help/en/kms/key-management-service/developer-reference/api-kms-2016-01-20-describeaccountkmsstatus
    """
    status = str(cloud.ask("kms", "DescribeAccountKmsStatus").get("AccountStatus"))
    if status == "Enabled":
        return Finding("KMS", Rating.FINE, "is activated")
    remedy = "aliyun kms OpenKmsService" if status == "NotEnabled" else "top up the account"
    return Finding("KMS", Rating.PROBLEM, f"is {status}: no key can be made or used", remedy)


def _logs(cloud: Alicloud) -> Finding:
    """Check that Log Service is activated: www.alibabacloud.com/help/en/log-service/latest/getslsservice."""
    answer = cloud.ask("sls", "GetSlsService")
    if answer.get("Enabled") in (True, "true") or answer.get("Status") == "Opened":
        return Finding("Simple Log Service", Rating.FINE, "is activated")
    remedy = "aliyun sls OpenSlsService --endpoint sls.aliyuncs.com --version 2019-10-23 --force"
    return Finding("Simple Log Service", Rating.PROBLEM, "is not activated: no log store is made", remedy)


def _privatelink(stack: Stack, cloud: Alicloud) -> Finding:
    """Check that PrivateLink is activated: API CheckProductOpen answers true, or refuses."""
    remedy = f"aliyun privatelink OpenPrivateLinkService --RegionId {stack.region}"
    try:
        answer = cloud.ask("privatelink", "CheckProductOpen", RegionId=stack.region)
    except CannotCheckError as error:
        if not error.code or error.code in DENIED:
            raise
        return Finding("PrivateLink", Rating.PROBLEM, f"is not activated ({error.code})", remedy)
    if answer.get("Success") in (True, "true"):
        return Finding("PrivateLink", Rating.FINE, "is activated")
    return Finding("PrivateLink", Rating.PROBLEM, "is not activated", remedy)


def file_systems(stack: Stack) -> tuple[str, ...]:
    """Return the kinds of NAS that a stack makes; pure."""
    return ("extreme",) * stack.storage.home + ("cpfs",) * bool(stack.storage.scratch_gib)


def _nas(stack: Stack, cloud: Alicloud, kind: str) -> Finding:
    """Check that the zone sells a kind of file system: API DescribeZones of NAS."""
    subject, zone = f"NAS {kind}", stack.network.home_zone
    answer = cloud.ask("nas", "DescribeZones", RegionId=stack.region, FileSystemType=kind)
    sold = sorted(
        str(zone["ZoneId"])
        for zone in listed(answer, "Zones", "Zone")
        if listed(zone, "InstanceTypes", "InstanceType")
    )
    if zone in sold:
        return Finding(subject, Rating.FINE, f"{zone} sells it")
    remedy = f"put one of {', '.join(sold)} first in network.zones" if sold else f"open NAS at {NAS_CONSOLE}"
    return Finding(subject, Rating.PROBLEM, f"{zone} does not sell it", remedy)


def _to_open(stack: Stack) -> Finding:
    wanted = UNTOLD | ({"NAS": NAS_CONSOLE} if file_systems(stack) else {})
    named = ", ".join(f"{name} ({console})" for name, console in wanted.items())
    says = "no call says whether these are activated without activating them; each is opened once an account"
    return Finding("activation", Rating.NOTE, says, f"open once in the console: {named}")


def _oss_is_open(s3: Any) -> Finding:
    """Check that OSS is activated: API ListBuckets.

    Its refusals: www.alibabacloud.com/help/en/oss/user-guide/http-403-error-code.
    """
    try:
        oss.ask(s3, "list_buckets")
    except CannotCheckError as error:
        if error.code not in oss.UNUSABLE:
            raise
        return Finding(
            "OSS", Rating.PROBLEM, str(error), f"activate OSS, or pay the amount due, at {OSS_CONSOLE}"
        )
    return Finding("OSS", Rating.FINE, "is activated")


def _way_to_oss(stack: Stack, reachable: Reachable, buckets: Callable[[], Any]) -> Finding:
    """Check the route to OSS from here.

    New accounts may not move objects of mainland China through the public endpoint
    (www.alibabacloud.com/help/doc-detail/31836.htm, "Important"). The stack uploads its payload there.
    """
    public, inner = oss.public_host(stack.region), oss.inner_host(stack.region)
    if reachable(inner):
        remedy = f"export {oss.CHOSEN}=https://{inner}"
        return Finding("OSS from here", Rating.FINE, f"the inner endpoint {inner} answers", remedy)
    inside = oss.way_inside(stack.region)
    if not reachable(public):
        return Finding("OSS from here", Rating.PROBLEM, f"neither {public} nor {inner} answers", inside)
    if not oss.restricted(stack.region):
        return Finding("OSS from here", Rating.FINE, f"{public} answers")
    access = oss.public_access(buckets())
    if access is oss.Access.ALLOWED:
        return Finding("OSS from here", Rating.FINE, f"{public} answers, and lets this account in")
    if access is oss.Access.FORBIDDEN:
        says = f"{public} refuses this account objects of mainland China: `gpu-fleet up` would stop"
        return Finding("OSS from here", Rating.PROBLEM, says, inside)
    says = f"{public} answers; no bucket says whether it refuses this account objects of mainland China"
    remedy = f"{inside}; or, if the account had OSS before 2025-03-20, `export {oss.CHOSEN}=https://{public}`"
    return Finding("OSS from here", Rating.NOTE, says, remedy)


def _name(stack: Stack, s3: Any) -> Finding:
    """Check that no stack of this name is in another region: bucket and role names are not regional."""
    bucket = stack.bucket_name("records")
    region = _region_of(s3, bucket)
    if region in (None, stack.region):
        return Finding("name", Rating.FINE, f"no stack {stack.name!r} in another region")
    says = f"a stack {stack.name!r} is in {region}: {bucket} exists, and other names would collide too"
    return Finding("name", Rating.PROBLEM, says, "name this stack otherwise")


def _existing_bucket(stack: Stack, s3: Callable[[], Any], name: str) -> Finding:
    """Check an existing bucket that instances use."""
    subject, region = f"bucket {name}", _region_of(s3(), name)
    if region == stack.region:
        return Finding(subject, Rating.FINE, f"is in {region}")
    says = "there is no such bucket" if region is None else f"is in {region}"
    remedy = f"name one in {stack.region} under storage.existing.buckets"
    return Finding(subject, Rating.PROBLEM, says, remedy)


def _region_of(s3: Any, bucket: str) -> str | None:
    """Return a bucket's region; None for no such bucket. API GetBucketLocation has ``oss-cn-beijing``."""
    try:
        answer = oss.ask(s3, "get_bucket_location", Bucket=bucket)
    except CannotCheckError as error:
        if error.code == oss.NO_BUCKET:
            return None
        if oss.ELSEWHERE in str(error):
            return "another region"
        raise
    return str(answer.get("LocationConstraint") or "").removeprefix("oss-")
