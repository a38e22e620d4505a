"""Make an OCI archive from a root file system: one layer, for `podman load`, `skopeo` and Kubernetes.

Layout as in https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PREFIX = "application/vnd.oci.image"
ENTRY = ["/opt/gpu-fleet/venv/bin/python", "-m", "gpu_fleet"]
# Numbers: a check that refuses root (runAsNonRoot) reads no names. `train render --kubernetes` has the same.
USER = "1000:1000"
# The account has no name and no home in the image; torch and CUDA cache in HOME, as in a rendered pod.
HOME = "/tmp"  # noqa: S108 - of the container
ENVIRONMENT = [
    *("PATH=/opt/gpu-fleet/venv/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1"),
    *(f"HOME={HOME}", "USER=gpu-fleet"),
]
# Speed over size: registries compress again, and the wheels inside are already compressed.
_COMPRESSION = 1


@dataclass(frozen=True)
class _Blob:
    """A part of the image, addressed by its content."""

    file: Path
    digest: str
    size: int
    media_type: str

    @property
    def descriptor(self) -> dict[str, Any]:
        """Reference to this part, for other parts."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


class _Writable(Protocol):
    def write(self, data: Any, /) -> int: ...


class _HashingWriter(io.RawIOBase):
    """Writer that hashes the bytes on their way to a target."""

    def __init__(self, target: _Writable) -> None:
        self._target = target
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self._target.write(data)


def make(root: Path, archive: Path, labels: dict[str, str], created_s: int) -> Path:
    """Write the archive.

    Args:
        created_s: seconds since the epoch; time of the image and its newest files, so that bakes are alike.

    Returns:
        the archive.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as place:
        folder = Path(place)
        layer, layer_sum = _layer(root, folder, created_s)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "User": USER,
                "Entrypoint": ENTRY,
                "Env": ENVIRONMENT,
                "Labels": labels,
                "WorkingDir": HOME,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_sum}"]},
        }
        config_blob = _json_blob(config, folder, f"{PREFIX}.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{PREFIX}.manifest.v1+json",
            "config": config_blob.descriptor,
            "layers": [layer.descriptor],
        }
        manifest_blob = _json_blob(manifest, folder, f"{PREFIX}.manifest.v1+json")
        name = {"org.opencontainers.image.ref.name": "gpu-fleet-trainer:latest"}
        index = {"schemaVersion": 2, "manifests": [manifest_blob.descriptor | {"annotations": name}]}
        _write(archive, index, [layer, config_blob, manifest_blob])
    return archive


def _layer(root: Path, folder: Path, created_s: int) -> tuple[_Blob, str]:
    """Return the compressed layer, and the uncompressed content's hash, which the configuration names."""
    file = folder / "layer"
    with file.open("wb") as raw:
        outer = _HashingWriter(raw)
        with gzip.GzipFile("", "wb", _COMPRESSION, outer, mtime=0) as packed:
            inner = _HashingWriter(packed)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for path in _paths(root):
                    _add(tar, root, path, created_s)
    media_type = f"{PREFIX}.layer.v1.tar+gzip"
    return _Blob(file, outer.hash.hexdigest(), file.stat().st_size, media_type), inner.hash.hexdigest()


def _paths(root: Path) -> list[Path]:
    paths = [Path(folder) / name for folder, folders, files in os.walk(root) for name in folders + files]
    return sorted(paths)


def _add(tar: tarfile.TarFile, root: Path, path: Path, created_s: int) -> None:
    entry = tar.gettarinfo(str(path), str(path.relative_to(root)))
    if entry.ischr() or entry.isblk():
        return  # the container engine makes its own devices
    entry.mtime = min(int(entry.mtime), created_s)
    entry.uname = entry.gname = ""
    if entry.isreg():
        with path.open("rb") as content:
            tar.addfile(entry, content)
    else:
        tar.addfile(entry)


def _json_blob(content: dict[str, Any], folder: Path, media_type: str) -> _Blob:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    file = folder / digest
    file.write_bytes(data)
    return _Blob(file, digest, len(data), media_type)


def _write(archive: Path, index: dict[str, Any], blobs: list[_Blob]) -> None:
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": index}.items():
            data = json.dumps(content, sort_keys=True).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for blob in blobs:
            entry = tarfile.TarInfo(f"blobs/sha256/{blob.digest}")
            entry.size = blob.size
            with blob.file.open("rb") as stream:
                tar.addfile(entry, stream)
