"""The pool of this instance, as instance.toml names it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_fleet.core import config, instance_file
from gpu_fleet.core.errors import LaunchError


class Expected(BaseModel):
    """Hardware that the stack promises for one instance type of the pool; other keys are ignored."""

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
    """Return the identity in instance.toml; None outside a fleet. Raises LaunchError naming a wrong key."""
    table = instance_file.table()
    if not table:
        return None
    try:
        return PoolIdentity.model_validate(table)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            raise LaunchError(f"instance.toml: {key}: is missing") from error
        raise LaunchError(
            f"instance.toml: {key} = {item['input']!r}: {config.allowed(item['msg'])}"
        ) from error
