"""Parameters and documents in moto."""

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)


def parameter(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names("type description keyId dataType tier allowedPattern overwrite")
    parameter_name = physical_name(name, inputs)
    value = inputs["value"] if "value" in inputs else inputs["insecureValue"]
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    # SSM refuses both in one call; the provider tags after it has written
    with_it = {} if inputs.get("overwrite") else tags
    made = clients("ssm").put_parameter(Name=parameter_name, Value=value, **picked(inputs, names), **with_it)
    if tags and not with_it:
        clients("ssm").add_tags_to_resource(ResourceType="Parameter", ResourceId=parameter_name, **tags)
    arn = clients.arn("ssm", f"parameter/{parameter_name.lstrip('/')}")
    outputs = {"dataType": "text", "tier": "Standard", "insecureValue": value, "value": value} | inputs
    return parameter_name, with_tags_all(
        outputs, name=parameter_name, arn=arn, version=made["Version"], hasValueWo=False
    )


def document(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names("content documentType documentFormat targetType")
    document_name = physical_name(name, inputs)
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = clients("ssm").create_document(Name=document_name, **picked(inputs, names), **tags)
    said = made["DocumentDescription"]
    outputs = {"documentVersion": said["DocumentVersion"], "schemaVersion": said["SchemaVersion"]} | inputs
    return document_name, with_tags_all(
        outputs,
        name=document_name,
        arn=clients.arn("ssm", f"document/{document_name}"),
        status=said["Status"],
    )


CREATORS = {"aws:ssm/parameter:Parameter": parameter, "aws:ssm/document:Document": document}
