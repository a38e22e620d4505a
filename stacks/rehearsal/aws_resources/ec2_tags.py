"""How EC2 takes tags: in the request that makes a resource."""

from typing import Any

from stacks.rehearsal.values import Inputs, tag_list


def tag_specifications(resource_type: str, inputs: Inputs) -> dict[str, Any]:
    """The EC2 request part that tags at birth; empty without tags, which EC2 would refuse."""
    if not inputs.get("tags"):
        return {}
    return {"TagSpecifications": [{"ResourceType": resource_type, "Tags": tag_list(inputs["tags"])}]}
