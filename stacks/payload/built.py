"""The payload of a cloud's instances as a file: assembled from the checkout once, kept by its content."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from image import payload, wheel_store
from image.errors import ImageError
from stacks.errors import StacksError
from stacks.files import replace
from stacks.settings import Cloud, Stack

FOLDER = payload.PROJECT / "build" / "payload"
# Below this prefix of the records bucket instances may read, and nowhere else in it.
PREFIX = "image/payload"
# And where no way out leads to PyPI, below this one, where `gpu-fleet image wheels` puts the trainer's.
WHEELS_PREFIX = wheel_store.PREFIX


@dataclass(frozen=True)
class Payload:
    """A tarball with what it is known by.

    Attributes:
        sha256: of the tarball before it was compressed, in hexadecimal: the same wherever it is made.
    """

    path: Path
    sha256: str

    @property
    def object_key(self) -> str:
        """Its place in the records bucket: another content is another object."""
        return f"{PREFIX}/{self.sha256}.tar.gz"


def for_stack(stack: Stack) -> Payload | None:
    """The payload of a stack's instances; None where every image brings all, or nothing is wanted.

    Raises:
        StacksError: as for ``built``.
    """
    return built(stack.cloud) if stack.image.bootstraps else None


@cache
def built(cloud: Cloud) -> Payload:
    """The payload for a cloud; made where it is not there yet.

    Raises:
        StacksError: the recipe is incomplete, or a wheel that goes along is not to be had.
    """
    try:
        tar = payload.tarball(payload.assemble(target=str(cloud)))
        sha256 = hashlib.sha256(tar).hexdigest()
        path = FOLDER / f"{cloud}-{sha256}.tar.gz"
        if not path.is_file():
            FOLDER.mkdir(parents=True, exist_ok=True)
            replace(path, payload.compressed(tar))  # in one move: another process may make the same
        return Payload(path, sha256)
    except (ImageError, OSError) as error:
        raise StacksError(f"the payload of an instance cannot be made: {error}") from error
