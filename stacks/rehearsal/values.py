"""Values as they cross between Pulumi's wire format, boto3 and plain Python. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

from pulumi.runtime import rpc

# A resource's properties, and what making one gives back: its id and its outputs.
Inputs = dict[str, Any]
Created = tuple[str, Inputs]

# Pulumi appends a dash and seven characters to a logical name that carries no physical one.
AUTONAME_LENGTH = 7


def plain(value: Any) -> Any:
    """Wire value -> plain value: secrets unwrapped, whole floats as ints (the wire knows no ints)."""
    if rpc.is_rpc_secret(value):
        return plain(rpc.unwrap_rpc_secret(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def secret_keys(inputs: Mapping[str, Any]) -> frozenset[str]:
    """The top-level keys of wire inputs that hold a secret."""
    return frozenset(key for key, value in inputs.items() if rpc.is_rpc_secret(value))


def pascal(value: Any) -> Any:
    """camelCase keys -> PascalCase keys, all the way down: how most AWS APIs spell what Pulumi spells.

    Keys of a map that carries data rather than fields (tags, variables) must not pass through here.
    """
    if isinstance(value, Mapping):
        return {key[:1].upper() + key[1:]: pascal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [pascal(item) for item in value]
    return value


def picked(inputs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The inputs that are there, under their API names.

    Args:
        inputs: camelCase inputs of a resource.
        names: API parameter -> input key.
    """
    return {parameter: inputs[key] for parameter, key in names.items() if key in inputs}


def tag_list(tags: Mapping[str, str] | None, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """A tag map as the list of pairs most AWS APIs take."""
    return [{key: name, value: text} for name, text in (tags or {}).items()]


def with_tags_all(inputs: Mapping[str, Any], **computed: Any) -> dict[str, Any]:
    """What the provider returns: the inputs, ``tagsAll`` where tags were given, and computed attributes."""
    tags_all = {"tagsAll": inputs["tags"]} if "tags" in inputs else {}
    return {**inputs, **tags_all, **computed}


def physical_name(name: str, inputs: Mapping[str, Any], key: str = "name") -> str:
    """The input ``key``, or a name from its prefix or the logical name, with a suffix as Pulumi appends.

    The suffix follows from the logical name, so that two rehearsals give equal names.
    """
    if key in inputs:
        return str(inputs[key])
    suffix = hashlib.sha256(name.encode()).hexdigest()[:AUTONAME_LENGTH]
    prefix = inputs.get(f"{key}Prefix")
    return f"{prefix}{suffix}" if prefix else f"{name}-{suffix}"
