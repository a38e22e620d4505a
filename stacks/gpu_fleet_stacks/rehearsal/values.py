"""Conversions of values between Pulumi's wire format, boto3 and plain Python. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

from pulumi.runtime import rpc

# A resource's properties; and what a creator returns: the resource's id and its outputs.
Inputs = dict[str, Any]
Created = tuple[str, Inputs]

# Pulumi appends a dash and seven characters to a logical name without a physical one.
AUTONAME_LENGTH = 7


def plain(value: Any) -> Any:
    """Convert a wire value to a plain one: secrets unwrapped, whole floats as ints (the wire has no ints)."""
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
    """Return the top-level keys of wire inputs that hold a secret."""
    return frozenset(key for key, value in inputs.items() if rpc.is_rpc_secret(value))


def pascal(value: Any) -> Any:
    """Convert camelCase keys to PascalCase keys at every level, as most AWS APIs spell them.

    Do not use it for a map that carries data instead of fields (tags, variables).
    """
    if isinstance(value, Mapping):
        return {key[:1].upper() + key[1:]: pascal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [pascal(item) for item in value]
    return value


def api_names(same: str, **others: str) -> dict[str, str]:
    """Return API parameter -> input key: of inputs that the API only capitalises, and of others."""
    return {key[:1].upper() + key[1:]: key for key in same.split()} | others


def picked(inputs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the present inputs under their API names.

    Args:
        names: API parameter -> input key.
    """
    return {parameter: inputs[key] for parameter, key in names.items() if key in inputs}


def tag_list(tags: Mapping[str, str] | None, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """Return a tag map as the list of pairs that most AWS APIs expect."""
    return [{key: name, value: text} for name, text in (tags or {}).items()]


def with_tags_all(inputs: Mapping[str, Any], **computed: Any) -> dict[str, Any]:
    """Return the provider's outputs: the inputs, ``tagsAll`` for given tags, and computed attributes."""
    tags_all = {"tagsAll": inputs["tags"]} if "tags" in inputs else {}
    return {**inputs, **tags_all, **computed}


def physical_name(name: str, inputs: Mapping[str, Any], key: str = "name") -> str:
    """Return the input ``key``, or its prefix or the logical name with a suffix, as Pulumi appends it.

    The suffix is derived from the logical name, so that two rehearsals give equal names.
    """
    if key in inputs:
        return str(inputs[key])
    suffix = hashlib.sha256(name.encode()).hexdigest()[:AUTONAME_LENGTH]
    prefix = inputs.get(f"{key}Prefix")
    return f"{prefix}{suffix}" if prefix else f"{name}-{suffix}"
