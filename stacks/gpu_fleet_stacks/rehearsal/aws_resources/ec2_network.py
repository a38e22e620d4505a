"""Networks in moto: VPCs, subnets, gateways, addresses, routes, endpoints, flow logs."""

from gpu_fleet_stacks.rehearsal.aws_resources.ec2_tags import tag_specifications
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import Created, Inputs, api_names, picked, with_tags_all


def vpc(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    ec2 = clients("ec2")
    names = {"CidrBlock": "cidrBlock", "InstanceTenancy": "instanceTenancy"}
    made = ec2.create_vpc(**picked(inputs, names), **tag_specifications("vpc", inputs))["Vpc"]
    identifier = made["VpcId"]
    for attribute, key in (
        ("EnableDnsSupport", "enableDnsSupport"),
        ("EnableDnsHostnames", "enableDnsHostnames"),
    ):
        if key in inputs:
            ec2.modify_vpc_attribute(VpcId=identifier, **{attribute: {"Value": inputs[key]}})
    of_vpc = [{"Name": "vpc-id", "Values": [identifier]}]
    group = ec2.describe_security_groups(Filters=[*of_vpc, {"Name": "group-name", "Values": ["default"]}])
    table = ec2.describe_route_tables(Filters=[*of_vpc, {"Name": "association.main", "Values": ["true"]}])
    table_id = table["RouteTables"][0]["RouteTableId"]
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"vpc/{identifier}"),
        ownerId=clients.account_id,
        defaultSecurityGroupId=group["SecurityGroups"][0]["GroupId"],
        defaultRouteTableId=table_id,
        mainRouteTableId=table_id,
        dhcpOptionsId=made.get("DhcpOptionsId", "default"),
    )


def subnet(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = api_names("vpcId cidrBlock availabilityZone availabilityZoneId ipv6CidrBlock")
    ec2 = clients("ec2")
    made = ec2.create_subnet(**picked(inputs, names), **tag_specifications("subnet", inputs))["Subnet"]
    identifier = made["SubnetId"]
    if inputs.get("mapPublicIpOnLaunch"):
        ec2.modify_subnet_attribute(SubnetId=identifier, MapPublicIpOnLaunch={"Value": True})
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"subnet/{identifier}"),
        ownerId=clients.account_id,
        availabilityZone=made["AvailabilityZone"],
        availabilityZoneId=made["AvailabilityZoneId"],
    )


def internet_gateway(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    ec2 = clients("ec2")
    made = ec2.create_internet_gateway(**tag_specifications("internet-gateway", inputs))["InternetGateway"]
    identifier = made["InternetGatewayId"]
    if "vpcId" in inputs:
        ec2.attach_internet_gateway(InternetGatewayId=identifier, VpcId=inputs["vpcId"])
    arn = clients.arn("ec2", f"internet-gateway/{identifier}")
    return identifier, with_tags_all(inputs, arn=arn, ownerId=clients.account_id)


def eip(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    tags = tag_specifications("elastic-ip", inputs)
    made = clients("ec2").allocate_address(**picked(inputs, {"Domain": "domain"}), **tags)
    identifier = made["AllocationId"]
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"elastic-ip/{identifier}"),
        allocationId=identifier,
        publicIp=made["PublicIp"],
    )


def nat_gateway(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = {"SubnetId": "subnetId", "AllocationId": "allocationId", "ConnectivityType": "connectivityType"}
    made = clients("ec2").create_nat_gateway(
        **picked(inputs, names), **tag_specifications("natgateway", inputs)
    )
    gateway = made["NatGateway"]
    address = gateway["NatGatewayAddresses"][0] if gateway.get("NatGatewayAddresses") else {}
    return gateway["NatGatewayId"], with_tags_all(
        inputs,
        publicIp=address.get("PublicIp", ""),
        privateIp=address.get("PrivateIp", ""),
        networkInterfaceId=address.get("NetworkInterfaceId", ""),
    )


def route_table(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:ec2/routeTable:RouteTable, with the routes written inside it."""
    made = clients("ec2").create_route_table(
        VpcId=inputs["vpcId"], **tag_specifications("route-table", inputs)
    )
    identifier = made["RouteTable"]["RouteTableId"]
    for inner in inputs.get("routes", []):
        _add_route(clients, identifier, {**inner, "destinationCidrBlock": inner["cidrBlock"]})
    arn = clients.arn("ec2", f"route-table/{identifier}")
    return identifier, with_tags_all(inputs, arn=arn, ownerId=clients.account_id)


def route(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    destination = _add_route(clients, inputs["routeTableId"], inputs)
    return f"r-{inputs['routeTableId']}-{destination}", {**inputs, "origin": "CreateRoute", "state": "active"}


def _add_route(clients: RegionClients, table_id: str, inputs: Inputs) -> str:
    names = api_names(
        "destinationCidrBlock destinationIpv6CidrBlock destinationPrefixListId gatewayId "
        "natGatewayId vpcEndpointId vpcPeeringConnectionId transitGatewayId "
        "networkInterfaceId"
    )
    request = picked(inputs, names)
    clients("ec2").create_route(RouteTableId=table_id, **request)
    return next(str(value) for key, value in request.items() if key.startswith("Destination"))


def route_table_association(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = {"RouteTableId": "routeTableId", "SubnetId": "subnetId", "GatewayId": "gatewayId"}
    made = clients("ec2").associate_route_table(**picked(inputs, names))
    return made["AssociationId"], inputs


def vpc_endpoint(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:ec2/vpcEndpoint:VpcEndpoint, gateway or interface."""
    names = api_names(
        "vpcId serviceName vpcEndpointType routeTableIds subnetIds securityGroupIds privateDnsEnabled",
        PolicyDocument="policy",
    )
    ec2 = clients("ec2")
    inputs = {"vpcEndpointType": "Gateway"} | inputs
    made = ec2.create_vpc_endpoint(**picked(inputs, names), **tag_specifications("vpc-endpoint", inputs))
    endpoint = made["VpcEndpoint"]
    identifier = endpoint["VpcEndpointId"]
    computed: Inputs = {
        "arn": clients.arn("ec2", f"vpc-endpoint/{identifier}"),
        "ownerId": clients.account_id,
        "state": endpoint["State"],
        "networkInterfaceIds": endpoint.get("NetworkInterfaceIds", []),
        "dnsEntries": [
            {"dnsName": entry["DnsName"], "hostedZoneId": entry["HostedZoneId"]}
            for entry in endpoint.get("DnsEntries", [])
        ],
    }
    if inputs["vpcEndpointType"] == "Gateway":
        by_name = [{"Name": "prefix-list-name", "Values": [inputs["serviceName"]]}]
        lists = ec2.describe_managed_prefix_lists(Filters=by_name)["PrefixLists"]
        computed["prefixListId"] = lists[0]["PrefixListId"]
    return identifier, with_tags_all(inputs, **computed)


def flow_log(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:ec2/flowLog:FlowLog of a VPC, a subnet or a network interface."""
    kinds = {"vpcId": "VPC", "subnetId": "Subnet", "eniId": "NetworkInterface"}
    key = next(key for key in kinds if key in inputs)
    names = api_names(
        "trafficType logDestinationType logDestination maxAggregationInterval logFormat",
        DeliverLogsPermissionArn="iamRoleArn",
    )
    tags = tag_specifications("vpc-flow-log", inputs)
    request = {"ResourceIds": [inputs[key]], "ResourceType": kinds[key], **picked(inputs, names), **tags}
    identifier = clients("ec2").create_flow_logs(**request)["FlowLogIds"][0]
    return identifier, with_tags_all(inputs, arn=clients.arn("ec2", f"vpc-flow-log/{identifier}"))


def network_interface(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = {"SubnetId": "subnetId", "Groups": "securityGroups", "Description": "description"}
    request = picked(inputs, names) | tag_specifications("network-interface", inputs)
    made = clients("ec2").create_network_interface(**request)["NetworkInterface"]
    identifier, address = made["NetworkInterfaceId"], made["PrivateIpAddress"]
    return identifier, with_tags_all(
        inputs,
        arn=clients.arn("ec2", f"network-interface/{identifier}"),
        interfaceType=made["InterfaceType"],
        macAddress=made["MacAddress"],
        ownerId=clients.account_id,
        privateIp=address,
        privateIps=[address],
    )


CREATORS = {
    "aws:ec2/vpc:Vpc": vpc,
    "aws:ec2/subnet:Subnet": subnet,
    "aws:ec2/internetGateway:InternetGateway": internet_gateway,
    "aws:ec2/eip:Eip": eip,
    "aws:ec2/natGateway:NatGateway": nat_gateway,
    "aws:ec2/routeTable:RouteTable": route_table,
    "aws:ec2/route:Route": route,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": route_table_association,
    "aws:ec2/vpcEndpoint:VpcEndpoint": vpc_endpoint,
    "aws:ec2/flowLog:FlowLog": flow_log,
    "aws:ec2/networkInterface:NetworkInterface": network_interface,
}
