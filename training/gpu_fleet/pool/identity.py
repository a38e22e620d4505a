"""The pool that instance.toml says this instance is of."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_fleet import instance_file
from gpu_fleet.errors import LaunchError


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
