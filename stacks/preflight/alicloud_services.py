"""What an Alibaba Cloud account must have opened, once, before any stack comes up in it."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from stacks.calls.alicloud import Alicloud
from stacks.preflight import usable
from stacks.preflight.findings import Finding, Verdict, guarded
from stacks.settings import Stack

HTTPS = 443
TIMEOUT_S = 5.0
# Regions outside of mainland China, whose names begin alike.
NOT_MAINLAND = ("cn-hongkong",)
# No API of theirs tells whether they are open without opening them (terraform-provider-alicloud,
# data_source_alicloud_oss_service.go and its likes call Open...Service).
CONSOLES = {
    "OSS": "https://oss.console.aliyun.com",
    "NAS": "https://nasnext.console.aliyun.com",
    "Simple Log Service": "https://sls.console.aliyun.com",
    "Function Compute": "https://fcnext.console.aliyun.com",
    "CloudMonitor": "https://cloudmonitor.console.aliyun.com",
}
PRIVATELINK = ("PrivateLink", "https://vpc.console.aliyun.com/endpoint")

Reachable = Callable[[str], bool]


@dataclass(frozen=True)
class Role:
    """A role that a service takes on.

    Attributes:
        name: as RAM knows it.
        why: what fails without it.
        remedy: what makes it.
    """

    name: str
    why: str
    remedy: str


def linked(service: str) -> str:
    """The command that makes a service-linked role."""
    return f"aliyun resourcemanager CreateServiceLinkedRole --ServiceName {service}"


def roles(stack: Stack) -> tuple[Role, ...]:
    """The roles that a stack needs; pure.

    Their names: www.alibabacloud.com/help/en/auto-scaling, "Service-linked role"; ecs, "Encrypt disks"; and
    "Import custom images".
    """
    grant = "open https://ram.console.aliyun.com/role/authorize and grant"
    scaling, disks = "AliyunServiceRoleForAutoScaling", "AliyunECSDiskEncryptDefaultRole"
    imports = "AliyunECSImageImportDefaultRole"
    needed = [
        Role(scaling, "Auto Scaling makes no group", linked("ess.aliyuncs.com")),
        Role(disks, "no disk takes the stack's key", f"{grant} {disks} to ECS"),
    ]
    if stack.image.disk is not None:
        needed.append(Role(imports, "ECS cannot read image.disk", f"{grant} {imports} to ECS"))
    return tuple(needed)


def services(stack: Stack, cloud: Alicloud, reachable: Reachable | None = None) -> Iterator[Finding]:
    """Roles, services that were opened, and the way to OSS.

    Args:
        stack: the settings.
        cloud: whom to ask.
        reachable: whether a host answers from here; by default by a connection.
    """
    for role in roles(stack):
        yield guarded(f"role {role.name}", partial(_role, role, cloud))
    yield guarded("flow logs", partial(_flow_logs, stack, cloud))
    yield _to_open(stack)
    yield _way_to_oss(stack, reachable or _connects)


def _role(role: Role, cloud: Alicloud) -> Finding:
    found = usable.unless_missing(partial(cloud.ask, "ram", "GetRole", RoleName=role.name), "EntityNotExist")
    subject = f"role {role.name}"
    if found:
        return Finding(subject, Verdict.FINE, "is there")
    return Finding(subject, Verdict.PROBLEM, f"is missing: {role.why}", role.remedy)


def _flow_logs(stack: Stack, cloud: Alicloud) -> Finding:
    """API GetFlowLogServiceStatus."""
    told = cloud.ask("vpc", "GetFlowLogServiceStatus", RegionId=stack.region)
    if told.get("Enabled") in (True, "true"):
        return Finding("flow logs", Verdict.FINE, "are activated")
    says = "are not activated: the network's flow log is refused"
    return Finding(
        "flow logs", Verdict.PROBLEM, says, f"aliyun vpc OpenFlowLogService --RegionId {stack.region}"
    )


def _to_open(stack: Stack) -> Finding:
    wanted = dict(CONSOLES)
    if stack.network.interface_endpoints:
        wanted[PRIVATELINK[0]] = PRIVATELINK[1]
    listed = ", ".join(f"{name} ({console})" for name, console in wanted.items())
    says = "no call tells whether these are activated without activating them; each is opened once an account"
    return Finding("activation", Verdict.NOTE, says, f"open once in the console: {listed}")


def _way_to_oss(stack: Stack, reachable: Reachable) -> Finding:
    """Accounts of late may not move objects of mainland China through the public endpoint.

    www.alibabacloud.com/help/en/oss/user-guide/oss-domain-names. The stack uploads its payload there.
    """
    public, inner = f"oss-{stack.region}.aliyuncs.com", f"oss-{stack.region}-internal.aliyuncs.com"
    if reachable(inner):
        remedy = f"export OSS_ENDPOINT=https://{inner}"
        return Finding("OSS from here", Verdict.FINE, f"the inner endpoint {inner} answers", remedy)
    inside = (
        f"run `gpu-fleet up` from an instance of region {stack.region} or from Cloud Shell, "
        f"with OSS_ENDPOINT=https://{inner}"
    )
    if not reachable(public):
        return Finding("OSS from here", Verdict.PROBLEM, f"neither {public} nor {inner} answers", inside)
    if stack.region.startswith("cn-") and stack.region not in NOT_MAINLAND:
        says = f"{public} answers, but new accounts may not move objects of mainland China through it"
        return Finding("OSS from here", Verdict.NOTE, says, f"if the upload is refused: {inside}")
    return Finding("OSS from here", Verdict.FINE, f"{public} answers")


def _connects(host: str) -> bool:
    try:
        with socket.create_connection((host, HTTPS), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False
