"""Answers to the provider functions that a program may call."""

import json
from collections.abc import Callable
from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.errors import UnknownInvokeError

Answer = dict[str, Any]

# Amazon's own parameters, of which moto has some; every other one names an image here.
PUBLIC_PARAMETERS, AN_IMAGE = "/aws/service/", "ami-12c6146b"


def answer(clients: RegionClients, token: str, arguments: dict[str, Any]) -> Answer:
    """Return the result of the provider's function.

    Raises:
        UnknownInvokeError: the function has no answer.
    """
    function = _ANSWERS.get(token)
    if function is None:
        raise UnknownInvokeError(token, ", ".join(sorted(_ANSWERS)))
    return function(clients, arguments)


def _caller_identity(clients: RegionClients, _: Answer) -> Answer:
    said = clients("sts").get_caller_identity()
    return {"id": said["Account"], "accountId": said["Account"], "arn": said["Arn"], "userId": said["UserId"]}


def _partition(clients: RegionClients, _: Answer) -> Answer:
    suffix = "amazonaws.com.cn" if clients.partition == "aws-cn" else "amazonaws.com"
    reverse = ".".join(reversed(suffix.split(".")))
    return {
        "id": clients.partition,
        "partition": clients.partition,
        "dnsSuffix": suffix,
        "reverseDnsPrefix": reverse,
    }


def _region(clients: RegionClients, arguments: Answer) -> Answer:
    region = arguments.get("region") or arguments.get("name") or clients.region
    endpoint = f"ec2.{region}.amazonaws.com"
    return {"id": region, "name": region, "region": region, "endpoint": endpoint, "description": region}


def _availability_zones(clients: RegionClients, arguments: Answer) -> Answer:
    zones = clients("ec2").describe_availability_zones()["AvailabilityZones"]
    wanted = [zone for zone in zones if zone["State"] == arguments.get("state", zone["State"])]
    return {
        "id": clients.region,
        "names": [zone["ZoneName"] for zone in wanted],
        "zoneIds": [zone["ZoneId"] for zone in wanted],
        "groupNames": sorted({zone.get("GroupName", clients.region) for zone in wanted}),
        **arguments,
    }


def _parameter(clients: RegionClients, arguments: Answer) -> Answer:
    try:
        parameter = clients("ssm").get_parameter(Name=arguments["name"], WithDecryption=True)["Parameter"]
    except clients("ssm").exceptions.ParameterNotFound:
        if not arguments["name"].startswith(PUBLIC_PARAMETERS):
            raise
        arn = clients.arn("ssm", f"parameter{arguments['name']}")
        parameter = {"Name": arguments["name"], "ARN": arn, "Type": "String", "Value": AN_IMAGE, "Version": 1}
    return {
        "id": parameter["Name"],
        "name": parameter["Name"],
        "arn": parameter["ARN"],
        "type": parameter["Type"],
        "value": parameter["Value"],
        "insecureValue": parameter["Value"],
        "version": parameter["Version"],
        "withDecryption": arguments.get("withDecryption", True),
    }


def _parameters_by_path(clients: RegionClients, arguments: Answer) -> Answer:
    pages = clients("ssm").get_paginator("get_parameters_by_path").paginate(Path=arguments["path"])
    parameters = [parameter for page in pages for parameter in page["Parameters"]]
    columns = {"arns": "ARN", "names": "Name", "types": "Type", "values": "Value"}
    listed = {ours: [parameter[theirs] for parameter in parameters] for ours, theirs in columns.items()}
    return {**arguments, "id": arguments["path"], **listed}


def _no_images(_: RegionClients, arguments: Answer) -> Answer:
    """Return no images: an account on Alibaba Cloud without any build."""
    return {**arguments, "id": "images", "ids": [], "images": []}


def _ami(clients: RegionClients, arguments: Answer) -> Answer:
    filters = [{"Name": part["name"], "Values": part["values"]} for part in arguments.get("filters", [])]
    request = {"Filters": filters} | ({"Owners": arguments["owners"]} if "owners" in arguments else {})
    images = clients("ec2").describe_images(**request)["Images"]
    if not images:
        raise UnknownInvokeError(f"aws:ec2/getAmi:getAmi with {request}", "only the images that moto ships")
    image = max(images, key=lambda image: str(image["CreationDate"]))
    return {
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "name": image["Name"],
        "architecture": image["Architecture"],
        "rootDeviceName": image.get("RootDeviceName", "/dev/sda1"),
        "ownerId": image["OwnerId"],
        "arn": f"arn:{clients.partition}:ec2:{clients.region}::image/{image['ImageId']}",
        **arguments,
    }


def _vpc(clients: RegionClients, arguments: Answer) -> Answer:
    (vpc,) = clients("ec2").describe_vpcs(VpcIds=[arguments["id"]])["Vpcs"]
    return {**arguments, "cidrBlock": vpc["CidrBlock"], "ownerId": vpc["OwnerId"], "state": vpc["State"]}


def _subnet(clients: RegionClients, arguments: Answer) -> Answer:
    (subnet,) = clients("ec2").describe_subnets(SubnetIds=[arguments["id"]])["Subnets"]
    return {
        **arguments,
        "vpcId": subnet["VpcId"],
        "availabilityZone": subnet["AvailabilityZone"],
        "cidrBlock": subnet["CidrBlock"],
        "mapPublicIpOnLaunch": subnet["MapPublicIpOnLaunch"],
    }


_WAYS = ("NatGatewayId", "GatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId")


def _route_tables(clients: RegionClients, arguments: Answer) -> Answer:
    named = [{"Name": each["name"], "Values": each["values"]} for each in arguments["filters"]]
    tables = clients("ec2").describe_route_tables(Filters=named)["RouteTables"]
    return {**arguments, "id": clients.region, "ids": [table["RouteTableId"] for table in tables]}


def _route_table(clients: RegionClients, arguments: Answer) -> Answer:
    known = clients("ec2").describe_route_tables(RouteTableIds=[arguments["routeTableId"]])
    (table,) = known["RouteTables"]
    return {**arguments, "id": table["RouteTableId"], "routes": [_route(each) for each in table["Routes"]]}


def _route(route: Answer) -> Answer:
    ways = {f"{way[0].lower()}{way[1:]}": route.get(way, "") for way in _WAYS}
    others = ("carrierGatewayId", "coreNetworkArn", "destinationPrefixListId", "egressOnlyGatewayId")
    more = ("ipv6CidrBlock", "localGatewayId", "odbNetworkArn", "vpcEndpointId", "vpcPeeringConnectionId")
    return {**dict.fromkeys((*others, *more), ""), **ways, "cidrBlock": route.get("DestinationCidrBlock", "")}


def _prefix_list(clients: RegionClients, arguments: Answer) -> Answer:
    named = [{"Name": "prefix-list-name", "Values": [arguments["name"]]}]
    (known,) = clients("ec2").describe_managed_prefix_lists(Filters=named)["PrefixLists"]
    return {**arguments, "id": known["PrefixListId"]}


def _bucket(clients: RegionClients, arguments: Answer) -> Answer:
    name = arguments["bucket"]
    region = clients("s3").head_bucket(Bucket=name)["ResponseMetadata"]["HTTPHeaders"]["x-amz-bucket-region"]
    return {
        **arguments,
        "id": name,
        "arn": f"arn:{clients.partition}:s3:::{name}",
        "bucketRegion": region,
    }


def _file_system(clients: RegionClients, arguments: Answer) -> Answer:
    (files,) = clients("efs").describe_file_systems(FileSystemId=arguments["fileSystemId"])["FileSystems"]
    return {
        **arguments,
        "id": files["FileSystemId"],
        "arn": files["FileSystemArn"],
        "encrypted": files["Encrypted"],
        "kmsKeyId": files.get("KmsKeyId", ""),
        "availabilityZoneName": files.get("AvailabilityZoneName", ""),
        "dnsName": f"{files['FileSystemId']}.efs.{clients.region}.amazonaws.com",
    }


def _policy_document(_: RegionClients, arguments: Answer) -> Answer:
    document: dict[str, Any] = {"Version": arguments.get("version", "2012-10-17")}
    if "policyId" in arguments:
        document["Id"] = arguments["policyId"]
    document["Statement"] = [_statement(part) for part in arguments.get("statements", [])]
    text = json.dumps(document, indent=2)
    return {"id": "policy", "json": text, "minifiedJson": json.dumps(document), **arguments}


def _statement(part: Answer) -> Answer:
    statement: Answer = {"Sid": part["sid"]} if part.get("sid") else {}
    statement["Effect"] = part.get("effect", "Allow")
    for ours, theirs in (
        ("actions", "Action"),
        ("notActions", "NotAction"),
        ("resources", "Resource"),
        ("notResources", "NotResource"),
    ):
        if part.get(ours):
            statement[theirs] = _one_or_many(part[ours])
    for ours, theirs in (("principals", "Principal"), ("notPrincipals", "NotPrincipal")):
        if part.get(ours):
            statement[theirs] = _principals(part[ours])
    if part.get("conditions"):
        statement["Condition"] = _conditions(part["conditions"])
    return statement


def _principals(parts: list[Answer]) -> Any:
    if any(part["type"] == "*" for part in parts):
        return "*"
    merged: dict[str, list[str]] = {}
    for part in parts:
        merged.setdefault(part["type"], []).extend(part["identifiers"])
    return {kind: _one_or_many(names) for kind, names in merged.items()}


def _conditions(parts: list[Answer]) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for part in parts:
        merged.setdefault(part["test"], {})[part["variable"]] = _one_or_many(part["values"])
    return merged


def _one_or_many(items: list[str]) -> str | list[str]:
    """Return a list of one as its item, as the provider writes it."""
    return items[0] if len(items) == 1 else sorted(items, reverse=True)


_ANSWERS: dict[str, Callable[[RegionClients, Answer], Answer]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller_identity,
    "aws:index/getPartition:getPartition": _partition,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _availability_zones,
    "aws:iam/getPolicyDocument:getPolicyDocument": _policy_document,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:ssm/getParametersByPath:getParametersByPath": _parameters_by_path,
    "alicloud:ecs/getImages:getImages": _no_images,
    "aws:ec2/getAmi:getAmi": _ami,
    "aws:ec2/getPrefixList:getPrefixList": _prefix_list,
    "aws:ec2/getRouteTable:getRouteTable": _route_table,
    "aws:ec2/getRouteTables:getRouteTables": _route_tables,
    "aws:ec2/getSubnet:getSubnet": _subnet,
    "aws:ec2/getVpc:getVpc": _vpc,
    "aws:s3/getBucket:getBucket": _bucket,
    "aws:efs/getFileSystem:getFileSystem": _file_system,
}
