"""Layout of the trainer's wheels in a stack's bucket, for upload and download.

Each wheel's key holds its hash. An index, named by the hash of the lists, gives the hash of each file.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

PREFIX = "image/wheels"
_INSTALLER = "pip"  # packed too: a base without internet access may have none

# (key in the bucket, file): downloads the object into the file
Fetch = Callable[[str, Path], object]


def listing(folder: Path, base: str) -> str:
    """Return the wheels that an instance of a base installs, one a line: the base's and the installer's.

    Args:
        folder: ``image/gpu_fleet_image/recipe/wheels``, here or in a payload.
        base: say ``ubuntu-24.04``.

    Raises OSError if there is no list for the base.
    """
    return "".join((folder / f"{name}.txt").read_text(encoding="utf-8") for name in (base, _INSTALLER))


def hashes(text: str) -> frozenset[str]:
    """Return the SHA-256 of every wheel of a list."""
    return frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def index_key(text: str) -> str:
    """Return the key of a list's index, which maps file name -> SHA-256 as JSON."""
    return f"{PREFIX}/{hashlib.sha256(text.encode()).hexdigest()}.json"


def wheel_key(name: str, sha256: str) -> str:
    """Return the key of a wheel."""
    return f"{PREFIX}/{sha256}/{name}"


def index_of(folder: Path) -> dict[str, str]:
    """Return file name -> SHA-256 of every wheel in a folder."""
    return {wheel.name: digest(wheel) for wheel in sorted(folder.glob("*.whl"))}


def fetch_all(text: str, folder: Path, fetch: Fetch) -> int:
    """Fetch every wheel of a list that the folder lacks; return the number of wheels.

    Raises:
        ValueError: the index differs from the list, or a wheel has another hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index_file = folder / "index.json"
    fetch(index_key(text), index_file)
    index: Mapping[str, str] = json.loads(index_file.read_text(encoding="utf-8"))
    if frozenset(index.values()) != hashes(text):
        raise ValueError(f"{index_key(text)} names other wheels than the list")
    for name, sha256 in index.items():
        wheel = folder / Path(name).name
        if not wheel.is_file():
            part = wheel.with_suffix(".part")
            fetch(wheel_key(name, sha256), part)
            if digest(part) != sha256:
                raise ValueError(f"{wheel_key(name, sha256)}: sha256 is {digest(part)}")
            part.replace(wheel)
    return len(index)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
