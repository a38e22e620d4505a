"""Local files for a cloud image: the recipe's payload, or a baked disk."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.core.files import replace
from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.settings import Stack, projects


@dataclass(frozen=True)
class ImageFile:
    """A file and its hash.

    Attributes:
        sha256: of its content, in hexadecimal.
    """

    path: Path
    sha256: str

    @property
    def object_key(self) -> str:
        """Object key in the records bucket, named by the content, so that a build runs exactly this file."""
        return f"image/{self.sha256}{self.path.suffix}"


def read(key: str, name: str) -> ImageFile:
    """Return a file that the settings name.

    Args:
        key: the settings' key that names it, say ``image.payload``.
        name: its path, from the top of the project.

    Raises:
        StacksError: the file cannot be read; the message names key and path.
    """
    path = projects.root() / name
    try:
        with path.open("rb") as file:
            return ImageFile(path, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise StacksError(f"{key} = {name!r}: {path} cannot be read: {error.strerror}") from error


def recipe(stack: Stack) -> ImageFile:
    """Return the recipe that a stack's image builds run: the settings' file, or gpu-fleet's own payload.

    Raises StacksError if the file cannot be read, or the payload cannot be made.
    """
    if stack.image.payload is not None:
        return read("image.payload", stack.image.payload)
    packed = built.built(stack.cloud)
    path = packed.path.with_suffix("")
    if not path.is_file():
        replace(path, gzip.decompress(packed.path.read_bytes()))
    return ImageFile(path, packed.sha256)


def built_name(stack: Stack) -> str:
    """Return the prefix of a stack's built images on Alibaba Cloud; a stack's name has no underscore."""
    return f"{naming.prefixed(stack.name)}_built"


def zones_of_builds(stack: Stack) -> list[str]:
    """Return the zones in which a build may be tried; the first is the zone of the weekly build."""
    home = stack.network.home_zone
    return [home, *(zone for zone in stack.network.zones if zone != home)]


def pipeline_name(stack: Stack, zone: str) -> str:
    """Return the name of the pipeline of a zone; in the first zone it is the stack's name alone."""
    name = naming.prefixed(stack.name)
    return name if zone == stack.network.home_zone else f"{name}-{zone}"


def ecs_pipeline_name(stack: Stack) -> str:
    """Return the name of the pipeline on Alibaba Cloud; another payload needs another pipeline."""
    return naming.prefixed(stack.name, recipe(stack).sha256[:12])


def digest(*parts: str) -> str:
    """Return the SHA-256 digest of several texts, in hexadecimal; their boundaries count too."""
    return hashlib.sha256(b"".join(f"{len(part)}\0{part}".encode() for part in parts)).hexdigest()


def semantic_version(sha256: str) -> str:
    """Derive a version from a content, for resources that a cloud makes immutable: 1.<28 bits>.<28 bits>.

    Image Builder takes whole numbers below 2^30 in each place
    (docs.aws.amazon.com/imagebuilder/latest/userguide/ibhow-semantic-versioning.html). They only distinguish
    contents. They have no order, and no code asks for the newest.
    """
    return f"1.{int(sha256[:7], 16)}.{int(sha256[7:14], 16)}"
