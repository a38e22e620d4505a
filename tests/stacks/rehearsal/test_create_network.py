"""What the network creators leave in moto, read with boto3."""

import pytest

from tests.stacks.rehearsal.examples import REGION, TAGS, as_map


def test_a_vpc_has_its_cidr_tags_and_dns_and_reports_its_default_group_and_main_table(clients, create):
    made, outputs = create(
        "aws:ec2/vpc:Vpc",
        cidrBlock="10.1.0.0/16",
        enableDnsHostnames=True,
        enableDnsSupport=True,
        tags=TAGS,
    )

    ec2 = clients("ec2")
    seen = ec2.describe_vpcs(VpcIds=[made])["Vpcs"][0]
    dns = ec2.describe_vpc_attribute(VpcId=made, Attribute="enableDnsHostnames")
    assert seen["CidrBlock"] == "10.1.0.0/16"
    assert as_map(seen["Tags"]) == TAGS
    assert dns["EnableDnsHostnames"]["Value"] is True
    group = ec2.describe_security_groups(GroupIds=[outputs["defaultSecurityGroupId"]])
    table = ec2.describe_route_tables(RouteTableIds=[outputs["mainRouteTableId"]])
    assert group["SecurityGroups"][0]["VpcId"] == table["RouteTables"][0]["VpcId"] == made


@pytest.mark.parametrize("public", [{}, {"mapPublicIpOnLaunch": True}])
def test_a_subnet_lies_in_its_zone_and_gives_public_addresses_where_asked(clients, create, vpc_id, public):
    place = {"vpcId": vpc_id, "cidrBlock": "10.0.1.0/24", "availabilityZone": f"{REGION}b"}

    made, outputs = create("aws:ec2/subnet:Subnet", **place, **public)

    seen = clients("ec2").describe_subnets(SubnetIds=[made])["Subnets"][0]
    assert (seen["CidrBlock"], seen["AvailabilityZone"]) == ("10.0.1.0/24", f"{REGION}b")
    assert seen["MapPublicIpOnLaunch"] is bool(public)
    assert outputs["availabilityZoneId"] == seen["AvailabilityZoneId"]


def test_an_internet_gateway_is_attached(clients, create, vpc_id):
    made, _ = create("aws:ec2/internetGateway:InternetGateway", vpcId=vpc_id)

    seen = clients("ec2").describe_internet_gateways(InternetGatewayIds=[made])["InternetGateways"][0]
    assert [attached["VpcId"] for attached in seen["Attachments"]] == [vpc_id]


def test_a_nat_gateway_has_the_address_it_was_given(clients, create, subnet_id):
    _, address = create("aws:ec2/eip:Eip", domain="vpc")

    made, outputs = create(
        "aws:ec2/natGateway:NatGateway", subnetId=subnet_id, allocationId=address["allocationId"]
    )

    seen = clients("ec2").describe_nat_gateways(NatGatewayIds=[made])["NatGateways"][0]
    assert seen["SubnetId"] == subnet_id
    assert seen["NatGatewayAddresses"][0]["PublicIp"] == address["publicIp"] == outputs["publicIp"]


def test_a_route_leads_where_it_should(clients, create, vpc_id):
    table, _ = create("aws:ec2/routeTable:RouteTable", vpcId=vpc_id)
    gateway, _ = create("aws:ec2/internetGateway:InternetGateway", vpcId=vpc_id)

    made, outputs = create(
        "aws:ec2/route:Route", routeTableId=table, destinationCidrBlock="0.0.0.0/0", gatewayId=gateway
    )

    seen = clients("ec2").describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]
    assert {route["DestinationCidrBlock"]: route["GatewayId"] for route in seen}["0.0.0.0/0"] == gateway
    assert (made, outputs["state"]) == (f"r-{table}-0.0.0.0/0", "active")


def test_a_route_may_stand_inside_its_table(clients, create, vpc_id):
    gateway, _ = create("aws:ec2/internetGateway:InternetGateway", vpcId=vpc_id)

    table, _ = create(
        "aws:ec2/routeTable:RouteTable",
        vpcId=vpc_id,
        routes=[{"cidrBlock": "0.0.0.0/0", "gatewayId": gateway}],
    )

    seen = clients("ec2").describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]
    assert gateway in {route["GatewayId"] for route in seen}


def test_a_subnet_follows_the_table_it_is_associated_with(clients, create, vpc_id, subnet_id):
    table, _ = create("aws:ec2/routeTable:RouteTable", vpcId=vpc_id)

    made, _ = create(
        "aws:ec2/routeTableAssociation:RouteTableAssociation", routeTableId=table, subnetId=subnet_id
    )

    seen = clients("ec2").describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Associations"]
    assert [(entry["RouteTableAssociationId"], entry["SubnetId"]) for entry in seen] == [(made, subnet_id)]


def test_a_gateway_endpoint_reports_the_prefix_list_of_its_service(clients, create, vpc_id):
    table, _ = create("aws:ec2/routeTable:RouteTable", vpcId=vpc_id)
    service = f"com.amazonaws.{REGION}.s3"

    made, outputs = create(
        "aws:ec2/vpcEndpoint:VpcEndpoint", vpcId=vpc_id, serviceName=service, routeTableIds=[table]
    )

    seen = clients("ec2").describe_vpc_endpoints(VpcEndpointIds=[made])["VpcEndpoints"][0]
    lists = clients("ec2").describe_managed_prefix_lists(PrefixListIds=[outputs["prefixListId"]])
    assert (seen["VpcEndpointType"], seen["RouteTableIds"]) == ("Gateway", [table])
    assert lists["PrefixLists"][0]["PrefixListName"] == service


def test_an_interface_endpoint_stands_in_its_subnets(clients, create, vpc_id, subnet_id, group_id):
    made, outputs = create(
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        vpcId=vpc_id,
        serviceName=f"com.amazonaws.{REGION}.ssm",
        vpcEndpointType="Interface",
        subnetIds=[subnet_id],
        securityGroupIds=[group_id],
        privateDnsEnabled=True,
    )

    seen = clients("ec2").describe_vpc_endpoints(VpcEndpointIds=[made])["VpcEndpoints"][0]
    assert (seen["VpcEndpointType"], seen["SubnetIds"]) == ("Interface", [subnet_id])
    assert outputs["state"] == "available"


def test_a_flow_log_writes_to_its_group(clients, create, vpc_id, role):
    _, group = create("aws:cloudwatch/logGroup:LogGroup", name="/flow")

    made, _ = create(
        "aws:ec2/flowLog:FlowLog",
        vpcId=vpc_id,
        trafficType="ALL",
        logDestinationType="cloud-watch-logs",
        logDestination=group["arn"],
        iamRoleArn=role["arn"],
        maxAggregationInterval=60,
        tags=TAGS,
    )

    seen = clients("ec2").describe_flow_logs(FlowLogIds=[made])["FlowLogs"][0]
    assert (seen["ResourceId"], seen["TrafficType"], seen["MaxAggregationInterval"]) == (vpc_id, "ALL", 60)
    assert seen["LogDestination"] == group["arn"]


@pytest.mark.parametrize(
    ("kind", "seen_of_it"),
    [
        ("aws:ec2/securityGroup:SecurityGroup", {"Description": "instances"}),
        ("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", {"GroupName": "default"}),
    ],
)
def test_a_new_security_group_lets_nothing_out_and_the_default_one_is_emptied(
    clients, create, vpc_id, kind, seen_of_it
):
    own = {"description": seen_of_it["Description"]} if "Description" in seen_of_it else {}

    made, _ = create(kind, vpcId=vpc_id, tags=TAGS, **own)

    seen = clients("ec2").describe_security_groups(GroupIds=[made])["SecurityGroups"][0]
    assert (seen["IpPermissions"], seen["IpPermissionsEgress"]) == ([], [])
    assert (seen["VpcId"], as_map(seen["Tags"]), seen | seen_of_it) == (vpc_id, TAGS, seen)


def test_rules_may_stand_inside_a_security_group(clients, create, vpc_id):
    made, _ = create(
        "aws:ec2/securityGroup:SecurityGroup",
        vpcId=vpc_id,
        ingress=[{"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["10.9.0.0/16"]}],
        egress=[{"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}],
    )

    seen = clients("ec2").describe_security_groups(GroupIds=[made])["SecurityGroups"][0]
    assert [span["CidrIp"] for span in seen["IpPermissions"][0]["IpRanges"]] == ["10.9.0.0/16"]
    assert [pair["GroupId"] for pair in seen["IpPermissionsEgress"][0]["UserIdGroupPairs"]] == [made]


def test_an_ingress_rule_names_its_peer_network(clients, create, group_id):
    made, _ = create(
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        securityGroupId=group_id,
        ipProtocol="tcp",
        fromPort=22,
        toPort=22,
        cidrIpv4="10.9.0.0/16",
        description="SSH from the office",
        tags=TAGS,
    )

    seen = clients("ec2").describe_security_group_rules(SecurityGroupRuleIds=[made])["SecurityGroupRules"][0]
    assert (seen["CidrIpv4"], seen["FromPort"], seen["ToPort"]) == ("10.9.0.0/16", 22, 22)
    assert (seen["IsEgress"], seen["Description"]) == (False, "SSH from the office")


def test_an_egress_rule_may_name_its_own_group(clients, create, group_id):
    made, _ = create(
        "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
        securityGroupId=group_id,
        ipProtocol="-1",
        referencedSecurityGroupId=group_id,
    )

    seen = clients("ec2").describe_security_group_rules(SecurityGroupRuleIds=[made])["SecurityGroupRules"][0]
    assert (seen["IsEgress"], seen["IpProtocol"]) == (True, "-1")
    assert seen["ReferencedGroupInfo"]["GroupId"] == group_id
