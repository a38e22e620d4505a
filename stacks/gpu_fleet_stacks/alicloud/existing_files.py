"""File systems of somebody else's: looked up by their ids, never declared, never changed, never deleted."""

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
    """A file system that the stack file names is not as the stack needs it."""


@dataclass(frozen=True)
class FoundFiles:
    """A file system with a mount target in the stack's VPC.

    Attributes:
        domain: of the mount target.
        network: the CIDR of the vSwitch in which it stands; rules of enterprise groups name it.
    """

    domain: str
    network: str


def look_up(stack: Stack, parent: pulumi.Resource) -> Mapping[str, FoundFiles]:
    """Look up what the stack file names, by purpose (``home``, ``scratch``); a preview does so too.

    At once and not as Outputs: all that is refused is then one message of the program, before any rule of the
    firewall is declared.

    Raises:
        ExistingFileSystemError: naming all that are not the account's, are of another kind, keep what they
            hold in the clear, or have no mount target in the VPC.
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
    """CPFS takes no encryption (alicloud_nas_file_system, ``encrypt_type``), as with the stack's own."""
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
            "is not encrypted, and NAS encrypts none later: its owner copies the files to an encrypted one, "
            "whose id stands here then"
        )


def _mount(stack: Stack, id_: str, opts: pulumi.InvokeOptions) -> FoundFiles | None:
    """Its first active mount target in the VPC; one serves every zone."""
    targets = alicloud.nas.get_mount_targets(file_system_id=id_, vpc_id=_vpc(stack), opts=opts).targets
    for target in sorted(targets, key=lambda target: target.mount_target_domain):
        if target.status == ACTIVE:
            (vswitch,) = alicloud.vpc.get_switches(ids=[target.vswitch_id], opts=opts).vswitches
            return FoundFiles(target.mount_target_domain, vswitch.cidr_block)
    return None


def _vpc(stack: Stack) -> str:
    """The rules of the stack file let no file system be named without a VPC."""
    return stack.network.existing.vpc_id if stack.network.existing else ""


@contextmanager
def _explained(key: str, value: str) -> Iterator[None]:
    """A lookup that fails names its key; the SDK raises nothing narrower than Exception."""
    try:
        yield
    except Exception as error:
        raise ExistingFileSystemError(str(Problem(key, value, " ".join(str(error).split())))) from error
