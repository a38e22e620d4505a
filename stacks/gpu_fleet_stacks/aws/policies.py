"""IAM policy documents as plain data, and the ARN parts they are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

Statement = dict[str, Any]
Text = pulumi.Input[str]


def partition(region: str) -> str:
    """Return the ARN partition of a region (docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html)."""
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def allow(
    sid: str,
    actions: Sequence[str],
    resources: Text | Sequence[Text],
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    principal: Mapping[str, Any] | None = None,
) -> Statement:
    """Return one ``Allow`` statement.

    Args:
        sid: its name, letters and digits.
        actions: actions, ``service:Action``.
        conditions: operator -> condition key -> value.
        principal: for resource policies only.
    """
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    if principal is not None:
        statement["Principal"] = dict(principal)
    if conditions is not None:
        statement["Condition"] = {operator: dict(keys) for operator, keys in conditions.items()}
    return statement


def deny(
    sid: str,
    actions: Sequence[str],
    resources: Text | Sequence[Text],
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    principal: Mapping[str, Any] | None = None,
) -> Statement:
    """Return one ``Deny`` statement; arguments as for ``allow``."""
    return allow(sid, actions, resources, conditions, principal) | {"Effect": "Deny"}


def document(*statements: Statement) -> pulumi.Output[str]:
    """Return a policy document as JSON, once every ARN in it is known."""
    return pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": list(statements)})


def trust(service: str, account_id: str, *, check_source: bool = True) -> pulumi.Output[str]:
    """Return a role's trust policy for one service.

    Args:
        service: the service's principal, say ``lambda.amazonaws.com``.
        account_id: the only account on whose behalf the service may take the role (confused deputy).
        check_source: False for ``ec2.amazonaws.com``, which sends no source account.
    """
    statement: Statement = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": service},
    }
    if check_source:
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": account_id}}
    return document(statement)
