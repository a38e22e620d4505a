"""Permitted traffic: one security group per pool and per file system, with standalone rules only.

Rules inside a group replace each other on every change and cannot be tagged, so they are not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Pool, Stack

ENDPOINTS, HOME, SCRATCH, IMAGE_BUILDER = "endpoints", "home", "scratch", "image-builder"
QUEUE = "queue"  # Slurm's controller; the settings' rules refuse this name for a pool
ANYWHERE = "0.0.0.0/0"
# An existing VPC, and the region's S3 addresses: no pool can have a name with capitals.
EXISTING, S3 = "VPC", "S3"
TIME_SERVICE = "169.254.169.123/32"  # Amazon Time Sync, docs.aws.amazon.com/AWSEC2 "set-time"
HTTP, HTTPS, SSH, DNS, NTP, NFS = 80, 443, 22, 53, 123, 2049
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
# Slurm's controller, its nodes, and what srun listens on (image/gpu_fleet_image/slurm/configuration.py has
# the same).
CONTROLLER_PORT, NODE_PORT, DATABASE_PORT, SRUN_PORTS = 6817, 6818, 6819, (60001, 63000)
LUSTRE_PORTS = ((988, 988), (1018, 1023))


@dataclass(frozen=True)
class FirewallRule:
    """One standalone rule, before any id is known.

    Attributes:
        group: label of the group it belongs to: a pool's name, or endpoints, home, scratch, image-builder.
        egress: out of the group rather than into it.
        protocol: ``tcp``, ``udp`` or ``-1`` for all traffic.
        ports: first and last port; None for all traffic.
        peer: label of another group, a CIDR, ``S3`` for the region's S3 addresses, or ``VPC`` for the network
            of an existing VPC, which is known after its lookup.
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
        peer = "s3" if self.peer == S3 else self.peer.replace("/", "-").replace(".", "-")
        return f"{self.group}-{direction}-{ports}-{peer}"


def group_labels(stack: Stack) -> tuple[str, ...]:
    """Return the labels of every security group of the stack."""
    optional = {
        ENDPOINTS: stack.network.interface_endpoints,
        HOME: stack.storage.home,
        SCRATCH: bool(stack.storage.scratch_gib),
        IMAGE_BUILDER: stack.image.built,
        QUEUE: stack.queued,
    }
    return (*(pool.name for pool in stack.pools), *(label for label, wanted in optional.items() if wanted))


def rules(stack: Stack) -> tuple[FirewallRule, ...]:
    """Return every rule of the stack. Pure, so that a test can read the whole firewall without a cloud."""
    declared: list[FirewallRule] = []
    for pool in stack.pools:
        declared += _outward(stack, pool.name, f"instances of pool {pool.name}")
        declared += _among_nodes(pool)
        declared += _storage(stack, pool)
        for site, network in stack.access.ssh_from.items():
            declared.append(
                FirewallRule(pool.name, False, "tcp", (SSH, SSH), str(network), f"SSH from {site}")
            )
    if stack.storage.scratch_gib:
        declared += _pair(SCRATCH, SCRATCH, LUSTRE_PORTS, "Lustre servers among themselves")
    if stack.queued:
        declared += _of_queue(stack)
    if stack.image.built:
        declared += _outward(stack, IMAGE_BUILDER, "the builder of the image")
    return tuple(declared)


def _outward(stack: Stack, group: str, who: str) -> Iterator[FirewallRule]:
    cidr = EXISTING if stack.network.existing else str(stack.network.cidr)
    for protocol in ("udp", "tcp"):
        yield FirewallRule(group, True, protocol, (DNS, DNS), cidr, "resolver of the network")
    yield FirewallRule(group, True, "udp", (NTP, NTP), TIME_SERVICE, "time")
    if not stack.network.reaches_internet:
        yield FirewallRule(group, True, "tcp", (HTTPS, HTTPS), S3, "buckets")
    else:
        yield FirewallRule(group, True, "tcp", (HTTPS, HTTPS), ANYWHERE, "packages, data and cloud services")
        yield FirewallRule(group, True, "tcp", (HTTP, HTTP), ANYWHERE, "signed distribution packages")
    if stack.network.interface_endpoints:
        yield FirewallRule(group, True, "tcp", (HTTPS, HTTPS), ENDPOINTS, "cloud services inside the network")
        yield FirewallRule(ENDPOINTS, False, "tcp", (HTTPS, HTTPS), group, who)


def _among_nodes(pool: Pool) -> Iterator[FirewallRule]:
    """Yield rules for all traffic within a pool that may hold several instances.

    EFA needs both directions, each naming the group itself: a rule to 0.0.0.0/0 does not cover it
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html). NCCL over TCP picks any port.
    """
    if pool.efa or pool.size.max != 1:
        for egress in (False, True):
            yield FirewallRule(
                pool.name, egress, "-1", None, pool.name, "instances of one job among themselves"
            )


def _storage(stack: Stack, pool: Pool) -> Iterator[FirewallRule]:
    """Yield rules to the stack's file systems by their groups, and to existing ones by their VPC."""
    existing = stack.storage.existing
    if existing.home is not None:
        yield FirewallRule(pool.name, True, "tcp", (NFS, NFS), EXISTING, "home directories")
    if existing.scratch is not None:
        yield from _pair(pool.name, EXISTING, LUSTRE_PORTS, "Lustre scratch")
    if stack.storage.home:
        yield FirewallRule(pool.name, True, "tcp", (NFS, NFS), HOME, "home directories")
        yield FirewallRule(HOME, False, "tcp", (NFS, NFS), pool.name, f"instances of pool {pool.name}")
    if stack.storage.scratch_gib:
        yield from _pair(pool.name, SCRATCH, LUSTRE_PORTS, "Lustre scratch")
        yield from _pair(SCRATCH, pool.name, LUSTRE_PORTS, f"instances of pool {pool.name}")


def _of_queue(stack: Stack) -> Iterator[FirewallRule]:
    """Yield rules between the controller and the nodes of every pool; a pool's own rules cover its nodes."""
    yield from _outward(stack, QUEUE, "the queue's controller")
    yield FirewallRule(QUEUE, True, "tcp", (NFS, NFS), HOME, "the queue's state")
    yield FirewallRule(HOME, False, "tcp", (NFS, NFS), QUEUE, "the queue's controller")
    for pool in stack.pools:
        ways = (
            (pool.name, QUEUE, (CONTROLLER_PORT, CONTROLLER_PORT), "jobs of the queue"),
            (pool.name, QUEUE, (DATABASE_PORT, DATABASE_PORT), "accounts of the queue"),
            (QUEUE, pool.name, (NODE_PORT, NODE_PORT), "starts and stops jobs"),
            (QUEUE, pool.name, SRUN_PORTS, "reports a job's result to srun"),
        )
        for client, server, ports, why in ways:
            yield FirewallRule(client, True, "tcp", ports, server, why)
            yield FirewallRule(server, False, "tcp", ports, client, why)


def _pair(group: str, peer: str, ports: tuple[tuple[int, int], ...], why: str) -> Iterator[FirewallRule]:
    """Yield rules for both directions: Lustre servers call their clients back."""
    for span in ports:
        for egress in (False, True):
            yield FirewallRule(group, egress, "tcp", span, peer, why)


@dataclass(frozen=True)
class FirewallArgs:
    """Inputs of the firewall.

    Attributes:
        cidr: its addresses.
    """

    stack: Stack
    vpc_id: pulumi.Input[str]
    cidr: pulumi.Input[str]
    s3_prefix_list_id: pulumi.Input[str]


class Firewall(pulumi.ComponentResource):
    """Security groups and their rules.

    Attributes:
        group_ids: label (see ``group_labels``) -> security group.
    """

    group_ids: dict[str, pulumi.Output[str]]

    def __init__(self, name: str, args: FirewallArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Firewall", name, None, opts)
        self._args, self._child = args, pulumi.ResourceOptions(parent=self)
        self.group_ids = {label: self._group(name, label) for label in group_labels(args.stack)}
        for rule in rules(args.stack):
            self._rule(name, rule)
        self.register_outputs({"group_ids": self.group_ids})

    def _group(self, name: str, label: str) -> pulumi.Output[str]:
        stack = self._args.stack
        group = aws.ec2.SecurityGroup(
            f"{name}-{label}",
            vpc_id=self._args.vpc_id,
            description=f"gpu-fleet {stack.name} {label}",
            revoke_rules_on_delete=True,
            tags=naming.tags(stack.name, stack.owner, Name=naming.prefixed(stack.name, label)),
            opts=self._child,
        )
        return group.id

    def _rule(self, name: str, rule: FirewallRule) -> None:
        stack = self._args.stack
        make = aws.vpc.SecurityGroupEgressRule if rule.egress else aws.vpc.SecurityGroupIngressRule
        make(
            f"{name}-{rule.label}",
            security_group_id=self.group_ids[rule.group],
            ip_protocol=rule.protocol,
            from_port=None if rule.ports is None else rule.ports[0],
            to_port=None if rule.ports is None else rule.ports[1],
            referenced_security_group_id=self.group_ids.get(rule.peer),
            prefix_list_id=self._args.s3_prefix_list_id if rule.peer == S3 else None,
            cidr_ipv4=self._args.cidr if rule.peer == EXISTING else rule.peer if "/" in rule.peer else None,
            description=rule.why,
            tags=naming.tags(stack.name, stack.owner, Name=rule.label),
            opts=self._child,
        )
