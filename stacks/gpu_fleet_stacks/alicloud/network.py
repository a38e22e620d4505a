"""The stack's private network: computed vSwitches, optional NAT, and a log of every connection.

With ``network.existing`` it is another owner's network, of which nothing is declared (``existing``).
"""

import json
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import existing
from gpu_fleet_stacks.alicloud.logs import LogStore, LogStoreArgs
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Nat, Stack

FLOW_LOG_INTERVAL_MINUTES = "1"
# Highest bandwidth of an address, in Mbit/s; traffic is paid by the byte, so a high limit costs nothing.
NAT_BANDWIDTH_MBPS = "200"


@dataclass(frozen=True)
class NetworkArgs:
    """Inputs of the network.

    Attributes:
        key_id: the key that encrypts the flow log.
        keys: owns that key. The network depends on it: a network cannot be deleted while an instance is in
            it, whose volumes need the key.
    """

    stack: Stack
    key_id: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    keys: pulumi.Resource


class Network(pulumi.ComponentResource):
    """VPC, vSwitches, routes, NAT, OSS gateway endpoint and flow log; or an existing VPC.

    Attributes:
        private_subnet_ids: zone -> vSwitch that holds instances.
        private_networks: zone -> its CIDR, known at once.
    """

    vpc_id: pulumi.Output[str]
    private_subnet_ids: dict[str, pulumi.Output[str]]
    private_networks: dict[str, str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Network", name, None, opts)
        self._name, self._stack = name, args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        named = args.stack.network.existing
        if named is None:
            self._own(args)
        else:
            standing = existing.network(args.stack, named, self)
            known = pulumi.Output.from_input
            self.vpc_id = known(standing.vpc_id)
            self.private_subnet_ids = {zone: known(id_) for zone, id_ in standing.private_subnet_ids.items()}
            self.private_networks = standing.private_networks
        self.register_outputs({"vpc_id": self.vpc_id, "private_subnet_ids": self.private_subnet_ids})

    def _own(self, args: NetworkArgs) -> None:
        name, stack = self._name, args.stack
        vpc = alicloud.vpc.Network(
            f"{name}-vpc",
            vpc_name=naming.prefixed(stack.name),
            cidr_block=str(stack.network.own_cidr),
            dns_hostname_status="ENABLED",
            tags=self._tags("vpc"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[args.keys]),
        )
        self.vpc_id = vpc.id
        plan = naming.subnets(stack.network.own_cidr, stack.network.slot_of)
        tables = {part.zone: self._private_table(part.zone) for part in plan}
        private = {
            part.zone: self._subnet("private", part.zone, str(part.private), tables[part.zone])
            for part in plan
        }
        self.private_subnet_ids = {zone: vswitch.id for zone, vswitch in private.items()}
        self.private_networks = private_networks(stack)
        if stack.network.nat is not Nat.NONE:
            self._way_out(plan, tables, private)
        self._oss_endpoint([table.id for table in tables.values()])
        self._flow_log(args)

    def _tags(self, label: str) -> dict[str, str]:
        return naming.tags(self._stack.name, self._stack.owner, Name=naming.prefixed(self._stack.name, label))

    def _private_table(self, zone: str) -> alicloud.vpc.RouteTable:
        return alicloud.vpc.RouteTable(
            f"{self._name}-private-{zone}",
            vpc_id=self.vpc_id,
            route_table_name=naming.prefixed(self._stack.name, "private", zone),
            associate_type="VSwitch",
            tags=self._tags(f"private-{zone}"),
            opts=self._child,
        )

    def _subnet(
        self, kind: str, zone: str, cidr: str, table: alicloud.vpc.RouteTable | None
    ) -> alicloud.vpc.Switch:
        label = f"{kind}-{zone}"
        vswitch = alicloud.vpc.Switch(
            f"{self._name}-{label}",
            vpc_id=self.vpc_id,
            zone_id=zone,
            cidr_block=cidr,
            vswitch_name=naming.prefixed(self._stack.name, label),
            tags=self._tags(label),
            opts=self._child,
        )
        if table is not None:
            alicloud.vpc.RouteTableAttachment(
                f"{self._name}-{label}", vswitch_id=vswitch.id, route_table_id=table.id, opts=self._child
            )
        return vswitch

    def _way_out(
        self,
        plan: tuple[naming.ZoneSubnets, ...],
        tables: dict[str, alicloud.vpc.RouteTable],
        private: dict[str, alicloud.vpc.Switch],
    ) -> None:
        """Declare a NAT gateway in the first zone or in each, and route every private vSwitch through one."""
        homes = plan if self._stack.network.nat is Nat.PER_ZONE else plan[:1]
        gateways = {part.zone: self._nat_gateway(part) for part in homes}
        for zone, vswitch in private.items():
            gateway, address = gateways.get(zone) or gateways[plan[0].zone]
            alicloud.vpc.RouteEntry(
                f"{self._name}-private-{zone}-nat",
                route_table_id=tables[zone].id,
                destination_cidrblock="0.0.0.0/0",
                nexthop_type="NatGateway",
                nexthop_id=gateway.id,
                opts=self._child,
            )
            alicloud.vpc.SnatEntry(
                f"{self._name}-{zone}",
                snat_table_id=gateway.snat_table_ids,
                source_vswitch_id=vswitch.id,
                snat_ip=address,
                snat_entry_name=naming.prefixed(self._stack.name, zone),
                opts=self._child,
            )

    def _nat_gateway(self, part: naming.ZoneSubnets) -> tuple[alicloud.vpc.NatGateway, pulumi.Output[str]]:
        """Declare a NAT gateway in a vSwitch of its own; return it and its address, known once bound."""
        label = f"nat-{part.zone}"
        home = self._subnet("public", part.zone, str(part.public), None)
        gateway = alicloud.vpc.NatGateway(
            f"{self._name}-{label}",
            vpc_id=self.vpc_id,
            vswitch_id=home.id,
            nat_gateway_name=naming.prefixed(self._stack.name, label),
            nat_type="Enhanced",
            network_type="internet",
            payment_type="PayAsYouGo",
            internet_charge_type="PayByLcu",
            deletion_protection=self._stack.protected,
            tags=self._tags(label),
            opts=self._child,
        )
        address = alicloud.ecs.EipAddress(
            f"{self._name}-{label}",
            address_name=naming.prefixed(self._stack.name, label),
            payment_type="PayAsYouGo",
            internet_charge_type="PayByTraffic",
            bandwidth=NAT_BANDWIDTH_MBPS,
            tags=self._tags(label),
            opts=self._child,
        )
        bound = alicloud.ecs.EipAssociation(
            f"{self._name}-{label}",
            allocation_id=address.id,
            instance_id=gateway.id,
            instance_type="Nat",
            opts=self._child,
        )
        return gateway, pulumi.Output.all(address.ip_address, bound.id).apply(lambda both: str(both[0]))

    def _oss_endpoint(self, route_table_ids: list[pulumi.Output[str]]) -> None:
        """Declare the OSS endpoint: it is free, and checkpoints avoid NAT, which bills by the gigabyte."""
        alicloud.vpc.GatewayEndpoint(
            f"{self._name}-oss",
            vpc_id=self.vpc_id,
            service_name=f"com.aliyun.{self._stack.region}.oss",
            gateway_endpoint_name=naming.prefixed(self._stack.name, "oss"),
            # required for OSS (alicloud_vpc_gateway_endpoint, policy_document)
            policy_document=_gateway_policy(self._stack),
            route_tables=route_table_ids,
            tags=self._tags("oss"),
            opts=self._child,
        )

    def _flow_log(self, args: NetworkArgs) -> None:
        stack = self._stack
        days = stack.flow_log_days
        log = LogStore(
            naming.prefixed(stack.name, "flow"),
            LogStoreArgs(stack, "flow", args.key_id, args.key_arn, days),
            self._child,
        )
        alicloud.vpc.FlowLog(
            f"{self._name}-flow",
            flow_log_name=naming.prefixed(stack.name, "flow"),
            resource_type="VPC",
            resource_id=self.vpc_id,
            traffic_type="All",
            project_name=log.project_name,
            log_store_name=log.store_name,
            aggregation_interval=FLOW_LOG_INTERVAL_MINUTES,
            status="Active",
            tags=self._tags("flow"),
            opts=self._child,
        )


def private_networks(stack: Stack) -> dict[str, str]:
    """Return zone -> CIDR of the stack's private vSwitch there, in the network's order. Pure."""
    plan = naming.subnets(stack.network.own_cidr, stack.network.slot_of)
    return {part.zone: str(part.private) for part in plan}


def _gateway_policy(stack: Stack) -> str:
    """Return the gateway's policy: everything in the buckets that the stack names, and reading elsewhere.

    Reading is needed since Cloud Assistant and the cloud's packages are in buckets of Alibaba Cloud, which no
    reference names. Data can leave the network only into the stack's own buckets.
    """
    named = (f"{naming.prefixed(stack.name)}-*", *stack.storage.existing.buckets)
    own = [f"acs:oss:*:{stack.account_id}:{name}" for name in named]
    passed = [part for bucket in own for part in (bucket, f"{bucket}/*")]
    statements = [
        {"Effect": "Allow", "Principal": "*", "Action": ["oss:*"], "Resource": passed},
        {"Effect": "Allow", "Principal": "*", "Action": ["oss:GetObject"], "Resource": ["*"]},
    ]
    return json.dumps({"Version": "1", "Statement": statements})
