"""How the trainer's wheels lie in a stack's bucket: for who puts them there, and for who fetches them.

Each lies under its hash; an index, named by the hash of the list it was made from, says which file has which.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

PREFIX = "image/wheels"

Fetch = Callable[[str, Path], object]


def index_key(listing: bytes) -> str:
    """Where the index of a list of wheels lies: file name -> SHA-256, as JSON."""
    return f"{PREFIX}/{hashlib.sha256(listing).hexdigest()}.json"


def wheel_key(name: str, sha256: str) -> str:
    """Where a wheel lies."""
    return f"{PREFIX}/{sha256}/{name}"


def fetch_all(listing: bytes, folder: Path, fetch: Fetch) -> int:
    """Fetch every wheel that the folder lacks; gives how many there are.

    Args:
        listing: the list of wheels, as ``image/wheels`` has it.
        folder: for the wheels.
        fetch: brings an object of the bucket into a file.

    Raises:
        ValueError: a wheel is not the one that the index says, or the index is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index_file = folder / "index.json"
    fetch(index_key(listing), index_file)
    index: Mapping[str, str] = json.loads(index_file.read_text(encoding="utf-8"))
    for name, sha256 in index.items():
        wheel = folder / Path(name).name
        if not wheel.is_file():
            part = wheel.with_suffix(".part")
            fetch(wheel_key(name, sha256), part)
            _check(part, sha256)
            part.replace(wheel)
    return len(index)


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        file.unlink()
        raise ValueError(f"{file.name}: sha256 is {found}, the index has {sha256}")
