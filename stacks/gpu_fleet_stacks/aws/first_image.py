"""The parameter that launches read: from the first ``up`` on an image stands in it, later what was built."""

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


def parameter(name: str, stack: Stack, parent: pulumi.Resource) -> pulumi.Output[str]:
    """Declare it, and give its name once it stands: no group starts an instance before there is an image.

    Builds and rollbacks write it from then on, so its value here counts for its first moment alone. Nothing
    else of it but tags may ever change: the provider writes all of it then, and with it the first image.
    """
    made = aws.ssm.Parameter(
        name,
        name=stack.image.built_parameter(stack.name),
        type="String",
        data_type="aws:ec2:image",
        insecure_value=_first(stack, pulumi.InvokeOptions(parent=parent)),
        overwrite=True,  # a build from before there was this resource may have written it
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent, ignore_changes=["insecureValue"]),
    )
    return made.name


def _first(stack: Stack, opts: pulumi.InvokeOptions) -> str:
    """What a build has written already; else the image that the stack file names."""
    image = stack.image
    path = image.built_parameter(stack.name)
    known = aws.ssm.get_parameters_by_path(path=path.rpartition("/")[0], opts=opts)
    written = dict(zip(known.names, known.values, strict=True))
    if path in written:
        return written[path]
    if image.parameter is None:
        return str(image.id)
    return aws.ssm.get_parameter(name=image.parameter, opts=opts).value
