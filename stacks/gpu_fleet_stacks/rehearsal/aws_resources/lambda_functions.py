"""Functions in moto, and permissions to call them."""

from typing import Any

from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    pascal,
    physical_name,
    picked,
    with_tags_all,
)

_FUNCTION = api_names(
    "runtime role handler description timeout memorySize publish packageType architectures layers tags",
    KMSKeyArn="kmsKeyArn",
)
_NESTED = api_names("deadLetterConfig ephemeralStorage loggingConfig tracingConfig vpcConfig")


def function(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:lambda/function:Function, with its code as a zip."""
    function_name, client = physical_name(name, inputs), clients("lambda")
    request: dict[str, Any] = {
        "FunctionName": function_name,
        "Code": {"ZipFile": zip_bytes(inputs["code"])},
        **picked(inputs, _FUNCTION),
        **pascal(picked(inputs, _NESTED)),
    }
    if "environment" in inputs:
        request["Environment"] = {"Variables": inputs["environment"].get("variables", {})}
    made = client.create_function(**request)
    reserved = inputs.get("reservedConcurrentExecutions", -1)
    if reserved >= 0:  # the provider writes -1 for "none reserved"
        client.put_function_concurrency(FunctionName=function_name, ReservedConcurrentExecutions=reserved)
    arn = made["FunctionArn"]
    invoke_arn = _invoke_arn(clients, arn)
    return function_name, with_tags_all(
        inputs,
        name=function_name,
        arn=arn,
        codeSha256=made["CodeSha256"],
        invokeArn=invoke_arn,
        lastModified=made["LastModified"],
        qualifiedArn=f"{arn}:{made['Version']}",
        qualifiedInvokeArn=_invoke_arn(clients, f"{arn}:{made['Version']}"),
        sourceCodeSize=made["CodeSize"],
        version=made["Version"],
    )


def _invoke_arn(clients: RegionClients, arn: str) -> str:
    """Return the ARN that API Gateway calls: docs.aws.amazon.com/apigateway/latest/developerguide."""
    path = f"path/2015-03-31/functions/{arn}/invocations"
    return f"arn:{clients.partition}:apigateway:{clients.region}:lambda:{path}"


def permission(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names("action principal qualifier sourceAccount sourceArn", FunctionName="function")
    statement_id = physical_name(name, inputs, "statementId")
    clients("lambda").add_permission(StatementId=statement_id, **picked(inputs, names))
    return statement_id, {**inputs, "statementId": statement_id}


def event_invoke_config(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = api_names("functionName qualifier maximumEventAgeInSeconds maximumRetryAttempts")
    destinations = inputs.get("destinationConfig", {})
    # the API refuses any other key, so both are named
    keys = {"onFailure": "OnFailure", "onSuccess": "OnSuccess"}
    config = {keys[key]: {"Destination": part["destination"]} for key, part in destinations.items()}
    clients("lambda").put_function_event_invoke_config(
        **picked(inputs, names), **({"DestinationConfig": config} if config else {})
    )
    return inputs["functionName"], inputs


CREATORS = {
    "aws:lambda/function:Function": function,
    "aws:lambda/permission:Permission": permission,
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig": event_invoke_config,
}
