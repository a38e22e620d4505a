"""Outputs of a resource that moto lacks: its inputs, and the attributes that every program may read."""

import typing
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_fleet_stacks.rehearsal import sdk, values
from gpu_fleet_stacks.rehearsal.clients import RegionClients

# AWS resource types without a creator, and the reason: moto 5.2 has no backend for them.
LACKING = {
    "aws:ec2/placementGroup:PlacementGroup": "moto has no CreatePlacementGroup",
    "aws:efs/backupPolicy:BackupPolicy": "moto has no PutBackupPolicy",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": "moto has no associations of FSx",
    "aws:imagebuilder/component:Component": "moto has no Image Builder",
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": "moto has no Image Builder",
    "aws:imagebuilder/image:Image": "moto has no Image Builder",
    "aws:imagebuilder/imagePipeline:ImagePipeline": "moto has no Image Builder",
    "aws:imagebuilder/imageRecipe:ImageRecipe": "moto has no Image Builder",
    "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": "moto has no Image Builder",
    "aws:imagebuilder/lifecyclePolicy:LifecyclePolicy": "moto has no Image Builder",
    "aws:imagebuilder/workflow:Workflow": "moto has no Image Builder",
}
# Type -> the input, or ``name``, that the provider uses as the id.
_IDENTIFIED_BY = {
    "aws:ec2/placementGroup:PlacementGroup": "name",
    "aws:efs/backupPolicy:BackupPolicy": "fileSystemId",
}
# Types whose ids are digits; programs use them as numbers.
_NUMBERED = frozenset({"alicloud:cms/monitorGroup:MonitorGroup"})
# Type -> the end of its ARN after the name, with its ``version``.
_VERSIONED = {
    "aws:imagebuilder/component:Component": "/{}/1",
    "aws:imagebuilder/imageRecipe:ImageRecipe": "/{}",
    "aws:imagebuilder/workflow:Workflow": "/{}/1",
}
# The first version of a resource that counts its versions.
_FIRST = 1


def reason(type_token: str) -> str:
    """Return why a resource of this type is recorded and not created."""
    if not type_token.startswith("aws:"):
        return "moto answers for AWS alone"
    return LACKING.get(type_token, "the rehearsal has no creator for it")


def recorded(
    clients: RegionClients, type_token: str, name: str, inputs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return id and outputs of a resource that is only recorded.

    An output that the SDK promises gets a value of its type that names the resource, so that a program can
    use it and a reader sees that it is not real.

    Returns:
        the id, ``recorded-<name>`` where the provider's is neither one of the inputs nor a number, and the
        outputs.
    """
    own = inputs | {"name": values.physical_name(name, inputs)}
    placeholder = f"recorded-{name}"
    identifier = str(own.get(_IDENTIFIED_BY.get(type_token, ""), placeholder))
    if type_token in _NUMBERED:
        identifier = str(zlib.crc32(name.encode()))
    promised = {
        key: _placeholder(kind, f"{placeholder}-{sdk.snake_case(key).replace('_', '-')}")
        for key, kind in sdk.sure_outputs(type_token).items()
    }
    computed = {key: value for key, value in promised.items() if value is not None}
    if type_token.startswith("aws:"):
        version = _VERSIONED.get(type_token, "").format(own.get("version"))
        computed |= {"arn": _arn(clients, type_token, own["name"] + version), "region": clients.region}
    return identifier, values.with_tags_all(computed | own)


def _arn(clients: RegionClients, type_token: str, physical: str) -> str:
    service, _, kind = type_token.split(":")[1].partition("/")
    return clients.arn(service, f"{sdk.snake_case(kind).replace('_', '-')}/{physical}")


def _placeholder(kind: Any, text: str) -> Any:
    """Return a value of a type; None for a structure, which only the provider could fill."""
    plain = {str: text, int: _FIRST, float: float(_FIRST), bool: False}
    if kind in plain:
        return plain[kind]
    origin = typing.get_origin(kind)
    if origin is Sequence:
        return []
    return {} if origin is Mapping else None
