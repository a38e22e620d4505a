"""Rules for existing file systems that the stack uses but does not own. Pure."""

import re
from collections.abc import Callable, Iterator

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingFileSystem

# API CreateFileSystem of EFS and of FSx: 8 digits until 2018, 17 since.
_AWS_ID = r"fs-[0-9a-f]{8}(?:[0-9a-f]{9})?"
# API DescribeFileSystems of NAS, "FileSystemId": a general-purpose one, 31a8e4****, an extreme one begins
# with extreme-, one of CPFS with cpfs-.
IDS = {
    ("home", Cloud.AWS): _AWS_ID,
    ("scratch", Cloud.AWS): _AWS_ID,
    ("home", Cloud.ALICLOUD): r"(?:extreme-)?[0-9a-z]{6,32}",
    ("scratch", Cloud.ALICLOUD): r"cpfs-[0-9a-z]{6,32}",
}
KINDS = {
    ("home", Cloud.AWS): ("EFS", "fs-0123456789abcdef0"),
    ("scratch", Cloud.AWS): ("FSx for Lustre", "fs-0123456789abcdef0"),
    ("home", Cloud.ALICLOUD): ("NAS", "31a8e4b0c2 or extreme-00151a2b3c"),
    ("scratch", Cloud.ALICLOUD): ("CPFS", "cpfs-00151a2b3c4d5e6f"),
}
# API CreateFileSystem of FSx, LustreFileSystemConfiguration.MountName.
MOUNT_NAME = r"[A-Za-z0-9_-]{1,8}"


def _named(stack: Stack) -> Iterator[tuple[str, ExistingFileSystem]]:
    """Yield each file system with its purpose, also where the cloud's name is unknown."""
    existing = stack.storage.existing
    for purpose, files in (("home", existing.home), ("scratch", existing.scratch)):
        if files is not None:
            yield purpose, files


def _ids(stack: Stack) -> Iterator[Problem]:
    for purpose, files in _named(stack):
        kind, example = KINDS[purpose, stack.cloud]
        if not re.fullmatch(IDS[purpose, stack.cloud], files.id):
            allowed = f"must be the id of a file system of {kind}, such as {example}"
            yield Problem(f"storage.existing.{purpose}.id", files.id, allowed)


def _mount_names(stack: Stack) -> Iterator[Problem]:
    for purpose, files in _named(stack):
        key = f"storage.existing.{purpose}.mount_name"
        lustre = stack.cloud is Cloud.AWS and purpose == "scratch"
        if not lustre and files.mount_name is not None:
            yield Problem(
                key, files.mount_name, "is only for FSx for Lustre, the scratch on AWS; leave it out"
            )
        elif lustre and not re.fullmatch(MOUNT_NAME, files.mount_name or ""):
            allowed = (
                "must be its mount name, of 1 to 8 letters, digits, - and _: `aws fsx describe-file-systems"
                f" --file-system-ids {files.id}` says it as LustreConfiguration.MountName"
            )
            yield Problem(key, files.mount_name, allowed)


def _in_place_of_own(stack: Stack) -> Iterator[Problem]:
    existing, storage = stack.storage.existing, stack.storage
    if existing.home is not None and storage.home:
        yield Problem("storage.home", True, "storage.existing.home takes its place; leave one of both out")
    if existing.scratch is not None and storage.scratch_gib:
        allowed = "storage.existing.scratch takes its place; leave one of both out"
        yield Problem("storage.scratch_gib", storage.scratch_gib, allowed)


def _within_reach(stack: Stack) -> Iterator[Problem]:
    """Require ``network.existing``: mount targets are in a VPC, which the stack's own VPC cannot reach."""
    for purpose, files in _named(stack):
        if stack.network.existing is None:
            allowed = "needs network.existing: the VPC of its mount targets"
            yield Problem(f"storage.existing.{purpose}", files.id, allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    _ids,
    _mount_names,
    _in_place_of_own,
    _within_reach,
)
