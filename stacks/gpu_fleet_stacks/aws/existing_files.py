"""File systems of another owner: looked up by their ids, never declared, changed or deleted."""

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core.errors import Problem, StacksError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.schema import ExistingFileSystem


class ExistingFileSystemError(StacksError):
    """A file system in the stack file does not meet the stack's needs."""


@dataclass(frozen=True)
class Mount:
    """Address from which instances mount a shared file system.

    Attributes:
        dns_name: its servers; empty for none.
        name: Lustre's mount name; empty for EFS, which mounts its root.
    """

    dns_name: pulumi.Input[str] = ""
    name: pulumi.Input[str] = ""


def home(stack: Stack, named: ExistingFileSystem, parent: pulumi.Resource) -> Mount:
    """Look up the EFS that holds the homes; a preview does so too.

    The lookup returns values and not Outputs, so that a refusal is one message of the program.

    Raises:
        ExistingFileSystemError: it does not exist, is not encrypted, or is in one zone while instances start
            in another.
    """
    key = "storage.existing.home.id"
    try:
        files = aws.efs.get_file_system(file_system_id=named.id, opts=pulumi.InvokeOptions(parent=parent))
    except Exception as error:
        # the SDK raises nothing narrower
        raise ExistingFileSystemError(str(Problem(key, named.id, " ".join(str(error).split())))) from error
    problems = [Problem(key, named.id, wrong) for wrong in _wrong_with(stack, files)]
    if problems:
        raise ExistingFileSystemError("\n".join(str(problem) for problem in problems))
    return Mount(files.dns_name)


def _wrong_with(stack: Stack, files: aws.efs.GetFileSystemResult) -> Iterator[str]:
    if not files.encrypted:
        yield (
            "is not encrypted, and EFS cannot encrypt it later: have its owner copy the files to an "
            "encrypted one (AWS Backup or DataSync), and name that here"
        )
    only, zones = files.availability_zone_name, stack.network.zones
    if only and set(zones) != {only}:
        yield f"is in {only} only; instances start in {', '.join(zones)}, where it has no mount target"


def scratch(stack: Stack, named: ExistingFileSystem) -> Mount:
    """Return the address at which FSx serves the Lustre.

    There is no lookup of FSx for Lustre (pulumi_aws.fsx has none), and none is needed for its encryption:
    FSx encrypts every Lustre at rest (docs.aws.amazon.com/fsx/latest/LustreGuide/encryption-at-rest.html).
    ``gpu-fleet preflight`` asks whether it is there.
    """
    suffix = "amazonaws.com.cn" if stack.region.startswith("cn-") else "amazonaws.com"
    return Mount(f"{named.id}.fsx.{stack.region}.{suffix}", named.mount_name or "")
