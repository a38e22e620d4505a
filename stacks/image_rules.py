"""What a stack file may say of its image: one that is there, or one that the stack builds. Pure."""

import re
from collections.abc import Iterator

from stacks.catalog import Cloud
from stacks.errors import Problem
from stacks.settings import Image, Nat, Network

# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_CreateImageRecipe.html: parentImage
AWS_BASE = r"ami-[0-9a-f]{8,17}|ssm:/?[\w./-]+|arn:aws[\w-]*:imagebuilder:[\w-]+:\w+:image/\S+"
EXAMPLE = "ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


def check(
    image: Image, cloud: Cloud | None, network: Network | None, *, emulated: bool = False
) -> Iterator[Problem]:
    """All rules of the image.

    Args:
        image: the section.
        cloud: the stack's cloud, if it parsed.
        network: the stack's network, if it parsed.
        emulated: whether an emulator stands for the cloud.
    """
    if (image.id is None) == (image.parameter is None):
        yield Problem(
            "image", {"id": image.id, "parameter": image.parameter}, "needs exactly one of id and parameter"
        )
    if (image.base_id is None) != (image.payload is None):
        given = {"base_id": image.base_id, "payload": image.payload}
        yield Problem("image", given, "a build needs both base_id and payload")
    if cloud is Cloud.AWS:
        yield from _of_aws(image, network, emulated=emulated)
    if cloud is Cloud.ALICLOUD and image.parameter is not None:
        yield Problem("image.parameter", image.parameter, "is of AWS; on Alibaba Cloud use image.id")


def _of_aws(image: Image, network: Network | None, *, emulated: bool) -> Iterator[Problem]:
    if image.disk is not None:
        yield Problem("image.disk", image.disk, "is of Alibaba Cloud; leave it out")
    if image.base_id is None:
        return
    if not re.fullmatch(AWS_BASE, image.base_id):
        allowed = f"must be ami-..., an image of Image Builder, or ssm: with a parameter, such as {EXAMPLE}"
        yield Problem("image.base_id", image.base_id, allowed)
    if emulated:
        yield Problem("image.base_id", image.base_id, "no emulator of Image Builder is known; leave it out")
    if network is not None and network.nat is Nat.NONE:
        allowed = "a build fetches packages: needs network.nat one or per_zone"
        yield Problem("image.base_id", image.base_id, allowed)
