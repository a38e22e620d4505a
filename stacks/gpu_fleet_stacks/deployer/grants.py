"""Permissions that a resource type needs from its deployer, and the documents made of them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet_stacks.core.errors import StacksError

Statement = dict[str, Any]
Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]

# AWS counts no white space, and 10 managed policies go onto a role
# (docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html); RAM has the same limits for custom
# policies (www.alibabacloud.com/help/en/ram/product-overview/limits).
LONGEST_DOCUMENT = 6_144
MOST_DOCUMENTS = 10


@dataclass(frozen=True)
class Grant:
    """Some actions on some resources.

    Attributes:
        actions: ``service:Action``, with spaces between.
        resources: patterns with ``{stack}``, ``{region}`` and ``{account}``.
        when: operator -> condition key -> value or values; the same placeholders.
    """

    actions: str
    resources: tuple[str, ...] = ("*",)
    when: Conditions = field(default_factory=dict)


# Makes the grants of a row from the value of its kind and the whole row.
Kind = Callable[[Any, Mapping[str, Any]], tuple[Grant, ...]]


def plain(actions: str, row: Mapping[str, Any]) -> tuple[Grant, ...]:
    """Return the grant of a row as it is written."""
    return (Grant(actions, tuple(row.get("resources", ("*",))), row.get("when", {})),)


def table(name: str, kinds: Mapping[str, Kind]) -> Mapping[str, tuple[Grant, ...]]:
    """Return resource type -> its grants, from a file beside this one; a row begins with its kind."""
    types = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return {token: tuple(_grants(rows, kinds)) for token, rows in types.items()}


def _grants(rows: Iterable[Mapping[str, Any]], kinds: Mapping[str, Kind]) -> Iterator[Grant]:
    for row in rows:
        kind, value = next(iter(row.items()))
        yield from kinds[kind](value, row)


def filled(grant: Grant, names: Mapping[str, str]) -> Grant:
    """Return the grant of one stack."""
    when = {
        operator: {
            _put(key, names): _put(value, names)
            if isinstance(value, str)
            else tuple(_put(item, names) for item in value)
            for key, value in keys.items()
        }
        for operator, keys in grant.when.items()
    }
    return Grant(grant.actions, tuple(_put(resource, names) for resource in grant.resources), when)


def _put(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def statements(grants: Iterable[Grant]) -> list[Statement]:
    """Return one statement for all actions with equal resources and conditions, in order of appearance."""
    actions: dict[str, set[str]] = {}
    shared: dict[str, Grant] = {}
    for grant in grants:
        key = json.dumps([grant.resources, grant.when])
        shared.setdefault(key, grant)
        actions.setdefault(key, set()).update(grant.actions.split())
    return [_statement(sorted(actions[key]), grant) for key, grant in shared.items()]


def _statement(actions: list[str], grant: Grant) -> Statement:
    resources = list(grant.resources)
    said: Statement = {
        "Effect": "Allow",
        "Action": actions,
        "Resource": resources if len(resources) > 1 else resources[0],
    }
    if grant.when:
        said["Condition"] = {operator: dict(keys) for operator, keys in grant.when.items()}
    return said


def documents(version: str, said: Sequence[Statement]) -> list[dict[str, Any]]:
    """Return the statements in as few documents as their order allows.

    Raises:
        StacksError: there are more documents than a role can have, or one statement is too long by itself.
    """
    parts: list[list[Statement]] = [[]]
    for statement in said:
        if (
            parts[-1]
            and length({"Version": version, "Statement": [*parts[-1], statement]}) > LONGEST_DOCUMENT
        ):
            parts.append([])
        parts[-1].append(statement)
    made = [{"Version": version, "Statement": part} for part in parts]
    if len(made) > MOST_DOCUMENTS or any(length(document) > LONGEST_DOCUMENT for document in made):
        raise StacksError(
            f"{len(made)} policies, the longest of {max(map(length, made)):,} characters: a role takes "
            f"{MOST_DOCUMENTS} of {LONGEST_DOCUMENT:,} each"
        )
    return made


def length(document: Mapping[str, Any]) -> int:
    """Return the number of characters without white space between them."""
    return len(json.dumps(document, separators=(",", ":")))
