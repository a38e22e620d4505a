"""Checks a resource's inputs against the classes and docstrings of the installed provider SDK.

It finds what a provider would refuse before any API call: keys that no such resource has, required ones that
are missing, values of another type, and texts outside the list that the documentation gives.
"""

import collections.abc
import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any

import pulumi
from pulumi._types import input_type_types, is_input_type

from gpu_fleet_stacks.rehearsal import sdk
from gpu_fleet_stacks.rehearsal.registrations import Registration

PROVIDERS = "pulumi:providers:"
# Documented lists that are not what the provider takes: (type, path) -> what it takes, and where that stands.
DOCUMENTED_WRONGLY = {
    ("aws:sns/topicSubscription:TopicSubscription", "protocol"): "the next sentence adds email and http(s)",
    (
        "alicloud:ess/suspendProcess:SuspendProcess",
        "process",
    ): "the provider's code takes ScaleIn and ScaleOut, as the API: resource_alicloud_ess_suspend_process.go",
}

# "Valid values: `A`, `B` (default), or `C`." and its relatives; the list must be the whole sentence.
_TOKEN = r"`[^`]+`(?:\s*\([^)]*\))?"
_SEPARATOR = r"(?:\s*(?:,|\||\band\b|\bor\b)\s*)+"
_OPENING = (
    r"(?:(?:valid|allowed|possible|supported|accepted|available) (?:values?|options?)(?: are| include)?"
    r"|(?:can|must|should) be(?: either| one of)?|one of)(?: the following)?"
)
_VALID_VALUES = re.compile(
    rf"\b{_OPENING}:?\s+({_TOKEN}(?:{_SEPARATOR}{_TOKEN})+|(?<=:\s){_TOKEN})\s*(?:\.|$|\n)", re.IGNORECASE
)


def problems(registration: Registration) -> list[str]:
    """What the provider would refuse of a registration; empty for components.

    Args:
        registration: with inputs in the provider's camelCase names.
    """
    given = registration.inputs
    if registration.type.startswith(PROVIDERS):
        arguments = provider_arguments_class(registration.type)
        given = _decoded(arguments, given)
    elif registration.outcome == "grouped":
        return []
    else:
        found = arguments_class(registration.type)
        if found is None:
            return [f"{registration.type}: the SDK has no such resource type"]
        arguments = found
    place = f"{registration.type} {registration.name!r}"
    return [
        f"{place}: {problem}"
        for path, problem in _of_structure(arguments, given, "")
        if (registration.type, path) not in DOCUMENTED_WRONGLY
    ]


def provider_arguments_class(type_token: str) -> type:
    """The class of a provider's own settings, say ``pulumi_aws.ProviderArgs``."""
    found: type = importlib.import_module(f"pulumi_{type_token.removeprefix(PROVIDERS)}").ProviderArgs
    return found


def _decoded(arguments: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """A provider's settings cross the wire as JSON texts, all but those that are texts anyway."""
    kinds = input_type_types(arguments)
    return {
        key: value if str in alternatives(kinds.get(key, str)) else json.loads(value)
        for key, value in given.items()
    }


def arguments_class(type_token: str) -> type | None:
    """The class of a resource type's arguments, say ``pulumi_aws.ec2.VpcArgs``; None without one."""
    found = sdk.resource_class(type_token)
    if found is None:
        return None
    module = importlib.import_module(found.__module__)
    # "Init" where a nested structure has taken the plain name
    names = (f"{found.__name__}InitArgs", f"{found.__name__}Args")
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _of_structure(arguments: type, given: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    known = input_type_types(arguments)
    for key in sorted(required(arguments) - given.keys()):
        yield f"{path}{key}", f"{path}{key} is required, and missing"
    for key, value in given.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            yield f"{path}{key}", f"{path}{key} is unknown; {hint}"
        else:
            yield from _of_value(known[key], value, f"{path}{key}", documented_values(arguments, key))


def _of_value(kind: Any, value: Any, path: str, allowed: frozenset[str]) -> Iterator[tuple[str, str]]:
    choices = alternatives(kind)
    structures = [choice for choice in choices if inspect.isclass(choice) and is_input_type(choice)]
    sequences = [choice for choice in choices if typing.get_origin(choice) is collections.abc.Sequence]
    mappings = [choice for choice in choices if typing.get_origin(choice) is collections.abc.Mapping]
    if structures and isinstance(value, Mapping):
        yield from _of_structure(structures[0], value, f"{path}.")
    elif sequences and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _of_value(typing.get_args(sequences[0])[0], item, f"{path}[{index}]", allowed)
    elif mappings and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _of_value(typing.get_args(mappings[0])[1], item, f"{path}.{key}", frozenset())
    elif not any(_is_a(value, choice) for choice in choices):
        names = " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)
        yield path, f"{path} = {value!r}: must be {names}"
    elif allowed and isinstance(value, str) and value not in allowed:
        yield path, f"{path} = {value!r}: documented are {', '.join(sorted(allowed))}"


def alternatives(kind: Any) -> list[Any]:
    """The plain types that an SDK annotation stands for: no outputs, awaitables or None among them."""
    if typing.get_origin(kind) is typing.Union:
        return [part for option in typing.get_args(kind) for part in alternatives(option)]
    wrapped = typing.get_origin(kind) in (collections.abc.Awaitable, pulumi.Output)
    return [] if wrapped or kind is type(None) else [kind]


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if not inspect.isclass(kind) or is_input_type(kind):
        return False
    if issubclass(kind, Enum):
        return value in {member.value for member in kind}
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


@cache
def required(arguments: type) -> frozenset[str]:
    """The camelCase keys without which the SDK makes no such structure."""
    parameters = inspect.signature(arguments.__init__).parameters.values()
    names = {
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }
    return frozenset(key for key in input_type_types(arguments) if sdk.snake_case(key) in names)


@cache
def documented_values(arguments: type, key: str) -> frozenset[str]:
    """The texts that a property's documentation lists as its valid values; empty where it gives no list."""
    declared = getattr(arguments, sdk.snake_case(key), None)
    text = (declared.fget.__doc__ or "") if isinstance(declared, property) else ""
    found = _VALID_VALUES.search(text)
    if found is None:
        return frozenset()
    tokens = re.findall(r"`([^`]+)`", found.group(1))
    return frozenset(part.strip(' "[]') for token in tokens for part in token.split("|"))
