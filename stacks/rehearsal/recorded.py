"""What a resource that moto lacks would return: its inputs and the attributes every program may read."""

from typing import Any

from stacks.rehearsal import values
from stacks.rehearsal.clients import Clients

# type token -> the resource part of its ARN
_ARNS = {
    "aws:ec2/placementGroup:PlacementGroup": "placement-group/{name}",
    "aws:budgets/budget:Budget": "budget/{name}",
}
_NAMED_BY_ID = frozenset({"aws:ec2/placementGroup:PlacementGroup"})


def recorded(
    clients: Clients, type_token: str, name: str, inputs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Id and outputs of a resource that is only recorded.

    Returns:
        the id, ``recorded-<name>`` or the physical name where the provider's id is the name, and the outputs.
    """
    physical = values.physical_name(name, inputs)
    identifier = physical if type_token in _NAMED_BY_ID else f"recorded-{name}"
    computed: dict[str, Any] = {"name": physical}
    if type_token.startswith("aws:"):
        service = type_token.split(":")[1].partition("/")[0]
        resource = _ARNS.get(type_token, "{name}").format(name=physical)
        computed["arn"] = clients.arn(service, resource)
    return identifier, values.with_tags_all(inputs, **computed)
