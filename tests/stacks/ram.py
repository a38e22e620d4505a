"""Would Alibaba Cloud allow it? RAM policy documents judged with their conditions; nothing emulates RAM.

From www.alibabacloud.com/help/en/ram/: policy-elements, conditional-operator, policy-evaluation-process. They
name neither variables nor ``IfExists``, ``Null``, ``Arn...`` and set operators, and write resources as
``acs:service:region:account:relative-id``. Everything outside those pages is refused.

Nor do they say what a negated operator does if its key is absent. So every call is judged by both
readings, and a difference is an error: no stack may depend on it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stacks.iam import NEGATED, POSITIVE, PolicyError, Request, Verdict, glob, listed

SEGMENTS = 5
OPERATORS = {name for name in (*POSITIVE, *NEGATED) if not name.startswith("Arn")}


def decide(request: Request, identity: Sequence[str] = (), resource: Sequence[str] = ()) -> Verdict:
    """Judge a call within one account.

    Args:
        request: the call; the principal is ignored.
        identity: policies of the caller, as JSON.
        resource: policies of the resource.

    Raises:
        PolicyError: a document that cannot be judged, or that RAM's reference leaves open.
    """
    verdicts = {_decide(request, identity, resource, absent_passes=passes) for passes in (True, False)}
    if len({verdict is Verdict.ALLOWED for verdict in verdicts}) > 1:
        raise PolicyError(f"{request.action} hangs on how RAM reads an absent key under a negated operator")
    return Verdict.DENIED if Verdict.DENIED in verdicts else verdicts.pop()


def _decide(
    request: Request, identity: Sequence[str], resource: Sequence[str], *, absent_passes: bool
) -> Verdict:
    effects = {
        statement["Effect"]
        for text in (*identity, *resource)
        for statement in json.loads(text)["Statement"]
        if _applies(statement, request, absent_passes=absent_passes)
    }
    if "Deny" in effects:
        return Verdict.DENIED
    return Verdict.ALLOWED if "Allow" in effects else Verdict.NOT_ALLOWED


def _applies(statement: Mapping[str, Any], request: Request, *, absent_passes: bool) -> bool:
    if "NotAction" in statement or "${" in json.dumps(statement):
        raise PolicyError("NotAction and variables are not judged here")
    if set(listed(statement.get("Principal", "*"))) != {"*"}:
        raise PolicyError("principals other than * are not judged here")
    return (
        any(glob(entry, request.action, case=False) for entry in listed(statement["Action"]))
        and _is_of(statement, request.resource)
        and all(
            _holds(operator, key, listed(wanted), request, absent_passes=absent_passes)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _is_of(statement: Mapping[str, Any], resource: str) -> bool:
    """NotResource is in the syntax of policies (www.alibabacloud.com/help/doc-detail/93739.htm)."""
    but, of = statement.get("NotResource"), statement.get("Resource")
    found = any(_resource_matches(entry, resource) for entry in listed(of if but is None else but))
    return found is (but is None)


def _resource_matches(pattern: str, resource: str) -> bool:
    wanted, found = pattern.split(":", SEGMENTS - 1), resource.split(":", SEGMENTS - 1)
    return pattern == "*" or (len(wanted) == len(found) and all(map(glob, wanted, found)))


def _holds(operator: str, key: str, wanted: Sequence[str], request: Request, *, absent_passes: bool) -> bool:
    if operator not in OPERATORS:
        raise PolicyError(f"operator {operator!r} is not judged here")
    found = request.values_of(key)
    if found is None:
        return operator in NEGATED and absent_passes
    matches = POSITIVE[NEGATED.get(operator, operator)]
    return any(matches(item, value) for item in wanted for value in found) is (operator not in NEGATED)
