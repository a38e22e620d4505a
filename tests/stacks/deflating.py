"""Compression of each content once in a process: a stack of Alibaba Cloud packs boto3 twice."""

import zipfile
import zlib
from functools import lru_cache
from typing import Any

# As zipfile has it: no header, the level that zlib takes by itself.
LEVEL, WINDOW = zlib.Z_DEFAULT_COMPRESSION, -15


class Once:
    """A compressor that reuses the result for the same content; the bytes are those of zlib."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def compress(self, part: Any) -> bytes:
        self._parts.append(bytes(part))
        return b""

    def flush(self) -> bytes:
        return deflated(b"".join(self._parts))


@lru_cache(maxsize=4096)
def deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW)
    return compressor.compress(content) + compressor.flush()


def deflate_once() -> None:
    """Use it from now on in this process."""
    own = zipfile._get_compressor  # type: ignore[attr-defined]

    def compressor(kind: int, level: int | None = None) -> Any:
        return Once() if kind == zipfile.ZIP_DEFLATED and level is None else own(kind, level)

    zipfile._get_compressor = compressor  # type: ignore[attr-defined]
