"""RAM policy documents as plain data. RAM has no statement names, so unlike on AWS there are none."""

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

Statement = dict[str, Any]
Text = pulumi.Input[str]


def allow(
    actions: Sequence[str],
    resources: Text | Sequence[Text],
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    principal: Sequence[str] | None = None,
) -> Statement:
    """Return one ``Allow`` statement.

    Args:
        actions: actions, ``service:Action``.
        resources: ARNs, ``acs:service:region:account:resource``.
        conditions: operator -> condition key -> value or values.
        principal: account ids or ``*``; for bucket policies only.
    """
    statement: Statement = {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources) if isinstance(resources, list | tuple) else [resources],
    }
    if principal is not None:
        statement["Principal"] = list(principal)
    if conditions is not None:
        statement["Condition"] = {operator: dict(keys) for operator, keys in conditions.items()}
    return statement


def deny(
    actions: Sequence[str],
    resources: Text | Sequence[Text],
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    principal: Sequence[str] | None = None,
) -> Statement:
    """Return one ``Deny`` statement; arguments as for ``allow``."""
    return allow(actions, resources, conditions, principal) | {"Effect": "Deny"}


def document(*statements: Statement) -> pulumi.Output[str]:
    """Return a policy document as JSON, once every ARN in it is known."""
    return pulumi.Output.json_dumps({"Version": "1", "Statement": list(statements)})


def trust(service: str) -> pulumi.Output[str]:
    """Return a role's trust policy for one service of the same account."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": [service]}}
    return document(statement)
