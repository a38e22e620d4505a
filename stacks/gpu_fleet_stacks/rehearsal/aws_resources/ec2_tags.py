"""Tags in EC2 requests; EC2 expects them in the request that makes a resource."""

from typing import Any

from gpu_fleet_stacks.rehearsal.values import Inputs, tag_list


def tag_specifications(resource_type: str, inputs: Inputs) -> dict[str, Any]:
    """Return the EC2 request part that tags a new resource; empty without tags, which EC2 would refuse."""
    if not inputs.get("tags"):
        return {}
    return {"TagSpecifications": [{"ResourceType": resource_type, "Tags": tag_list(inputs["tags"])}]}
