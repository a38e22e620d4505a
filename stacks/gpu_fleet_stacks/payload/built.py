"""The payload of a cloud's instances as a file: made once, named by its content."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_fleet_image.core import wheel_store
from gpu_fleet_image.recipe import payload, places
from gpu_fleet_image.recipe.errors import ImageError
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.core.files import replace
from gpu_fleet_stacks.settings import Cloud, Stack

FOLDER = places.build_folder() / "payload"
# The prefix of the records bucket that instances may read; they may read nothing else in it.
PREFIX = "image/payload"
# The prefix of the trainer's wheels for networks without PyPI; `gpu-fleet image wheels` fills it.
WHEELS_PREFIX = wheel_store.PREFIX


@dataclass(frozen=True)
class Payload:
    """A tarball and its hash.

    Attributes:
        sha256: of the tarball before compression, in hexadecimal; the same on every computer.
    """

    path: Path
    sha256: str

    @property
    def object_key(self) -> str:
        """Object key in the records bucket; other content has another key."""
        return f"{PREFIX}/{self.sha256}.tar.gz"


def for_stack(stack: Stack) -> Payload | None:
    """Return the payload of a stack's instances; None where every image has it, or none is wanted.

    Raises StacksError as in ``built``.
    """
    return built(stack.cloud) if stack.image.bootstraps else None


@cache
def built(cloud: Cloud) -> Payload:
    """Return the payload for a cloud, and make its file if it is missing. Raises StacksError."""
    try:
        tar = payload.tarball(payload.assemble(target=str(cloud)))
        sha256 = hashlib.sha256(tar).hexdigest()
        path = FOLDER / f"{cloud}-{sha256}.tar.gz"
        if not path.is_file():
            FOLDER.mkdir(parents=True, exist_ok=True)
            replace(path, payload.compressed(tar))  # atomic: another process may make the same file
        return Payload(path, sha256)
    except (ImageError, OSError) as error:
        raise StacksError(f"the payload of an instance cannot be made: {error}") from error
