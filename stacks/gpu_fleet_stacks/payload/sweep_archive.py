"""Archives of a stack's functions: modules of ``image/`` and packages.

This module does not import those modules: they are data to a stack. The packages come from the environment
that runs Pulumi, in the versions of ``requirements.txt``: Function Compute has no boto3 and no SDK.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, PackagePath, files
from pathlib import PurePosixPath

from gpu_fleet_image.recipe import places
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import StacksError

ROOT = places.folder("image/gpu_fleet_image").parent
PACKAGE = "gpu_fleet_image"
ENTRY = "gpu_fleet_image.controllers.sweep.handler"
AGENT = "gpu_fleet_image.instance.agent.command"
# Packages with a module for each cloud, which has the handler.
PEOPLE = "gpu_fleet_image.controllers.directory"
MOVER = "gpu_fleet_image.controllers.mover"
BUILDS = "gpu_fleet_image.controllers.builds"

# Pure Python alone goes along: what is packed on any computer runs on any other. Of boto3's descriptions of
# four hundred services only that of S3, which OSS speaks.
PACKAGES = (
    "aliyun-python-sdk-core",
    "boto3",
    "botocore",
    "jmespath",
    "python-dateutil",
    "s3transfer",
    "six",
    "urllib3",
)
DESCRIBED = "botocore/data/"
KEPT_DESCRIPTIONS = (
    "s3/",
    "_retry.json",
    "endpoints.json",
    "partitions.json",
    "sdk-default-configuration.json",
)
LEFT_OUT = ("boto3/data/", "boto3/examples/", "dateutil/zoneinfo/")
COMPILED = (".so", ".pyd", ".dylib")
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")


class PackageError(StacksError):
    """A package of the functions is not installed, or is not pure Python."""


@cache
def modules(entry: str = ENTRY, cloud: str = "") -> tuple[str, ...]:
    """Return the paths of the modules that the entry imports, directly or not, sorted.

    Args:
        entry: a dotted name inside ``image``.
        cloud: the cloud whose modules are added; the entry finds them by its policy. Empty for none.
    """
    paths: set[str] = set()
    waiting = [entry, f"gpu_fleet_image.providers.{cloud}.connect"]
    while waiting:
        path = waiting.pop().replace(".", "/") + ".py"
        if path not in paths and (ROOT / path).is_file():
            paths |= {path, *(f"{folder}/__init__.py" for folder in PurePosixPath(path).parents[:-1])}
            waiting += _imports((ROOT / path).read_text(encoding="utf-8"))
    return tuple(sorted(paths))


def _imports(source: str) -> list[str]:
    """Return every name in ``image`` that a module imports: modules, and names inside them."""
    names = []
    for node in ast.parse(source).body:  # imports are at the top: ruff's PLC0415 enforces that
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")]
    return names


@cache
def agents_release(cloud: Cloud) -> str:
    """Return the release of the agent in this checkout: a digest of all sources that the agent runs."""
    paths = {*modules(AGENT, str(cloud)), *modules(f"gpu_fleet_image.instance.agent.{cloud}", str(cloud))}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


@cache
def packages() -> Mapping[str, bytes]:
    """Return the files of every package: path in the archive -> content. Raises PackageError."""
    content: dict[str, bytes] = {}
    for name in PACKAGES:
        for path in _files(name):
            if path.suffix in COMPILED:
                raise PackageError(
                    f"{name}: {path} is for one platform; the functions carry pure Python alone"
                )
            content[path.as_posix()] = path.read_binary()
    return content


def _files(name: str) -> Iterator[PackagePath]:
    try:
        listed = files(name) or []
    except PackageNotFoundError as error:
        raise PackageError(f"{name} is not installed; run pip install -r requirements.txt") from error
    return (path for path in listed if _is_packed(path))


def _is_packed(path: PackagePath) -> bool:
    text = path.as_posix()
    if ".." in path.parts or "__pycache__" in path.parts or text.startswith(LEFT_OUT):
        return False
    if path.parts[0].endswith(".dist-info"):
        return path.name.upper().startswith(LICENCES)
    if text.startswith(DESCRIBED):
        return text.removeprefix(DESCRIBED).startswith(KEPT_DESCRIPTIONS)
    return True
