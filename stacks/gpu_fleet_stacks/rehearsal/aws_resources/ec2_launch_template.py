"""Launch templates in moto."""

from collections.abc import Mapping
from typing import Any

from gpu_fleet_stacks.rehearsal.aws_resources.ec2_tags import tag_specifications
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    pascal,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)

# Inputs that the API takes unchanged, under its own name.
_PLAIN = api_names(
    "imageId instanceType keyName userData ebsOptimized instanceInitiatedShutdownBehavior "
    "disableApiStop disableApiTermination",
    SecurityGroupIds="vpcSecurityGroupIds",
)
# Inputs whose keys differ from the API's only in their first letter.
_NESTED = api_names(
    "blockDeviceMappings capacityReservationSpecification iamInstanceProfile "
    "instanceMarketOptions metadataOptions monitoring placement"
)


def launch_template(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    template_name = physical_name(name, inputs)
    made = clients("ec2").create_launch_template(
        LaunchTemplateName=template_name,
        LaunchTemplateData=_data(inputs),
        **picked(inputs, {"VersionDescription": "description"}),
        **tag_specifications("launch-template", inputs),
    )["LaunchTemplate"]
    identifier = made["LaunchTemplateId"]
    return identifier, with_tags_all(
        inputs,
        name=template_name,
        arn=clients.arn("ec2", f"launch-template/{identifier}"),
        defaultVersion=made["DefaultVersionNumber"],
        latestVersion=made["LatestVersionNumber"],
    )


def _data(inputs: Inputs) -> dict[str, Any]:
    data: dict[str, Any] = _typed(picked(inputs, _PLAIN))
    data |= {parameter: _typed(pascal(inputs[key])) for parameter, key in _NESTED.items() if key in inputs}
    if "networkInterfaces" in inputs:
        data["NetworkInterfaces"] = [_network_interface(part) for part in inputs["networkInterfaces"]]
    if "tagSpecifications" in inputs:
        data["TagSpecifications"] = [
            {"ResourceType": part["resourceType"], "Tags": tag_list(part["tags"])}
            for part in inputs["tagSpecifications"]
        ]
    return data


def _network_interface(part: Inputs) -> dict[str, Any]:
    """Convert an interface; EC2 calls its security groups ``Groups``."""
    others = {key: value for key, value in part.items() if key != "securityGroups"}
    return {**_typed(pascal(others)), **picked(part, {"Groups": "securityGroups"})}


def _typed(value: Any) -> Any:
    """Convert truth values, which the provider writes as text to distinguish "unset" from "false"."""
    if isinstance(value, Mapping):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


CREATORS = {"aws:ec2/launchTemplate:LaunchTemplate": launch_template}
