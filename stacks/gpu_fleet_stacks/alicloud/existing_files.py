"""File systems of another owner: looked up by their ids, never declared, changed or deleted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core.errors import Problem, StacksError
from gpu_fleet_stacks.settings import Stack

ACTIVE = "Active"
# Kinds of NAS, and what each may be to a stack: API DescribeFileSystems, "FileSystemType", "ProtocolType".
HOMES, SCRATCH = ("standard", "extreme"), ("cpfs",)
NFS = "NFS"


class ExistingFileSystemError(StacksError):
    """A file system in the stack file does not meet the stack's needs."""


@dataclass(frozen=True)
class FoundFiles:
    """A file system with a mount target in the stack's VPC.

    Attributes:
        domain: domain of the mount target.
        network: CIDR of the mount target's vSwitch, which rules of enterprise groups name.
    """

    domain: str
    network: str


def look_up(stack: Stack, parent: pulumi.Resource) -> Mapping[str, FoundFiles]:
    """Look up the stack file's file systems, by purpose (``home``, ``scratch``); a preview does so too.

    The lookups return values and not Outputs, so that all refusals are one message of the program, before any
    rule of the firewall is declared.

    Raises:
        ExistingFileSystemError: file systems are of another account or kind, are not encrypted, or have no
            mount target in the VPC; the message names them all.
    """
    existing, opts = stack.storage.existing, pulumi.InvokeOptions(parent=parent)
    named = {"home": existing.home, "scratch": existing.scratch}
    problems: list[Problem] = []
    mounts = {}
    for purpose, files in named.items():
        if files is None:
            continue
        key = f"storage.existing.{purpose}.id"
        with _explained(key, files.id):
            wrong = list(_wrong_with(stack, purpose, files.id, opts))
            mount = None if wrong else _mount(stack, files.id, opts)
        if mount is None and not wrong:
            wrong = [f"has no active mount target in {_vpc(stack)}; its owner adds one"]
        problems += [Problem(key, files.id, says) for says in wrong]
        if mount is not None:
            mounts[purpose] = mount
    if problems:
        raise ExistingFileSystemError("\n".join(str(problem) for problem in problems))
    return mounts


def _wrong_with(stack: Stack, purpose: str, id_: str, opts: pulumi.InvokeOptions) -> Iterator[str]:
    """Yield what is wrong with an existing file system.

    CPFS supports no encryption (alicloud_nas_file_system, ``encrypt_type``), as with the stack's own.
    """
    systems = alicloud.nas.get_file_systems(ids=[id_], opts=opts).systems
    if not systems:
        yield f"is not in {stack.region}, or not of account {stack.account_id}"
        return
    (files,) = systems
    kinds = HOMES if purpose == "home" else SCRATCH
    if files.file_system_type not in kinds:
        yield f"is of kind {files.file_system_type}; must be {' or '.join(kinds)}"
    elif purpose == "home" and files.protocol_type != NFS:
        yield f"speaks {files.protocol_type}; must speak {NFS}"
    elif purpose == "home" and not files.encrypt_type:
        yield (
            "is not encrypted, and NAS cannot encrypt it later: have its owner copy the files to an "
            "encrypted one, and name that here"
        )


def _mount(stack: Stack, id_: str, opts: pulumi.InvokeOptions) -> FoundFiles | None:
    """Return the first active mount target in the VPC; one serves every zone."""
    targets = alicloud.nas.get_mount_targets(file_system_id=id_, vpc_id=_vpc(stack), opts=opts).targets
    for target in sorted(targets, key=lambda target: target.mount_target_domain):
        if target.status == ACTIVE:
            (vswitch,) = alicloud.vpc.get_switches(ids=[target.vswitch_id], opts=opts).vswitches
            return FoundFiles(target.mount_target_domain, vswitch.cidr_block)
    return None


def _vpc(stack: Stack) -> str:
    """Return the id of the existing VPC; the settings' rules require it beside an existing file system."""
    return stack.network.existing.vpc_id if stack.network.existing else ""


@contextmanager
def _explained(key: str, value: str) -> Iterator[None]:
    """Name the key of a failed lookup in the error; the SDK raises nothing narrower than Exception."""
    try:
        yield
    except Exception as error:
        raise ExistingFileSystemError(str(Problem(key, value, " ".join(str(error).split())))) from error
