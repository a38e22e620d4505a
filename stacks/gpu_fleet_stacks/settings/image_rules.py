"""Rules for the image of a stack: an existing one, or one that the stack builds. Pure."""

import re
from collections.abc import Callable, Iterator

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import ImageMode, Stack

# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_CreateImageRecipe.html: parentImage
AWS_BASE = (
    r"ami-[0-9a-f]{8,17}|ssm:/?[A-Za-z0-9_./-]+|arn:aws[a-z-]*:imagebuilder:[a-z0-9-]+:[a-z0-9]+:image/\S+"
)
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html: eight hexadecimal digits, or seventeen.
AWS_IMAGE = r"ami-([0-9a-f]{8}|[0-9a-f]{17})"
# ids of Alibaba Cloud's own images, such as ubuntu_24_04_x64_20G_alibase_20250722.vhd, and of custom ones
ALICLOUD_IMAGE = r"m-[0-9a-z]+|[a-z][A-Za-z0-9_]*\.vhd"
EXAMPLE = "ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


def _one_source(stack: Stack) -> Iterator[Problem]:
    image = stack.image
    if (image.id is None) == (image.parameter is None):
        given = {"id": image.id, "parameter": image.parameter}
        yield Problem("image", given, "needs exactly one of id and parameter")


def _id(stack: Stack) -> Iterator[Problem]:
    image_id = stack.image.id
    if image_id is None:
        return
    if stack.cloud is Cloud.AWS and not re.fullmatch(AWS_IMAGE, image_id):
        allowed = "must be an image of AWS: ami- and 8 or 17 of the digits 0 to 9 and a to f"
        yield Problem("image.id", image_id, allowed)
    if stack.cloud is Cloud.ALICLOUD and not re.fullmatch(ALICLOUD_IMAGE, image_id):
        allowed = "must be an image of Alibaba Cloud: m-..., or the name of a public one, which ends in .vhd"
        yield Problem("image.id", image_id, allowed)


def _parameter(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.ALICLOUD and stack.image.parameter is not None:
        yield Problem(
            "image.parameter", stack.image.parameter, "is for AWS only; on Alibaba Cloud use image.id"
        )


def _baked(stack: Stack) -> Iterator[Problem]:
    """Check ``image.mode``: an image of our recipe needs no bootstrap; another needs a build to be baked."""
    image = stack.image
    if image.mode is ImageMode.BAKED and not (image.bundled or image.built):
        allowed = (
            "needs image.bundled: true, or image.base_id for builds: only an image of this project's recipe "
            "carries agent and gate"
        )
        yield Problem("image.mode", str(image.mode), allowed)
    if image.follows_builds and image.parameter == image.built_parameter(stack.name):
        allowed = (
            "is written by builds: name the image that instances boot until the first build has ended, or "
            "set image.bundled: true if one has"
        )
        yield Problem("image.parameter", image.parameter, allowed)
    if image.bundled and image.mode is not ImageMode.BAKED:
        allowed = "must be baked where image.bundled is true: the image carries agent and gate"
        yield Problem("image.mode", str(image.mode), allowed)


def _lustre(stack: Stack) -> Iterator[Problem]:
    """Refuse Lustre where the image has no client for it, so that no unusable file system is paid for."""
    image, storage = stack.image, stack.storage
    if image.lustre_client and stack.cloud is Cloud.ALICLOUD:
        yield Problem("image.lustre_client", True, "is for AWS only; leave it out")
    if stack.cloud is not Cloud.AWS or image.mode is not ImageMode.BAKED or image.lustre_client:
        return
    allowed = (
        "no baked image has Lustre's client: leave it out, or set image.lustre_client: true where the base "
        "of the builds brings mount.lustre"
    )
    if storage.scratch_gib:
        yield Problem("storage.scratch_gib", storage.scratch_gib, allowed)
    if storage.existing.scratch is not None:
        yield Problem("storage.existing.scratch", storage.existing.scratch.id, allowed)


def _tokens(stack: Stack) -> Iterator[Problem]:
    """Require an agent where only the agent sets metadata tokens: in some pools on Alibaba Cloud."""
    if stack.cloud is not Cloud.ALICLOUD or stack.image.managed:
        return
    names = [pool.name for pool in stack.pools if pool.erdma or pool.reserves]
    if names:
        allowed = f"must be bootstrap or baked: in {', '.join(names)} only the agent asks for metadata tokens"
        yield Problem("image.mode", str(stack.image.mode), allowed)


def _build(stack: Stack) -> Iterator[Problem]:
    image = stack.image
    if image.base_id is None and image.payload is not None:
        yield Problem("image.payload", image.payload, "is what a build runs: needs image.base_id")


def _scan(stack: Stack) -> Iterator[Problem]:
    if not stack.image.scan:
        return
    if stack.cloud is Cloud.ALICLOUD:
        yield Problem(
            "image.scan", True, "is for AWS only; a scanner reads each image's own bill of materials"
        )
    elif not stack.image.built:
        yield Problem("image.scan", True, "is only for builds: needs image.base_id")


def _disk(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and stack.image.disk is not None:
        yield Problem("image.disk", stack.image.disk, "is for Alibaba Cloud only; leave it out")


def _base(stack: Stack) -> Iterator[Problem]:
    base = stack.image.base_id
    if stack.cloud is Cloud.AWS and base is not None and not re.fullmatch(AWS_BASE, base):
        allowed = f"must be ami-..., an image of Image Builder, or ssm: with a parameter, such as {EXAMPLE}"
        yield Problem("image.base_id", base, allowed)


def _builder(stack: Stack) -> Iterator[Problem]:
    base = stack.image.base_id
    if stack.cloud is Cloud.AWS and base is not None and stack.emulated:
        yield Problem("image.base_id", base, "no emulator of Image Builder is known; leave it out")


def _packages(stack: Stack) -> Iterator[Problem]:
    if stack.cloud is Cloud.AWS and stack.image.built and not stack.network.reaches_internet:
        allowed = "must lead to the internet where image.base_id is set: a build fetches packages"
        yield Problem(*stack.network.way_out, allowed)


def _keys_of_tags(stack: Stack) -> Iterator[Problem]:
    """Refuse keys that Image Builder does not take (botocore, ``imagebuilder``, shape ``TagKey``)."""
    for key in stack.tags:
        if stack.cloud is Cloud.AWS and stack.image.built and not key.isascii():
            allowed = "must be of ASCII letters where image.base_id is set: Image Builder takes no others"
            yield Problem("tags", key, allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(
        _one_source,
        _id,
        _parameter,
        _baked,
        _lustre,
        _tokens,
        _build,
        _scan,
        _disk,
        _base,
        _builder,
        _packages,
        _keys_of_tags,
    ),
)
