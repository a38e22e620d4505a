"""Namespaces of a stack's configuration: this project's keys, and problems with the others. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Stack

PREFIX = f"{naming.PROJECT}:"
ENGINE = "pulumi"
# Settings of the default providers, which the program does not use: every resource names its provider.
PROVIDERS = {
    "aws": "AWS_PROFILE",
    "alicloud": "ALIBABA_CLOUD_PROFILE",
}
KEYS = tuple(field.name for field in fields(Stack) if field.name != "name")


def own_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of this project, without their prefix."""
    return {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}


def foreign_keys(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each key that nothing would read."""
    for key, value in config.items():
        if key.startswith(PREFIX):
            continue
        namespace, colon, name = key.rpartition(":")
        if not colon:
            yield Problem(key, value, f"has no namespace; {_meant(name)}")
        elif namespace in PROVIDERS:
            yield Problem(key, value, _not_honoured(namespace, name))
        elif namespace != ENGINE:
            yield Problem(key, value, f"namespace {namespace!r} is read by nothing here; {_meant(name)}")


def _not_honoured(namespace: str, name: str) -> str:
    if name == "region":
        return f"configures the default provider, which is switched off; use {PREFIX}region"
    return (
        "configures the default provider, which is not used: the stack has an explicit provider; give "
        f"credentials and roles in the environment ({PROVIDERS[namespace]})"
    )


def _meant(name: str) -> str:
    close = get_close_matches(name, KEYS, n=1)
    if close:
        return f"did you mean '{PREFIX}{close[0]}'?"
    return f"keys of this project begin with {PREFIX!r}: {', '.join(sorted(KEYS))}"
