"""boto3 clients for moto: one session, one client for each service and region."""

import copy
import os
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.hooks import HierarchicalEmitter

from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.moto_server import ACCOUNT_ID, LOOPBACK

# moto answers at once or not at all; a second try would only hide its answer.
_CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
# Service descriptions are slow to read and never change, so all sessions of the process share one reader.
_LOADER = botocore.loaders.create_loader()


@cache
def _builtin_handlers() -> HierarchicalEmitter:
    """Return botocore's own handlers, registered once: registration inspects the signature of each."""
    handlers = HierarchicalEmitter()
    botocore.session.Session(event_hooks=handlers)
    return handlers


class ClientPool:
    """Every client of a rehearsal; safe for several threads.

    Attributes:
        session: the boto3 session; its ``events`` see each call.
    """

    def __init__(self) -> None:
        core = botocore.session.Session(
            event_hooks=copy.copy(_builtin_handlers()), include_builtin_handlers=False
        )
        core.register_component("data_loader", _LOADER)
        self.session: Any = boto3.session.Session(botocore_session=core)
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str, region: str) -> Any:
        """Return a client, made at the first call and kept.

        Raises:
            RehearsalError: AWS_ENDPOINT_URL is not this computer: a rehearsal never reaches a cloud.
        """
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        if not endpoint.startswith(f"http://{LOOPBACK}:"):
            raise RehearsalError(f"AWS_ENDPOINT_URL = {endpoint!r}: must be a moto server on {LOOPBACK}")
        with self._lock:  # making a client is not thread-safe in boto3
            key = (service, region)
            if key not in self._clients:
                self._clients[key] = self.session.client(
                    service, region_name=region, endpoint_url=endpoint, config=_CONFIG
                )
            return self._clients[key]

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            client.close()


@dataclass(frozen=True)
class RegionClients:
    """The clients of one region: ``clients("ec2")``.

    Attributes:
        pool: makes the clients; all regions share it.
    """

    region: str
    pool: ClientPool = field(default_factory=ClientPool)
    account_id: str = ACCOUNT_ID

    def __call__(self, service: str) -> Any:
        """Return the client of a service, by boto3's name; errors as in ``ClientPool.client``."""
        return self.pool.client(service, self.region)

    def count_objects(self, uri: str, ending: str) -> int:
        """Return the number of objects under ``s3://bucket/prefix`` whose names have this ending."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        pages = self("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sum(item["Key"].endswith(ending) for page in pages for item in page.get("Contents", []))

    def at(self, region: str | None) -> "RegionClients":
        """Return the clients of another region; of this one when none is named."""
        return self if region is None else RegionClients(region, self.pool, self.account_id)

    @property
    def partition(self) -> str:
        """ARN partition of the region."""
        return str(self.pool.session.get_partition_for_region(self.region))

    def arn(self, service: str, resource: str) -> str:
        """Return an ARN of this account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account_id}:{resource}"
