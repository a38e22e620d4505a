"""The stack's private network: computed subnets, optional NAT, and a log of every connection.

With ``network.existing`` it is another owner's network, of which nothing is declared (``existing``).
"""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import existing, policies
from gpu_fleet_stacks.aws.storage import BUCKETS
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Nat, Stack

# Ten minutes is the default; one minute shows a scan or an exfiltration while it still runs.
FLOW_LOG_INTERVAL_S = 60
# Buckets of AWS's own that instances and image builders read, by region:
# docs.aws.amazon.com/systems-manager/latest/userguide/ssm-agent-technical-details.html (agent, Run Command,
# Distributor, Patch Manager), docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html (layers),
# docs.aws.amazon.com/imagebuilder/latest/userguide/vpc-interface-endpoints.html (component manager).
SERVICE_BUCKETS = (
    "amazon-ssm-{region}",
    "amazon-ssm-packages-{region}",
    "aws-ssm-{region}",
    "aws-ssm-document-attachments-{region}",
    "patch-baseline-snapshot-{region}",
    "{region}-birdwatcher-prod",
    "amazoncloudwatch-agent-{region}",
    "prod-{region}-starport-layer-bucket",
    "ec2imagebuilder-toe-{region}-prod",
    "ec2imagebuilder-managed-resources-{region}-prod",
)


@dataclass(frozen=True)
class NetworkArgs:
    """Inputs of the network.

    Attributes:
        key_arn: the key that encrypts the flow log.
        keys: owns that key. The network depends on it: a network cannot be deleted while an instance is in
            it, whose volumes need the key.
    """

    stack: Stack
    key_arn: pulumi.Input[str]
    keys: pulumi.Resource


class Network(pulumi.ComponentResource):
    """VPC, subnets, routes, NAT, S3 gateway endpoint and flow log; or an existing VPC.

    Attributes:
        cidr: the network's first CIDR, whose resolver instances use.
        private_subnet_ids: zone -> subnet that holds instances.
        s3_prefix_list_id: the addresses of S3 in this region, for egress rules that need no NAT.
    """

    vpc_id: pulumi.Output[str]
    cidr: pulumi.Output[str]
    private_subnet_ids: dict[str, pulumi.Output[str]]
    s3_prefix_list_id: pulumi.Output[str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:Network", name, None, opts)
        self._name, self._stack = name, args.stack
        self._child = pulumi.ResourceOptions(parent=self)
        named = args.stack.network.existing
        if named is None:
            self._own(args)
        else:
            standing = existing.network(args.stack, named, self)
            known = pulumi.Output.from_input
            self.vpc_id, self.cidr = known(standing.vpc_id), known(standing.cidr)
            self.private_subnet_ids = {zone: known(id_) for zone, id_ in standing.private_subnet_ids.items()}
            self.s3_prefix_list_id = known(standing.s3_prefix_list_id)
        self.register_outputs({"vpc_id": self.vpc_id, "private_subnet_ids": self.private_subnet_ids})

    def _own(self, args: NetworkArgs) -> None:
        name, stack = self._name, args.stack
        cidr = stack.network.own_cidr
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=str(cidr),
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags=self._tags("vpc"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[args.keys]),
        )
        self.vpc_id, self.cidr = vpc.id, pulumi.Output.from_input(str(cidr))
        # Declared without rules, so that the default group's initial rules are removed.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default", vpc_id=vpc.id, tags=self._tags("default-unused"), opts=self._child
        )
        plan = naming.subnets(cidr, stack.network.slot_of)
        gateways = self._nat_gateways(plan) if stack.network.nat is not Nat.NONE else {}
        tables = {part.zone: self._private_table(part.zone, gateways) for part in plan}
        self.private_subnet_ids = {
            part.zone: self._subnet("private", part.zone, str(part.private), tables[part.zone]).id
            for part in plan
        }
        self.s3_prefix_list_id = self._s3_endpoint([table.id for table in tables.values()])
        self._flow_log(args.key_arn)

    def _tags(self, label: str) -> dict[str, str]:
        return naming.tags(self._stack.name, self._stack.owner, Name=naming.prefixed(self._stack.name, label))

    def _nat_gateways(self, plan: tuple[naming.ZoneSubnets, ...]) -> dict[str, aws.ec2.NatGateway]:
        """Declare public subnets, and a NAT gateway in the first zone or in each; return zone -> gateway."""
        internet = aws.ec2.InternetGateway(
            f"{self._name}-internet", vpc_id=self.vpc_id, tags=self._tags("internet"), opts=self._child
        )
        table = self._route_table("public")
        aws.ec2.Route(
            f"{self._name}-public-internet",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=internet.id,
            opts=self._child,
        )
        public = {part.zone: self._subnet("public", part.zone, str(part.public), table) for part in plan}
        if self._stack.network.nat is Nat.PER_ZONE:
            return {zone: self._nat_gateway(zone, subnet, internet) for zone, subnet in public.items()}
        first = plan[0].zone
        return dict.fromkeys(public, self._nat_gateway(first, public[first], internet))

    def _nat_gateway(
        self, zone: str, subnet: aws.ec2.Subnet, internet: aws.ec2.InternetGateway
    ) -> aws.ec2.NatGateway:
        address = aws.ec2.Eip(
            f"{self._name}-nat-{zone}", domain="vpc", tags=self._tags(f"nat-{zone}"), opts=self._child
        )
        return aws.ec2.NatGateway(
            f"{self._name}-nat-{zone}",
            allocation_id=address.allocation_id,
            subnet_id=subnet.id,
            tags=self._tags(f"nat-{zone}"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[internet]),
        )

    def _private_table(self, zone: str, gateways: dict[str, aws.ec2.NatGateway]) -> aws.ec2.RouteTable:
        table = self._route_table(f"private-{zone}")
        if zone in gateways:
            aws.ec2.Route(
                f"{self._name}-private-{zone}-nat",
                route_table_id=table.id,
                destination_cidr_block="0.0.0.0/0",
                nat_gateway_id=gateways[zone].id,
                opts=self._child,
            )
        return table

    def _route_table(self, label: str) -> aws.ec2.RouteTable:
        return aws.ec2.RouteTable(
            f"{self._name}-{label}", vpc_id=self.vpc_id, tags=self._tags(label), opts=self._child
        )

    def _subnet(self, kind: str, zone: str, cidr: str, table: aws.ec2.RouteTable) -> aws.ec2.Subnet:
        label = f"{kind}-{zone}"
        subnet = aws.ec2.Subnet(
            f"{self._name}-{label}",
            vpc_id=self.vpc_id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags=self._tags(label),
            opts=self._child,
        )
        aws.ec2.RouteTableAssociation(
            f"{self._name}-{label}", subnet_id=subnet.id, route_table_id=table.id, opts=self._child
        )
        return subnet

    def _s3_endpoint(self, route_table_ids: list[pulumi.Output[str]]) -> pulumi.Output[str]:
        """Declare the S3 endpoint: free of charge, and checkpoints avoid NAT, which bills by the gigabyte."""
        endpoint = aws.ec2.VpcEndpoint(
            f"{self._name}-s3",
            vpc_id=self.vpc_id,
            service_name=f"com.amazonaws.{self._stack.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=route_table_ids,
            policy=_s3_policy(self._stack),
            tags=self._tags("s3"),
            opts=self._child,
        )
        return endpoint.prefix_list_id

    def _flow_log(self, key_arn: pulumi.Input[str]) -> None:
        stack = self._stack
        group = aws.cloudwatch.LogGroup(
            f"{self._name}-flow",
            name=f"/gpu-fleet/{stack.name}/flow",
            kms_key_id=key_arn,
            retention_in_days=stack.flow_log_days,
            tags=self._tags("flow"),
            opts=self._child,
        )
        role = aws.iam.Role(
            f"{self._name}-flow",
            assume_role_policy=policies.trust("vpc-flow-logs.amazonaws.com", stack.account_id),
            tags=self._tags("flow"),
            opts=self._child,
        )
        aws.iam.RolePolicy(
            f"{self._name}-flow",
            role=role.id,
            policy=policies.document(
                policies.allow(
                    "WriteFlowLog",
                    ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                    pulumi.Output.concat(group.arn, ":*"),
                ),
                # this action supports no resource narrower than the account
                policies.allow("FindFlowLog", ["logs:DescribeLogGroups"], "*"),
            ),
            opts=self._child,
        )
        aws.ec2.FlowLog(
            f"{self._name}-flow",
            vpc_id=self.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=FLOW_LOG_INTERVAL_S,
            tags=self._tags("flow"),
            opts=self._child,
        )


def _s3_policy(stack: Stack) -> pulumi.Output[str]:
    """Return the endpoint's policy: the buckets that S3 calls may reach, so that no foreign key exports data.

    Services' buckets are read without a signature or with keys of the service's account, so their statement
    cannot require a principal. https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-s3.html
    """
    arn = f"arn:{policies.partition(stack.region)}:s3:::"
    everybody = {"AWS": "*"}
    own = [arn + name for name in (*map(stack.bucket_name, BUCKETS), *stack.storage.existing.buckets)]
    services = [arn + name.format(region=stack.region) for name in SERVICE_BUCKETS]
    of_account = {"StringEquals": {"aws:PrincipalAccount": stack.account_id}}
    statements = [
        policies.allow("OwnBuckets", ["s3:*"], _with_objects(own), of_account, everybody),
        policies.allow(
            "ServiceBuckets", ["s3:GetObject"], [f"{service}/*" for service in services], None, everybody
        ),
    ]
    if stack.network.s3_buckets:
        named = [arn + name for name in stack.network.s3_buckets]
        statements.append(policies.allow("NamedBuckets", ["s3:*"], _with_objects(named), None, everybody))
    return policies.document(*statements)


def _with_objects(buckets: list[str]) -> list[str]:
    return [part for bucket in buckets for part in (bucket, f"{bucket}/*")]
