"""Permitted traffic: one enterprise security group per pool, with standalone rules only.

An enterprise group lets nothing in or out without a rule, holds 65,536 addresses, and cannot name another
group or itself: instances of one job are distinguished by their vSwitches
(www.alibabacloud.com/help/en/ecs/user-guide/basic-security-groups-and-advanced-security-groups).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Pool, Stack

ENDPOINTS = "endpoints"
QUEUE = "queue"  # Slurm's controller; the settings' rules refuse this name for a pool
ANYWHERE = "0.0.0.0/0"
# Addresses of the cloud's own services inside every VPC, without NAT: OSS, ECS, Auto Scaling, CloudMonitor,
# KMS, Cloud Assistant, package mirrors, time and names
# (www.alibabacloud.com/help/en/ecs/user-guide/security-groups-for-different-use-cases).
CLOUD_SERVICES = "100.64.0.0/10"
HTTP, HTTPS, SSH, DNS, NTP, NFS = 80, 443, 22, 53, 123, 2049
# Slurm's controller, its nodes, and what srun listens on (image/gpu_fleet_image/slurm/configuration.py has
# the same).
CONTROLLER_PORT, NODE_PORT, DATABASE_PORT, SRUN_PORTS = 6817, 6818, 6819, (60001, 63000)


@dataclass(frozen=True)
class FirewallRule:
    """One standalone rule, before any id is known.

    Attributes:
        group: label of the group it belongs to: a pool's name, endpoints, or queue.
        egress: out of the group rather than into it.
        protocol: ``tcp``, ``udp`` or ``all``.
        ports: first and last port; None for all traffic.
        peer: a CIDR.
    """

    group: str
    egress: bool
    protocol: str
    ports: tuple[int, int] | None
    peer: str
    why: str

    @property
    def label(self) -> str:
        """Name of the rule, independent of the order of rules."""
        direction = "out" if self.egress else "in"
        ports = "all" if self.ports is None else f"{self.protocol}-{self.ports[0]}"
        return f"{self.group}-{direction}-{ports}-{self.peer.replace('/', '-').replace('.', '-')}"


def group_labels(stack: Stack) -> tuple[str, ...]:
    """Return the labels of all security groups; home and scratch have none, but access groups by network."""
    optional = {ENDPOINTS: stack.network.interface_endpoints, QUEUE: stack.queued}
    return (*(pool.name for pool in stack.pools), *(label for label, wanted in optional.items() if wanted))


def rules(
    stack: Stack, networks: Mapping[str, str], foreign: Mapping[str, str] | None = None
) -> tuple[FirewallRule, ...]:
    """Return every rule of the stack. Pure, so that a test can read the whole firewall without a cloud.

    Args:
        networks: zone -> CIDR of the private vSwitch there.
        foreign: ``home``, ``scratch`` -> CIDR of the vSwitch of an existing file system.
    """
    declared: list[FirewallRule] = []
    for pool in stack.pools:
        declared += _outward(stack, pool.name)
        declared += _within(stack, pool, networks, foreign or {})
        for site, office in stack.access.ssh_from.items():
            declared.append(
                FirewallRule(pool.name, False, "tcp", (SSH, SSH), str(office), f"SSH from {site}")
            )
    if stack.queued:
        declared += _of_queue(stack, networks, foreign or {})
    if stack.network.interface_endpoints:
        for network in networks.values():
            declared.append(
                FirewallRule(ENDPOINTS, False, "tcp", (HTTPS, HTTPS), network, "instances of the stack")
            )
    return tuple(declared)


def _outward(stack: Stack, group: str) -> Iterator[FirewallRule]:
    for protocol in ("udp", "tcp"):
        yield FirewallRule(group, True, protocol, (DNS, DNS), CLOUD_SERVICES, "the cloud's resolver")
    yield FirewallRule(group, True, "udp", (NTP, NTP), CLOUD_SERVICES, "time")
    for port in (HTTPS, HTTP):
        yield FirewallRule(group, True, "tcp", (port, port), CLOUD_SERVICES, "cloud services and mirrors")
    if stack.network.reaches_internet:
        yield FirewallRule(group, True, "tcp", (HTTPS, HTTPS), ANYWHERE, "packages and data")
        yield FirewallRule(group, True, "tcp", (HTTP, HTTP), ANYWHERE, "signed distribution packages")


def _within(
    stack: Stack, pool: Pool, networks: Mapping[str, str], foreign: Mapping[str, str]
) -> Iterator[FirewallRule]:
    """Yield rules inside the network: among the instances of a job, to endpoints, and to file systems.

    Where all ports are open (``_wide_open``), NFS and the endpoints need no rule.
    """
    open_to = _wide_open(stack, pool, networks, foreign)
    for network, why in open_to.items():
        for egress in (False, True):
            yield FirewallRule(pool.name, egress, "all", None, network, why)
    for port, network in _served(stack, networks, foreign):
        if network not in open_to:
            why = "cloud services inside the network" if port == HTTPS else "home directories"
            yield FirewallRule(pool.name, True, "tcp", (port, port), network, why)


def _served(
    stack: Stack, networks: Mapping[str, str], foreign: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Yield port and CIDR of the services inside the network: endpoints and homes."""
    ports = {HTTPS: stack.network.interface_endpoints, NFS: stack.storage.home}
    yield from ((port, network) for port, on in ports.items() if on for network in networks.values())
    if "home" in foreign:
        yield NFS, foreign["home"]


def _of_queue(
    stack: Stack, networks: Mapping[str, str], foreign: Mapping[str, str]
) -> Iterator[FirewallRule]:
    """Yield rules between the controller and the nodes of every pool; their vSwitches identify both.

    Where a pool opens all ports to the controller's vSwitch, it needs no rule.
    """
    controller = networks[stack.network.home_zone]
    yield from _outward(stack, QUEUE)
    for port, network in _served(stack, networks, foreign):
        why = "cloud services inside the network" if port == HTTPS else "the queue's state"
        yield FirewallRule(QUEUE, True, "tcp", (port, port), network, why)
    zones = {zone for pool in stack.pools for zone in stack.zones_of(pool)}
    for network in (network for zone, network in networks.items() if zone in zones):
        yield from _ways(QUEUE, network, to_controller=False)
    for pool in stack.pools:
        if controller not in _wide_open(stack, pool, networks, foreign):
            yield from _ways(pool.name, controller, to_controller=True)


def _ways(group: str, peer: str, *, to_controller: bool) -> Iterator[FirewallRule]:
    """Yield the rules for traffic between controller and nodes, for the group of one side."""
    yield FirewallRule(
        group, to_controller, "tcp", (CONTROLLER_PORT, CONTROLLER_PORT), peer, "jobs of the queue"
    )
    yield FirewallRule(
        group, to_controller, "tcp", (DATABASE_PORT, DATABASE_PORT), peer, "accounts of the queue"
    )
    yield FirewallRule(
        group, not to_controller, "tcp", (NODE_PORT, NODE_PORT), peer, "starts and stops jobs of the queue"
    )
    yield FirewallRule(group, not to_controller, "tcp", SRUN_PORTS, peer, "reports a job's result to srun")


def _wide_open(
    stack: Stack, pool: Pool, networks: Mapping[str, str], foreign: Mapping[str, str]
) -> dict[str, str]:
    """Return CIDR -> reason, for networks to which a pool opens every port.

    NCCL picks any port, so a pool of several instances opens all to the vSwitches of its zones. CPFS needs
    the same to its own vSwitch.
    """
    open_to: dict[str, str] = {}
    if pool.size.max != 1 or pool.erdma:
        zones = stack.zones_of(pool)
        for network in (network for zone, network in networks.items() if zone in zones):
            open_to[network] = "instances of one job among themselves"
    cpfs = networks[stack.network.home_zone] if stack.storage.scratch_gib else foreign.get("scratch")
    if cpfs is not None:
        open_to.setdefault(cpfs, "CPFS scratch, which calls its clients back")
    return open_to


@dataclass(frozen=True)
class FirewallArgs:
    """Inputs of the firewall.

    Attributes:
        networks: zone -> CIDR of the private vSwitch there.
        foreign: ``home``, ``scratch`` -> CIDR of the vSwitch of an existing file system.
    """

    stack: Stack
    vpc_id: pulumi.Input[str]
    networks: Mapping[str, str]
    foreign: Mapping[str, str]


class Firewall(pulumi.ComponentResource):
    """Security groups and their rules.

    Attributes:
        group_ids: label (see ``group_labels``) -> security group.
    """

    group_ids: dict[str, pulumi.Output[str]]

    def __init__(self, name: str, args: FirewallArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Firewall", name, None, opts)
        self._args, self._child = args, pulumi.ResourceOptions(parent=self)
        self.group_ids = {label: self._group(name, label) for label in group_labels(args.stack)}
        for rule in rules(args.stack, args.networks, args.foreign):
            self._rule(name, rule)
        self.register_outputs({"group_ids": self.group_ids})

    def _group(self, name: str, label: str) -> pulumi.Output[str]:
        stack = self._args.stack
        group = alicloud.ecs.SecurityGroup(
            f"{name}-{label}",
            vpc_id=self._args.vpc_id,
            security_group_name=naming.prefixed(stack.name, label),
            security_group_type="enterprise",
            inner_access_policy="Drop",
            description=f"gpu-fleet {stack.name} {label}",
            tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, label)),
            opts=self._child,
        )
        return group.id

    def _rule(self, name: str, rule: FirewallRule) -> None:
        alicloud.ecs.SecurityGroupRule(
            f"{name}-{rule.label}",
            security_group_id=self.group_ids[rule.group],
            type="egress" if rule.egress else "ingress",
            ip_protocol=rule.protocol,
            port_range="-1/-1" if rule.ports is None else f"{rule.ports[0]}/{rule.ports[1]}",
            cidr_ip=rule.peer,
            nic_type="intranet",
            policy="accept",
            priority=1,
            description=rule.why,
            opts=self._child,
        )
