"""The Python packages that a function on Alibaba Cloud carries: its runtime has no boto3 and no SDK.

They come out of the environment that runs Pulumi, in the versions that ``requirements.txt`` pins, and are
pure Python: what is packed on any machine runs on any other. Of boto3's descriptions of four hundred services
only that of S3, which OSS speaks, goes along.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, PackagePath, files

from stacks.errors import StacksError

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
    """A package that the functions carry is not installed, or is not pure Python."""


@cache
def packages() -> Mapping[str, bytes]:
    """Path in the archive -> content, of every package.

    Raises:
        PackageError: one is missing, or has a part for one platform alone.
    """
    found: dict[str, bytes] = {}
    for name in PACKAGES:
        for path in _files(name):
            if path.suffix in COMPILED:
                raise PackageError(
                    f"{name}: {path} is for one platform; the functions carry pure Python alone"
                )
            found[path.as_posix()] = path.read_binary()
    return found


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
