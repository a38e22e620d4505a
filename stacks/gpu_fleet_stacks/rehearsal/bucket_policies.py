"""Bucket policies in moto, without the statements that moto cannot evaluate."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket


@contextmanager
def conditions_left_out() -> Iterator[None]:
    """Let moto skip the statements of a bucket policy that deny under a condition.

    moto 5.2.5 ignores conditions (moto/s3/models.py, get_permission). It reads "deny requests without TLS" as
    "deny everything", so trainer and reaper could not use the stack's buckets. The policies in moto stay as
    they were declared.
    """
    with patch.object(FakeBucket, "get_permission", _permission):
        yield


def _permission(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
    policy: bytes | None = bucket.policy
    if policy is None:
        return PermissionResult.NEUTRAL
    document: dict[str, Any] = json.loads(policy)
    kept = [part for part in document["Statement"] if not _refuses_under_condition(part)]
    held = IAMPolicy(json.dumps(document | {"Statement": kept}))
    return held.is_action_permitted(action, resource)


def _refuses_under_condition(statement: dict[str, Any]) -> bool:
    return statement["Effect"] == "Deny" and "Condition" in statement
