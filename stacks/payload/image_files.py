"""Files on this computer that a cloud makes an image of: the recipe's payload, or a baked disk."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from stacks import naming
from stacks.errors import StacksError
from stacks.files import replace
from stacks.payload import built
from stacks.settings import Stack

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ImageFile:
    """A file with what it is known by.

    Attributes:
        sha256: of its content, in hexadecimal.
    """

    path: Path
    sha256: str

    @property
    def object_key(self) -> str:
        """Its place in the records bucket, named by its content: a build runs exactly what was made."""
        return f"image/{self.sha256}{self.path.suffix}"


def read(key: str, name: str) -> ImageFile:
    """A file of the settings.

    Args:
        key: the settings' key that names it, say ``image.payload``.
        name: its path, from the top of the checkout.

    Raises:
        StacksError: naming key and path when the file cannot be read.
    """
    path = ROOT / name
    try:
        with path.open("rb") as file:
            return ImageFile(path, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise StacksError(f"{key} = {name!r}: {path} cannot be read: {error.strerror}") from error


def recipe(stack: Stack) -> ImageFile:
    """What a build of a stack's image runs: the file that the settings name, else the checkout's own payload.

    Raises:
        StacksError: the file cannot be read, or the payload cannot be made.
    """
    if stack.image.payload is not None:
        return read("image.payload", stack.image.payload)
    packed = built.built(stack.cloud)
    path = packed.path.with_suffix("")
    if not path.is_file():
        replace(path, gzip.decompress(packed.path.read_bytes()))
    return ImageFile(path, packed.sha256)


def built_name(stack: Stack) -> str:
    """How a stack's built images begin on Alibaba Cloud; no stack's own name has an underscore."""
    return f"{naming.prefixed(stack.name)}_built"


def zones_of_builds(stack: Stack) -> list[str]:
    """Where a build may be tried, its zone of every week first."""
    home = stack.network.home_zone
    return [home, *(zone for zone in stack.network.zones if zone != home)]


def pipeline_name(stack: Stack, zone: str) -> str:
    """Of the pipeline that builds in a zone; the first zone's is named for the stack alone."""
    name = naming.prefixed(stack.name)
    return name if zone == stack.network.home_zone else f"{name}-{zone}"


def ecs_pipeline_name(stack: Stack) -> str:
    """Of the pipeline on Alibaba Cloud: another payload is another pipeline."""
    return naming.prefixed(stack.name, recipe(stack).sha256[:12])


def digest(*parts: str) -> str:
    """SHA-256 over some texts, in hexadecimal; where one ends and the next begins counts too."""
    return hashlib.sha256(b"".join(f"{len(part)}\0{part}".encode() for part in parts)).hexdigest()


def semantic_version(sha256: str) -> str:
    """A version that follows from a content, for things that a cloud makes immutable: 1.<28 bits>.<28 bits>.

    Image Builder takes whole numbers below 2^30 in each place
    (docs.aws.amazon.com/imagebuilder/latest/userguide/ibhow-semantic-versioning.html). Versions keep contents
    apart and say nothing of which is newer; nothing here asks for the newest.
    """
    return f"1.{int(sha256[:7], 16)}.{int(sha256[7:14], 16)}"
