"""The parameter that launches read: it holds an image from the first ``up`` on, later the newest build."""

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


def parameter(name: str, stack: Stack, parent: pulumi.Resource) -> pulumi.Output[str]:
    """Declare the parameter; return its name once it exists, so that no group launches without an image.

    Builds and rollbacks write the parameter later, so the value here counts only at first. Only its tags may
    ever change here: the provider would write the whole parameter, and with it the first image.
    """
    made = aws.ssm.Parameter(
        name,
        name=stack.image.built_parameter(stack.name),
        type="String",
        data_type="aws:ec2:image",
        insecure_value=_first(stack, pulumi.InvokeOptions(parent=parent)),
        overwrite=True,  # an earlier build may have written it
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent, ignore_changes=["insecureValue"]),
    )
    return made.name


def _first(stack: Stack, opts: pulumi.InvokeOptions) -> str:
    """Return the image that a build has written, or else the one that the stack file names."""
    image = stack.image
    path = image.built_parameter(stack.name)
    known = aws.ssm.get_parameters_by_path(path=path.rpartition("/")[0], opts=opts)
    written = dict(zip(known.names, known.values, strict=True))
    if path in written:
        return written[path]
    if image.parameter is None:
        return str(image.id)
    return aws.ssm.get_parameter(name=image.parameter, opts=opts).value
