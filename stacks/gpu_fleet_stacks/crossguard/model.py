"""Rules and their input: declared resources as plain data."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TAG_PREFIX = "gpu-fleet:"
# Placeholder for a value that a preview cannot know. It counts as present, and a whole unknown document
# counts as valid: rules for one resource run again before it is created, when everything is known.
UNKNOWN = "(known after apply)"


class Severity(StrEnum):
    """Severity of a violation; the names are CrossGuard's."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


@dataclass(frozen=True)
class Resource:
    """A resource as declared.

    Attributes:
        type: the provider's token, say ``aws:kms/key:Key``.
        inputs: the provider's camelCase keys.
    """

    type: str
    name: str
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def tags(self) -> dict[str, str]:
        """Return its tags; the type has them as a mapping, or as a list of keys and values."""
        tags = self.inputs.get("tags") or {}
        if isinstance(tags, Mapping):
            return {str(key): str(value) for key, value in tags.items()}
        return {str(tag["key"]): str(tag["value"]) for tag in tags}


@dataclass(frozen=True)
class Profile:
    """Requirements of one stack beyond the common rules.

    Attributes:
        regions: patterns of the regions it may be in.
        advisory: rules that only warn.
    """

    regions: tuple[str, ...]
    advisory: frozenset[str] = frozenset()


# Description of a violation, in a few words.
Finding = str
ResourceCheck = Callable[[Resource], Iterator[Finding]]
# The resource that breaks the rule (None: a resource is missing) and the violation.
StackCheck = Callable[[Sequence[Resource], Profile], Iterator[tuple[Resource | None, Finding]]]


@dataclass(frozen=True)
class PolicyRule:
    """One requirement.

    Attributes:
        name: lower case and dashes; unique.
        reason: why it must hold.
        remedy: how to fix a violation.
        each: checks one resource; refuses it before it is created.
        whole: checks all resources together; refuses the preview.
        advisory: warns on every stack, and refuses none.
    """

    name: str
    reason: str
    remedy: str
    severity: Severity
    each: ResourceCheck | None = None
    whole: StackCheck | None = None
    advisory: bool = False


def items(value: Any) -> list[Any]:
    """Return a list as it is, an empty list for None, and any other value as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def is_on(value: Any) -> bool:
    """Return whether a flag is set; launch templates have flags as text."""
    return value is True or str(value).lower() == "true"


def statements(document: Any) -> list[Mapping[str, Any]]:
    """Return the statements of a policy document (JSON text or a mapping); none for an empty one."""
    if not document or document == UNKNOWN:
        return []
    content = json.loads(document) if isinstance(document, str) else document
    return [statement for statement in items(content.get("Statement")) if isinstance(statement, Mapping)]
