"""An organisation's additions to every resource: its tags, and on AWS a boundary around every role."""

from collections.abc import Mapping
from typing import Any

import pulumi

from gpu_fleet_stacks.settings import Stack

# Inputs that hold tags, of a resource or of those that it makes; groups and launch templates have theirs from
# ``settings.pools``, since theirs are lists.
TAGS = ("tags", "template_tags", "resource_tags")
ROLE = "aws:iam/role:Role"


def asks(stack: Stack) -> list[pulumi.ResourceTransformation]:
    """Return the transformations for a stack's components, which apply them to all that they declare."""

    def asked(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult:
        return pulumi.ResourceTransformationResult(with_asked(stack, args.type_, args.props), args.opts)

    return [asked]


def with_asked(stack: Stack, kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource's inputs with the organisation's tags beside its own. Pure."""
    tagged = {key: inputs[key] for key in TAGS if isinstance(inputs.get(key), Mapping)}
    more: dict[str, Any] = {key: {**stack.tags, **own} for key, own in tagged.items()}
    if kind == ROLE and stack.aws.permissions_boundary:
        more["permissions_boundary"] = stack.aws.permissions_boundary
    return {**inputs, **more}
