"""``gpu-fleet image wheels STACK``: upload the trainer's wheels, for networks without internet access."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core import wheel_store
from gpu_fleet_image.recipe import places
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.clients.aws import clients_in
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings import Cloud, Stack, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument

LISTS = places.folder("image/gpu_fleet_image/recipe/wheels")
CACHE = places.build_folder() / "cache" / "trainer"
# The base of a cloud's instances, its Python, and the newest glibc that its wheels may need.
BASE, PYTHON = "ubuntu-24.04", "3.12"
GLIBC = tuple(range(39, 16, -1))
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC),
    *("manylinux2014_x86_64", "manylinux2010_x86_64"),
)
NOT_FOUND = "404"
DOWNLOAD = "4 GB"


@click.command(epilog="\b\nExample:\n  gpu-fleet image wheels aws-prod")
@stack_argument
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder that has them; by default they are fetched from PyPI (4 GB).",
)
def wheels(name: str, wheels: Path | None) -> None:
    """Put the trainer's locked wheels into a stack's bucket.

    Instances of a network without internet access (network.nat: none,
    network.existing.internet: false) install the trainer from there.
    """
    stack = stack_files.settings_of(name)
    if stack.network.reaches_internet:
        click.echo(f"{name}: its network reaches the internet: its instances fetch from PyPI by themselves")
    if stack.cloud is Cloud.ALICLOUD:
        oss.hold_upload(stack.region)
    text = wheel_store.listing(LISTS, BASE)
    bucket = stack.bucket_name("records")
    with explained(bucket):
        s3 = client(stack)
        s3.head_bucket(Bucket=bucket)  # before gigabytes are fetched for a bucket that does not exist
        folder = wheels or fetched(text, CACHE, click.echo)
        stored = store(s3, bucket, text, folder, click.echo)
    click.echo(f"{name}: {stored} wheels in {bucket}/{wheel_store.PREFIX}")


def fetched(text: str, folder: Path, report: Callable[[str], object]) -> Path:
    """Return the folder with every wheel of the list in it, each checked against its hash.

    Args:
        report: called before a step that takes minutes.

    Raises:
        StacksError: a wheel is not available; the message is pip's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = len(list(folder.glob("*.whl")))
    if there:
        report(f"reading the {there} wheels that are in {folder}")
    missing = wheel_store.hashes(text) - frozenset(wheel_store.index_of(folder).values())
    if not missing:
        return folder
    report(f"fetching {len(missing)} wheels, up to {DOWNLOAD}, into {folder}: minutes, and once")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        listing.write(text)
        listing.flush()
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--only-binary", ":all:", *platforms, "--python-version", PYTHON),
            *("--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"),
            *("--find-links", str(folder), "--dest", str(folder), "--requirement", listing.name),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise StacksError(f"pip download failed: {' '.join(lines[-3:])}")
    return folder


def store(s3: Any, bucket: str, text: str, folder: Path, report: Callable[[str], object]) -> int:
    """Upload the wheels that the bucket lacks, the index last; return the number of wheels.

    Raises StacksError if the folder lacks a wheel of the list.
    """
    wanted = wheel_store.hashes(text)
    index = {name: sha256 for name, sha256 in wheel_store.index_of(folder).items() if sha256 in wanted}
    missing = wanted - frozenset(index.values())
    if missing:
        raise StacksError(
            f"{folder}: {len(missing)} wheels of the list are missing, sha256 {min(missing)} first"
        )
    for name, sha256 in index.items():
        key = wheel_store.wheel_key(name, sha256)
        if not _is_there(s3, bucket, key):
            report(f"uploading {name}")
            s3.upload_file(str(folder / name), bucket, key)
    s3.put_object(Bucket=bucket, Key=wheel_store.index_key(text), Body=json.dumps(index, indent=1).encode())
    return len(index)


def _is_there(s3: Any, bucket: str, key: str) -> bool:
    try:
        s3.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response["Error"]["Code"] != NOT_FOUND:
            raise
        return False
    return True


def client(stack: Stack, environ: Mapping[str, str] = os.environ) -> Any:
    """Return boto3's S3 client for a stack's buckets, with the keys of the environment.

    Raises:
        StacksError: on Alibaba Cloud the environment has no keys.
    """
    if stack.cloud is Cloud.AWS:
        return clients_in(stack.region, stack.endpoint_url)("s3")
    return oss.client(stack.region, environ)


@contextmanager
def explained(bucket: str) -> Iterator[None]:
    """Turn boto3's errors into one message."""
    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        raise StacksError(f"bucket {bucket}: {error}; is the stack deployed (`gpu-fleet up`)?") from error
