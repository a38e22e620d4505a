"""Would AWS allow it? Policy documents judged with their conditions, which moto does not read.

Written from the IAM user guide and from nothing of this project, so that what ``stacks/gpu_fleet_stacks/aws``
means and what AWS reads are held against one another; ``test_iam.py`` holds it against the guide's own
examples. Its pages,
below docs.aws.amazon.com/IAM/latest/UserGuide/:

- reference_policies_evaluation-logic.html
- reference_policies_elements_resource.html, ..._notaction.html, ..._condition.html
- reference_policies_elements_condition_operators.html
- reference_policies_condition-single-vs-multi-valued-context-keys.html
- reference_policies_variables.html

What it does not know it refuses (``PolicyError``): an unknown operator, ``NotPrincipal``, several values of a
key without a set operator. It knows no service control, boundary or session policies; the stacks have none.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

Values = str | Sequence[str]
ARN_SEGMENTS = 6
VARIABLE = re.compile(r"\$\{([^}]*)\}")
LITERALS = {"*": "*", "?": "?", "$": "$"}
WITH_VARIABLES = "2012-10-17"


class PolicyError(ValueError):
    """A document that this evaluator does not understand, and so does not judge."""


class Verdict(StrEnum):
    """Result of a decision."""

    ALLOWED = "allowed"
    NOT_ALLOWED = "not allowed by anything"
    DENIED = "denied by a statement"


@dataclass(frozen=True)
class Request:
    """One call, as the service hands it to IAM.

    Attributes:
        action: ``service:Action``.
        resource: ARN, or ``*`` for an action that knows none.
        principal: ARN of the caller, or a service's name such as ``ec2.amazonaws.com``.
        context: condition key -> its value or values; other keys are absent.
    """

    action: str
    resource: str
    principal: str = "arn:aws:iam::123456789012:role/caller"
    context: Mapping[str, Values] = field(default_factory=dict)

    def values_of(self, key: str) -> tuple[str, ...] | None:
        """Return the values of a key, in any case; None if it is absent."""
        for name, value in self.context.items():
            if name.lower() == key.lower():
                return (value,) if isinstance(value, str) else tuple(value)
        return None

    @property
    def account(self) -> str:
        """Account of the caller; empty for a service."""
        return self.principal.split(":")[4] if self.principal.startswith("arn:") else ""


def decide(
    request: Request,
    identity: Sequence[str] = (),
    resource: Sequence[str] = (),
    endpoint: Sequence[str] = (),
    *,
    resource_must_allow: bool = False,
) -> Verdict:
    """Judge a call within one account.

    Args:
        request: the call.
        identity: policies of the caller, as JSON.
        resource: policies of the resource.
        endpoint: policies of the endpoints that the call passes; each must allow it.
        resource_must_allow: as for KMS keys and for roles to be assumed, whose own policy must let the caller
            in, or leave it to the policies of its account.

    Raises:
        PolicyError: a document that cannot be judged.
    """
    if any(_matching(text, request, "Deny") for text in (*identity, *resource, *endpoint)):
        return Verdict.DENIED
    if not all(_matching(text, request, "Allow") for text in endpoint):
        return Verdict.NOT_ALLOWED
    by_identity = any(_matching(text, request, "Allow") for text in identity)
    granting = [statement for text in resource for statement in _matching(text, request, "Allow")]
    direct = any(not _leaves_it_to_the_account(value, request) for value in granting)
    let_in = bool(granting) or not resource_must_allow
    return Verdict.ALLOWED if direct or (by_identity and let_in) else Verdict.NOT_ALLOWED


@cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def _matching(text: str, request: Request, effect: str) -> list[dict[str, Any]]:
    document = _parsed(text)
    variables = document.get("Version") == WITH_VARIABLES
    return [
        statement
        for statement in listed(document["Statement"])
        if statement["Effect"] == effect and _applies(statement, request, variables=variables)
    ]


def _applies(statement: Mapping[str, Any], request: Request, *, variables: bool) -> bool:
    return (
        _principal_matches(statement, request)
        and _action_matches(statement, request.action)
        and _resource_matches(statement, request, variables=variables)
        and all(
            _condition_holds(operator, key, listed(wanted), request, variables=variables)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


# who


def _principals(statement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = statement["Principal"]
    for kind, values in ({"AWS": named} if isinstance(named, str) else named).items():
        yield from ((kind, value) for value in listed(values))


def _principal_matches(statement: Mapping[str, Any], request: Request) -> bool:
    if "NotPrincipal" in statement:
        raise PolicyError("NotPrincipal is not judged here")
    if "Principal" not in statement:  # a policy of the caller's own
        return True
    for kind, value in _principals(statement):
        if kind == "Service" and value == request.principal:
            return True
        if kind == "AWS" and (value in ("*", request.principal) or _is_account(value, request)):
            return True
    return False


def _is_account(value: str, request: Request) -> bool:
    return bool(request.account) and value in (request.account, f"arn:aws:iam::{request.account}:root")


def _leaves_it_to_the_account(statement: Mapping[str, Any], request: Request) -> bool:
    """Return whether only the account is named: then the caller's own policies decide."""
    named = {value for _, value in _principals(statement)}
    return not named & {"*", request.principal} and any(_is_account(value, request) for value in named)


# what, and on what


def _action_matches(statement: Mapping[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not any(glob(entry, action, case=False) for entry in listed(statement["NotAction"]))
    return any(glob(entry, action, case=False) for entry in listed(statement["Action"]))


def _resource_matches(statement: Mapping[str, Any], request: Request, *, variables: bool) -> bool:
    if "NotResource" in statement:
        return not any(_arn_like(entry, request, variables) for entry in listed(statement["NotResource"]))
    if "Resource" not in statement:  # a trust policy speaks of its own role
        return True
    return any(_arn_like(entry, request, variables) for entry in listed(statement["Resource"]))


def _arn_like(pattern: str, request: Request, variables: bool) -> bool:
    return pattern == "*" or _arn_matches(_resolved(pattern, request, variables), request.resource)


def _arn_matches(pattern: str | None, arn: str) -> bool:
    """Match by segments: a wildcard spans colons only in the last segment."""
    if pattern is None:
        return False
    wanted, found = _segments(pattern), _segments(arn)
    return len(wanted) == len(found) and all(map(glob, wanted, found))


def _segments(arn: str) -> list[str]:
    return arn.split(":", ARN_SEGMENTS - 1)


# texts


def _resolved(text: str, request: Request, variables: bool) -> str | None:
    """Return the text with its variables filled in, their wildcards literal; None if one has no value."""
    if not variables:
        return text
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name, _, default = (part.strip() for part in match[1].partition(","))
        if name in LITERALS:
            return _literal(LITERALS[name])
        found = request.values_of(name)
        if found is not None and len(found) == 1:
            return _literal(found[0])
        missing = missing or not default
        return _literal(default.strip("'"))

    filled = VARIABLE.sub(value, text)
    return None if missing else filled


# Private use characters stand for wildcards that are meant literally.
LITERAL_STAR, LITERAL_MARK = "\ue000", "\ue001"


def _literal(text: str) -> str:
    return text.replace("*", LITERAL_STAR).replace("?", LITERAL_MARK)


def _plain(text: str) -> str:
    return text.replace(LITERAL_STAR, "*").replace(LITERAL_MARK, "?")


def glob(pattern: str, text: str, *, case: bool = True) -> bool:
    return _matcher(pattern, case).fullmatch(text) is not None


@cache
def _matcher(pattern: str, case: bool) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(value) or re.escape(_plain(value)) for value in pattern)
    return re.compile(expression, re.DOTALL | (0 if case else re.IGNORECASE))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# conditions


def _number(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(float(found), float(wanted))


def _moment(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(_epoch(found), _epoch(wanted))


def _epoch(text: str) -> float:
    return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()


def _in_network(wanted: str, found: str) -> bool:
    return ip_address(found) in ip_network(wanted)


def _text(wanted: str, found: str) -> bool:
    return _plain(wanted) == found


def _text_any_case(wanted: str, found: str) -> bool:
    return _plain(wanted).lower() == found.lower()


POSITIVE: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": _text,
    "StringEqualsIgnoreCase": _text_any_case,
    "StringLike": glob,
    "ArnEquals": _arn_matches,
    "ArnLike": _arn_matches,
    "Bool": _text_any_case,
    "NumericEquals": _number(lambda found, wanted: found == wanted),
    "NumericLessThan": _number(lambda found, wanted: found < wanted),
    "NumericLessThanEquals": _number(lambda found, wanted: found <= wanted),
    "NumericGreaterThan": _number(lambda found, wanted: found > wanted),
    "NumericGreaterThanEquals": _number(lambda found, wanted: found >= wanted),
    "DateEquals": _moment(lambda found, wanted: found == wanted),
    "DateLessThan": _moment(lambda found, wanted: found < wanted),
    "DateLessThanEquals": _moment(lambda found, wanted: found <= wanted),
    "DateGreaterThan": _moment(lambda found, wanted: found > wanted),
    "DateGreaterThanEquals": _moment(lambda found, wanted: found >= wanted),
    "IpAddress": _in_network,
}
NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
    "NotIpAddress": "IpAddress",
}


def _condition_holds(
    operator: str, key: str, wanted: Sequence[Any], request: Request, *, variables: bool
) -> bool:
    quantifier, _, name = operator.rpartition(":")
    if_exists = name.endswith("IfExists")
    name = name.removesuffix("IfExists")
    found = request.values_of(key)
    if name == "Null":
        return any((found is None) is (_word(item) == "true") for item in wanted)
    if name not in POSITIVE and name not in NEGATED:
        raise PolicyError(f"operator {operator!r} is not judged here")
    values = [_resolved(_word(item), request, variables) for item in wanted]

    def holds(value: str) -> bool:
        """Return whether any value fits a positive operator; with a negated one, whether none does."""
        matches = POSITIVE[NEGATED.get(name, name)]
        return any(each_value is not None and matches(each_value, value) for each_value in values) is (
            name not in NEGATED
        )

    if quantifier == "ForAllValues":  # also where there is none: see the guide's warning
        return all(holds(item) for item in found or ())
    if quantifier == "ForAnyValue":
        return any(holds(item) for item in found or ())
    if quantifier:
        raise PolicyError(f"operator {operator!r} is not judged here")
    if found is None:
        return if_exists or name in NEGATED
    if len(found) != 1:
        raise PolicyError(f"{key} has {len(found)} values, and {operator} is for one")
    return holds(found[0])
