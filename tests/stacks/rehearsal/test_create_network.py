"""What the network creators leave in moto, read with boto3."""

from tests.stacks.rehearsal.examples import REGION, TAGS, as_map


def test_a_vpc_has_its_cidr_tags_and_dns_and_reports_its_default_group_and_main_table(clients, create, seen):
    dns = {"enableDnsHostnames": True, "enableDnsSupport": True}

    made, outputs = create("ec2/vpc", cidrBlock="10.1.0.0/16", tags=TAGS, **dns)

    vpc = seen("ec2", "describe_vpcs", VpcIds=[made])
    names = clients("ec2").describe_vpc_attribute(VpcId=made, Attribute="enableDnsHostnames")
    assert (vpc["CidrBlock"], as_map(vpc["Tags"])) == ("10.1.0.0/16", TAGS)
    assert names["EnableDnsHostnames"]["Value"] is True
    group = seen("ec2", "describe_security_groups", GroupIds=[outputs["defaultSecurityGroupId"]])
    table = seen("ec2", "describe_route_tables", RouteTableIds=[outputs["mainRouteTableId"]])
    assert group["VpcId"] == table["VpcId"] == made


def test_a_subnet_lies_in_its_zone_and_gives_public_addresses_where_asked(create, seen, vpc_id):
    for number, public in enumerate(({}, {"mapPublicIpOnLaunch": True})):
        place = {"cidrBlock": f"10.0.{number}.0/24", "availabilityZone": f"{REGION}b"}
        made, outputs = create("ec2/subnet", vpcId=vpc_id, **place, **public)

        subnet = seen("ec2", "describe_subnets", SubnetIds=[made])
        assert (subnet["CidrBlock"], subnet["AvailabilityZone"]) == tuple(place.values())
        assert subnet["MapPublicIpOnLaunch"] is bool(public)
        assert outputs["availabilityZoneId"] == subnet["AvailabilityZoneId"]


def test_an_internet_gateway_is_attached(create, seen, vpc_id):
    made, _ = create("ec2/internetGateway", vpcId=vpc_id)

    gateway = seen("ec2", "describe_internet_gateways", InternetGatewayIds=[made])
    assert [attached["VpcId"] for attached in gateway["Attachments"]] == [vpc_id]


def test_a_nat_gateway_has_the_address_it_was_given(create, seen, subnet_id):
    _, address = create("ec2/eip", domain="vpc")

    made, outputs = create("ec2/natGateway", subnetId=subnet_id, allocationId=address["allocationId"])

    gateway = seen("ec2", "describe_nat_gateways", NatGatewayIds=[made])
    assert gateway["SubnetId"] == subnet_id
    assert gateway["NatGatewayAddresses"][0]["PublicIp"] == address["publicIp"] == outputs["publicIp"]


def test_a_route_leads_where_it_should_by_itself_or_inside_its_table(create, seen, vpc_id):
    gateway, _ = create("ec2/internetGateway", vpcId=vpc_id)
    leads = {"gatewayId": gateway}
    table, _ = create("ec2/routeTable", vpcId=vpc_id)
    inside, _ = create("ec2/routeTable", vpcId=vpc_id, routes=[{"cidrBlock": "0.0.0.0/0", **leads}])

    made, outputs = create("ec2/route", routeTableId=table, destinationCidrBlock="0.0.0.0/0", **leads)

    for each in (table, inside):
        routes = seen("ec2", "describe_route_tables", RouteTableIds=[each])["Routes"]
        assert {route["DestinationCidrBlock"]: route["GatewayId"] for route in routes}["0.0.0.0/0"] == gateway
    assert (made, outputs["state"]) == (f"r-{table}-0.0.0.0/0", "active")


def test_a_subnet_follows_the_table_it_is_associated_with(create, seen, vpc_id, subnet_id):
    table, _ = create("ec2/routeTable", vpcId=vpc_id)

    made, _ = create("ec2/routeTableAssociation", routeTableId=table, subnetId=subnet_id)

    (entry,) = seen("ec2", "describe_route_tables", RouteTableIds=[table])["Associations"]
    assert (entry["RouteTableAssociationId"], entry["SubnetId"]) == (made, subnet_id)


def test_a_gateway_endpoint_reports_the_prefix_list_of_its_service(create, seen, vpc_id):
    table, _ = create("ec2/routeTable", vpcId=vpc_id)
    service = f"com.amazonaws.{REGION}.s3"

    made, outputs = create("ec2/vpcEndpoint", vpcId=vpc_id, serviceName=service, routeTableIds=[table])

    endpoint = seen("ec2", "describe_vpc_endpoints", VpcEndpointIds=[made])
    prefixes = seen("ec2", "describe_managed_prefix_lists", PrefixListIds=[outputs["prefixListId"]])
    assert (endpoint["VpcEndpointType"], endpoint["RouteTableIds"]) == ("Gateway", [table])
    assert prefixes["PrefixListName"] == service


def test_an_interface_endpoint_stands_in_its_subnets(create, seen, vpc_id, subnet_id, group_id):
    place = {"vpcId": vpc_id, "subnetIds": [subnet_id], "securityGroupIds": [group_id]}
    kind = {"vpcEndpointType": "Interface", "privateDnsEnabled": True}

    made, outputs = create("ec2/vpcEndpoint", serviceName=f"com.amazonaws.{REGION}.ssm", **kind, **place)

    endpoint = seen("ec2", "describe_vpc_endpoints", VpcEndpointIds=[made])
    assert (endpoint["VpcEndpointType"], endpoint["SubnetIds"]) == ("Interface", [subnet_id])
    assert outputs["state"] == "available"


def test_a_flow_log_writes_to_its_group(create, seen, vpc_id, role):
    _, group = create("cloudwatch/logGroup", name="/flow")
    target = {"logDestinationType": "cloud-watch-logs", "logDestination": group["arn"]}
    what = {"trafficType": "ALL", "maxAggregationInterval": 60, "tags": TAGS}

    made, _ = create("ec2/flowLog", vpcId=vpc_id, iamRoleArn=role["arn"], **target, **what)

    log = seen("ec2", "describe_flow_logs", FlowLogIds=[made])
    assert (log["ResourceId"], log["TrafficType"], log["MaxAggregationInterval"]) == (vpc_id, "ALL", 60)
    assert log["LogDestination"] == group["arn"]


def test_a_new_security_group_lets_nothing_out_and_the_default_one_is_emptied(create, seen, vpc_id):
    new, _ = create("ec2/securityGroup", vpcId=vpc_id, tags=TAGS, description="instances")
    default, _ = create("ec2/defaultSecurityGroup", vpcId=vpc_id, tags=TAGS)

    for made, own in ((new, {"Description": "instances"}), (default, {"GroupName": "default"})):
        group = seen("ec2", "describe_security_groups", GroupIds=[made])
        shut = {"IpPermissions": [], "IpPermissionsEgress": [], "VpcId": vpc_id}
        assert group.items() >= (own | shut).items()
        assert as_map(group["Tags"]) == TAGS


def test_rules_may_stand_inside_a_security_group(create, seen, vpc_id):
    ingress = {"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["10.9.0.0/16"]}
    egress = {"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}

    made, _ = create("ec2/securityGroup", vpcId=vpc_id, ingress=[ingress], egress=[egress])

    group = seen("ec2", "describe_security_groups", GroupIds=[made])
    assert [span["CidrIp"] for span in group["IpPermissions"][0]["IpRanges"]] == ["10.9.0.0/16"]
    assert [pair["GroupId"] for pair in group["IpPermissionsEgress"][0]["UserIdGroupPairs"]] == [made]


def test_a_rule_names_its_peer_network_or_its_own_group(create, seen, group_id):
    ssh = {"ipProtocol": "tcp", "fromPort": 22, "toPort": 22, "cidrIpv4": "10.9.0.0/16"}
    about = {"description": "SSH from the office", "tags": TAGS}
    own = {"ipProtocol": "-1", "referencedSecurityGroupId": group_id}

    ingress, _ = create("vpc/securityGroupIngressRule", securityGroupId=group_id, **ssh, **about)
    egress, _ = create("vpc/securityGroupEgressRule", securityGroupId=group_id, **own)

    let_in, let_out = (
        seen("ec2", "describe_security_group_rules", SecurityGroupRuleIds=[rule])
        for rule in (ingress, egress)
    )
    assert (let_in["CidrIpv4"], let_in["FromPort"], let_in["ToPort"]) == ("10.9.0.0/16", 22, 22)
    assert (let_in["IsEgress"], let_in["Description"]) == (False, "SSH from the office")
    assert (let_out["IsEgress"], let_out["IpProtocol"]) == (True, "-1")
    assert let_out["ReferencedGroupInfo"]["GroupId"] == group_id
