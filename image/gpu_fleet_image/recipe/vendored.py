"""Packages of agent, gate and commands: one tree for the system's own Python, without venv and pip.

They come from wheels for Linux on x86-64 that are locked by hash, whatever computer this runs on. All are
pure Python but psutil, whose wheel has the stable ABI and so fits every CPython from 3.6 on. The tree holds
boto3's descriptions only of those services that an instance calls, of four hundred.
"""

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

from gpu_fleet_image.recipe import places
from gpu_fleet_image.recipe.errors import LockError

LIST = places.folder("image/gpu_fleet_image/recipe/wheels") / "instance.txt"
CACHE = places.build_folder() / "cache" / "wheels"
# Packages that only one cloud's instances need.
_OF_CLOUD = {"aliyun-python-sdk-core": "alicloud"}
# The oldest Python and glibc of an instance; Debian 12 and Ubuntu 24.04 have newer ones.
PYTHON = "3.11"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64")
SERVICES = ("autoscaling", "cloudwatch", "ec2", "logs", "s3", "secretsmanager", "sns", "sts")
DESCRIBED = "botocore/data/"
KEPT_DESCRIPTIONS = (
    *(f"{service}/" for service in SERVICES),
    "_retry.json",
    "endpoints.json",
    "partitions.json",
    "sdk-default-configuration.json",
)
LEFT_OUT = ("boto3/data/", "boto3/examples/", "dateutil/zoneinfo/", "psutil/tests/")
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")

Files = dict[str, bytes]


def packages(target: str, cache: Path = CACHE) -> Files:
    """Return the files of every package that instances of a target need: path below the tree -> content.

    Args:
        target: ``aws``, ``alicloud``, ``qemu`` or ``oci``; the last two belong to no cloud and get all
            packages.

    Raises LockError if a wheel is not available, or has another hash than the list.
    """
    content: Files = {}
    for name, wheel in wheels(cache).items():
        if target in ("aws", "alicloud") and _OF_CLOUD.get(name, target) != target:
            continue
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            content |= {path: archive.read(path) for path in archive.namelist() if _is_packed(path)}
    return dict(sorted(content.items()))


def _is_packed(path: str) -> bool:
    """Return whether a file of a wheel belongs to the tree."""
    if path.endswith("/") or path.startswith(LEFT_OUT):
        return False
    if path.split("/", maxsplit=1)[0].endswith(".dist-info"):
        return path.rsplit("/", 1)[-1].upper().startswith((*LICENCES, "METADATA"))
    if path.startswith(DESCRIBED):
        return path.removeprefix(DESCRIBED).startswith(KEPT_DESCRIPTIONS)
    return True


def wheels(cache: Path = CACHE, listing: Path = LIST) -> dict[str, bytes]:
    """Return name -> content of each wheel of the list, fetched where the cache lacks it.

    Raises LockError as in ``packages``.
    """
    locked = entries(listing.read_text(encoding="utf-8"))
    missing = [name for name, digest in locked.items() if not (cache / f"{digest}.whl").is_file()]
    if missing:
        _fetch(listing, cache, set(locked.values()))
    content = {name: (cache / f"{digest}.whl").read_bytes() for name, digest in locked.items()}
    for name, digest in locked.items():
        if hashlib.sha256(content[name]).hexdigest() != digest:
            raise LockError(f"{cache / digest}.whl: not the {name} that {listing.name} locks; remove it")
    return content


def entries(listing: str) -> dict[str, str]:
    """Return name -> SHA-256 of a list of wheels."""
    pattern = r"^([a-z0-9-]+)==\S+ --hash=sha256:([0-9a-f]{64})$"
    return dict(re.findall(pattern, listing, flags=re.MULTILINE))


def _fetch(listing: Path, cache: Path, digests: Collection[str]) -> None:
    """Download the whole list and store each wheel under its hash; pip checks every hash too."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--only-binary", ":all:", *platforms),
            *("--python-version", PYTHON, "--implementation", "cp", "--abi", "abi3", "--abi", "none"),
            *("--dest", folder, "--requirement", str(listing)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise LockError(
                f"{listing.name}: pip download failed: {' '.join(lines[-3:]) or done.stderr[-300:]}"
            )
        cache.mkdir(parents=True, exist_ok=True)
        for wheel in Path(folder).glob("*.whl"):
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if digest in digests:
                # in one move: another process may fetch at the same time
                part = cache / f".{digest}.{wheel.stat().st_ino}"
                shutil.copyfile(wheel, part)
                part.replace(cache / f"{digest}.whl")
