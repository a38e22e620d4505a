"""What both clouds' accounts around one virtual machine have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from gpu_fleet_image.core.handshake import PREFIX, Reply, key
from gpu_fleet_image.core.model import TAG_IDLE_SINCE, TAG_REAP_AFTER
from gpu_fleet_image.core.times import format_time, parse_time
from gpu_fleet_stacks.rehearsal.metadata import MetadataService
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from tests.image.plain_disk import PlainDisk
from tests.image.stand_ins.hours import Heartbeat
from tests.image.stand_ins.https_front import Front
from tests.image.virtual_machine import Network, VirtualMachine


@dataclass
class Account(ABC):
    """The account, and the one instance that runs in it.

    Attributes:
        rehearsed: what the stack registered.
        metadata: what the instance is told.
        front: the endpoints as the instance sees them.
        hosts: their names.
        instance: the instance.
        user_data: as the launch template has it, decoded.
        s3: a person's client of the buckets.
    """

    rehearsed: Rehearsed
    metadata: MetadataService
    front: Front
    hosts: tuple[str, ...]
    instance: Any
    user_data: str
    s3: Any
    # the machine's network holds every address that it can reach
    subnet: ClassVar[str]
    front_at: ClassVar[str]
    metadata_at: ClassVar[str]
    # by these cloud-init knows the cloud before it asks anything; it gets the user data where there are none
    firmware: ClassVar[dict[str, str]] = {}

    def guest(self, disk: PlainDisk, folder: Path, more: Mapping[str, str | bytes]) -> VirtualMachine:
        """A virtual machine with a copy of the disk, in this account's network.

        Args:
            disk: the plain one.
            folder: for all that the machine writes.
            more: path on the disk -> content, beside host names and authority.
        """
        hosts = "".join(f"{self.front_at} {name}\n" for name in self.hosts)
        files = {
            "/etc/hosts": f"127.0.0.1 localhost\n{hosts}",
            "/etc/ssl/certs/ca-certificates.crt": disk.certificates + self.front.authority,
        }
        forwards = {
            (self.metadata_at, 80): urlsplit(self.metadata.endpoint).port or 0,
            (self.front_at, 443): self.front.port,
        }
        return VirtualMachine(
            disk.with_files(folder / "disk", files | dict(more)),
            folder / "machine",
            user_data=None if self.firmware else self.user_data,
            network=Network(self.subnet, forwards),
            firmware=self.firmware,
        )

    @abstractmethod
    def heartbeats(self) -> list[Heartbeat]:
        """Every ``SecondsSinceActivity`` of the instance, oldest first."""

    @abstractmethod
    def tags(self) -> dict[str, str]:
        """The instance's tags."""

    def bucket(self, kind: str) -> str:
        """The name of one of the stack's buckets."""
        return str(self.rehearsed.outputs["bucket_uris"][kind]).partition("://")[2]

    def acknowledged(self) -> bool:
        """Whether the agent has said for the mark that everything is saved and nothing runs."""
        listed = self.s3.list_objects_v2(Bucket=self.bucket("records"), Prefix=f"reaper/{PREFIX}/")
        mark = parse_time(self.tags()[TAG_REAP_AFTER])
        # under whatever name the cloud calls the instance
        answer = key(self.instance.id, mark, Reply.IDLE).removeprefix(f"{PREFIX}/")
        return any(found["Key"].endswith(answer) for found in listed.get("Contents", []))

    def saved(self, name: str) -> bytes:
        """A file of ``/scratch/keep`` as it lies in the data bucket."""
        bucket, ending = self.bucket("data"), f"/{self.instance.id}/{name}"
        listed = self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        (path,) = [found["Key"] for found in listed if found["Key"].endswith(ending)]
        return bytes(self.s3.get_object(Bucket=bucket, Key=path)["Body"].read())

    def mark_before(self, passed: timedelta) -> dict[str, str]:
        """The mark's two tags as they would be if it had been set so much earlier; none where it is not."""
        return {
            name: format_time(parse_time(value) - passed)
            for name, value in self.tags().items()
            if name in (TAG_IDLE_SINCE, TAG_REAP_AFTER)
        }
