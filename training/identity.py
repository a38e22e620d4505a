"""Who this machine is: its pool by instance.toml, its id, type and address by the metadata service."""

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from training import instance
from training.errors import LaunchError
from training.interrupt import AWS_METADATA, TOKEN_TTL_S, ask

OK = 200  # HTTP


class Expected(BaseModel):
    """What the stack promises of one instance type of the pool; more keys may follow, they are not ours."""

    model_config = ConfigDict(frozen=True)

    gpus: int = 0
    efa_interfaces: int = 0
    erdma_interfaces: int = 0


class Identity(BaseModel):
    """The part of instance.toml that a launch needs."""

    model_config = ConfigDict(frozen=True)

    cloud: Literal["aws", "alicloud"]
    region: str
    stack: str
    pool: str
    expected: dict[str, Expected] = {}  # by instance type


class Machine(BaseModel):
    """This instance, in its own words."""

    model_config = ConfigDict(frozen=True)

    instance_id: str
    instance_type: str
    address: str  # private IPv4


def read_identity() -> Identity | None:
    """The identity in instance.toml, None on machines of no fleet; raises LaunchError naming a wrong key."""
    table = instance.table()
    if not table:
        return None
    try:
        return Identity.model_validate(table)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        raise LaunchError(f"instance.toml: {key} = {item['input']!r}: {item['msg']}") from error


def aws_machine() -> Machine:
    """Asks IMDSv2 who this machine is; raises LaunchError when the service is silent.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    """
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", AWS_METADATA).rstrip("/")
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
    proof = {"X-aws-ec2-metadata-token": _answer(f"{base}/latest/api/token", ttl, method="PUT")}
    return Machine(
        instance_id=_answer(f"{base}/latest/meta-data/instance-id", proof),
        instance_type=_answer(f"{base}/latest/meta-data/instance-type", proof),
        address=_answer(f"{base}/latest/meta-data/local-ipv4", proof),
    )


def _answer(url: str, headers: dict[str, str], method: str = "GET") -> str:
    status, text = ask(url, headers, method)
    if status != OK:
        said = f"answers {status}" if status else "does not answer"
        raise LaunchError(f"{url}: the metadata service {said}; --alone needs no peers and does not ask")
    return text.strip()
