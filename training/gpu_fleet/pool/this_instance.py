"""Who this instance is: its pool by instance.toml, its id, type and address by the metadata service."""

import json
import os
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_fleet import instance_file
from gpu_fleet.errors import LaunchError
from gpu_fleet.stopping.interrupt import ALICLOUD_METADATA, AWS_METADATA, TOKEN_TTL_S, ask

ROLES = "ram/security-credentials/"  # of Alibaba Cloud's service
OK = 200  # HTTP
ATTEMPTS = 5  # of a second each: the service may be slow on an instance that has just started


class Expected(BaseModel):
    """What the stack promises of one instance type of the pool; more keys may follow, they are not ours."""

    model_config = ConfigDict(frozen=True, strict=True)

    gpus: int = 0
    efa_interfaces: int = 0
    erdma_interfaces: int = 0


class PoolIdentity(BaseModel):
    """The part of instance.toml that a launch needs."""

    model_config = ConfigDict(frozen=True, strict=True)

    cloud: Literal["aws", "alicloud"]
    region: str
    stack: str
    pool: str
    expected: dict[str, Expected] = {}  # by instance type


class ThisInstance(BaseModel):
    """This instance, in its own words."""

    model_config = ConfigDict(frozen=True)

    instance_id: str
    instance_type: str
    address: str  # private IPv4


def read_identity() -> PoolIdentity | None:
    """The identity in instance.toml, None on instances of no fleet; raises LaunchError naming a wrong key."""
    table = instance_file.table()
    if not table:
        return None
    try:
        return PoolIdentity.model_validate(table)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        raise LaunchError(f"instance.toml: {key} = {item['input']!r}: {item['msg']}") from error


@dataclass(frozen=True)
class Service:
    """The metadata service of a cloud."""

    variable: str  # of the environment, with another address than the usual one
    address: str
    token_header: str
    type_path: str
    address_path: str


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
SERVICES = {
    "aws": Service(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        AWS_METADATA,
        "X-aws-ec2-metadata-token",
        "instance-type",
        "local-ipv4",
    ),
    "alicloud": Service(
        "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT",
        ALICLOUD_METADATA,
        "X-aliyun-ecs-metadata-token",
        "instance/instance-type",
        "private-ipv4",
    ),
}


class MetadataClient:
    """What the cloud tells this instance about itself; asked with a token, as both clouds want."""

    def __init__(self, cloud: str) -> None:
        """Raises LaunchError when the service is silent."""
        self.service = SERVICES[cloud]
        self._base = os.environ.get(self.service.variable, self.service.address).rstrip("/")
        ttl = {f"{self.service.token_header}-ttl-seconds": str(TOKEN_TTL_S)}
        self._proof = {self.service.token_header: _answer(f"{self._base}/latest/api/token", ttl, "PUT")}

    def read(self, path: str) -> str:
        """The text below /latest/meta-data/; raises LaunchError when there is none."""
        return _answer(f"{self._base}/latest/meta-data/{path}", self._proof)

    def role_keys(self) -> dict[str, str]:
        """The present keys of an instance's RAM role on Alibaba Cloud, in the words of its metadata service.

        Raises LaunchError when there is none, ValueError or LookupError for what cannot be read.
        """
        role = self.read(ROLES).splitlines()[0]
        keys: dict[str, str] = json.loads(self.read(ROLES + role))
        return keys

    def instance(self) -> ThisInstance:
        """Id, type and address of this instance."""
        return ThisInstance(
            instance_id=self.read("instance-id"),
            instance_type=self.read(self.service.type_path),
            address=self.read(self.service.address_path),
        )


def _answer(url: str, headers: dict[str, str], method: str = "GET") -> str:
    for _ in range(ATTEMPTS):
        status, text = ask(url, headers, method)
        if status:
            break
    if status != OK:
        said = f"answers {status}" if status else "does not answer"
        raise LaunchError(f"{url}: the metadata service {said}; --alone needs no peers and does not ask")
    return text.strip()
