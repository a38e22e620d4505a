"""The queue on Alibaba Cloud: secrets in KMS, instances in ECS, records in OSS."""

import base64
import json
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpu_fleet_image.core import oss
from gpu_fleet_image.core.alicloud_credentials import KEY_ID, AccessKey, Credentials
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.queue_errors import NotReadyError
from gpu_fleet_image.core.reaper_errors import AnswerError
from gpu_fleet_image.core.store import StoredObject
from gpu_fleet_image.providers.alicloud import instances
from gpu_fleet_image.providers.alicloud.oss import OssStore
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Product, clients
from gpu_fleet_image.slurm import munge

# The key's version and its label. The secret's current version stays the text that the stack declares, which
# Pulumi reads back into its state (stacks/gpu_fleet_stacks/alicloud/queue.py).
VERSION = "munge"


class AlicloudQueue:
    """Implementation of ``cloud.QueueCloud``."""

    def __init__(self, instance: InstanceFile) -> None:
        metadata = None if os.environ.get(KEY_ID) else Metadata(instance.cloud)
        self._instance = instance
        self._credentials = Credentials(os.environ, metadata)
        self._clients = clients(instance.region, self._credentials, os.environ.get(ENDPOINT, ""), inside=True)
        self._calls = Calls(lambda: datetime.now(UTC))

    def key(self, secret: str, *, may_make: bool) -> bytes:
        """Return munge's key as the protocol."""
        return fetched(self._clients.kms, secret, may_make=may_make)

    def states(self, ids: list[str]) -> dict[str, str]:
        """Return instances' states as the protocol."""
        return instances.states_of(self._calls, self._clients.ecs, ids)

    def store(self) -> "RecordsStore":
        """Return the stack's records as the protocol."""
        inside = oss.ENDPOINT_INSIDE.format(region=self._instance.region)

        def bucket() -> Any:
            return oss.bucket_client(self._instance.region, self._credentials, inside)

        return RecordsStore(self._credentials.current, bucket, self._calls, self._instance.records_uri)


def connect(instance: InstanceFile) -> AlicloudQueue:
    """Return the cloud of this instance."""
    return AlicloudQueue(instance)


class RecordsStore(OssStore):
    """Records of a controller that runs for long: a client of boto3 expires with its role's keys.

    Args:
        keys: returns the keys that are valid now.
        bucket: makes boto3's client with them.
    """

    def __init__(
        self, keys: Callable[[], AccessKey], bucket: Callable[[], Any], calls: Calls, uri: str
    ) -> None:
        super().__init__(None, calls, uri)
        self._keys, self._bucket_client = keys, bucket
        self._of: AccessKey | None = None

    def newest(self, key: str, at_most: int | None = None) -> StoredObject | None:
        """Return an object as ``Store``."""
        self._renew()
        return super().newest(key, at_most)

    def put(self, key: str, content: dict[str, Any]) -> None:
        """Write an object as ``Store``."""
        self._renew()
        super().put(key, content)

    def _renew(self) -> None:
        keys = self._keys()
        if keys != self._of:
            self._s3, self._of = self._bucket_client(), keys


def fetched(kms: Product, secret: str, *, may_make: bool) -> bytes:
    """Return munge's key; arguments and errors as of ``cloud.QueueCloud.key``.

    KMS never changes an existing version: it refuses another value under its number. So of two controllers
    one makes the key, and the other finds it when it tries again. After any failed read, making a key cannot
    overwrite one.
    """
    try:
        answer = kms.action("GetSecretValue")(SecretName=secret, VersionId=VERSION)
        return munge.decoded(str(answer["SecretData"]), secret)
    except AnswerError as error:
        if not may_make:
            raise NotReadyError(f"secret {secret}: {error}") from error
        absent = error
    made = secrets.token_bytes(munge.KEY_BYTES)
    try:
        kms.action("PutSecretValue")(
            SecretName=secret,
            VersionId=VERSION,
            SecretData=base64.b64encode(made).decode(),
            VersionStages=json.dumps([VERSION]),
        )
    except AnswerError as error:
        raise NotReadyError(f"secret {secret}: not read: {absent}; not made: {error}") from error
    return made
