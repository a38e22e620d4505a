"""Facts of the installed provider SDK about a resource type: its class and its outputs."""

import importlib
import re
from functools import cache
from typing import Any, get_type_hints

import pulumi
from pulumi._types import resource_types  # the SDK's own reflection, which has no public name

# Module names that are Python keywords have an underscore in the generated SDKs.
_KEYWORDS = {"lambda": "lambda_"}


@cache
def resource_class(type_token: str) -> type[pulumi.Resource] | None:
    """Return the class of a type token (``aws:ec2/vpc:Vpc`` -> ``pulumi_aws.ec2.Vpc``); None without one."""
    package, module, name = type_token.split(":")
    service = module.partition("/")[0]
    # The package, not the file in it: the SDKs load lazily, and loading one file first hides the others.
    path = f"pulumi_{package}.{_KEYWORDS.get(service, service)}"
    try:
        resource = getattr(importlib.import_module(path), name, None)
    except ModuleNotFoundError:
        return None
    return resource if getattr(resource, "pulumi_type", None) == type_token else None


@cache
def sure_outputs(type_token: str) -> dict[str, Any]:
    """Return the outputs that the SDK declares to be always present: camelCase name -> Python type.

    Returns:
        nothing for a type that has no SDK class.
    """
    resource = resource_class(type_token)
    if resource is None:
        return {}
    return {name: kind for name, kind in resource_types(resource).items() if not _optional(resource, name)}


def _optional(owner: type, pulumi_name: str) -> bool:
    declared = getattr(owner, snake_case(pulumi_name), None)
    if not isinstance(declared, property):
        return True
    return "Optional" in str(get_type_hints(declared.fget).get("return", "Optional"))


def snake_case(name: str) -> str:
    """Convert camelCase to snake_case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
