"""Pulumi assets and archives as bytes; equal content gives equal bytes."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pulumi

from gpu_fleet_stacks.rehearsal.errors import RehearsalError

# The earliest time in a zip file, so that only the content decides the bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o644 << 16


def asset_bytes(asset: Any) -> bytes:
    """Return the content of a file or string asset. Raises RehearsalError."""
    if isinstance(asset, pulumi.StringAsset):
        return asset.text.encode()
    if isinstance(asset, pulumi.FileAsset):
        return Path(asset.path).read_bytes()
    raise RehearsalError(
        f"cannot read {type(asset).__name__} in the rehearsal: use a FileAsset or a StringAsset"
    )


def archive_files(archive: Any, prefix: str = "") -> dict[str, bytes]:
    """Return path in the archive -> content, sorted by path. Raises RehearsalError."""
    if isinstance(archive, pulumi.AssetArchive):
        content: dict[str, bytes] = {}
        for path, part in archive.assets.items():
            if isinstance(part, pulumi.Archive):
                content |= archive_files(part, f"{prefix}{path}/")
            else:
                content[f"{prefix}{path}"] = asset_bytes(part)
        return dict(sorted(content.items()))
    if isinstance(archive, pulumi.FileArchive):
        return dict(sorted(_from_disk(Path(archive.path), prefix).items()))
    raise RehearsalError(f"cannot read {type(archive).__name__} in the rehearsal: use local files")


def _from_disk(path: Path, prefix: str) -> dict[str, bytes]:
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        return {f"{prefix}{file.relative_to(path).as_posix()}": file.read_bytes() for file in files}
    with zipfile.ZipFile(path) as archive:
        return {
            f"{prefix}{name}": archive.read(name) for name in archive.namelist() if not name.endswith("/")
        }


def zip_bytes(archive: Any) -> bytes:
    """Return a zip of the archive; equal content gives equal bytes, on any clock and disk."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for path, content in archive_files(archive).items():
            entry = zipfile.ZipInfo(path, date_time=_NO_TIME)
            entry.external_attr = _READABLE
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, content)
    return buffer.getvalue()
