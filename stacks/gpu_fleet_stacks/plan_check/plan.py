"""Pulumi's own plan: the steps that ``pulumi preview --json`` prints. Pure.

The format is ``PreviewDigest`` of github.com/pulumi/pulumi (pkg/backend/display/json.go writes it): each step
has ``op`` and ``urn``, the states ``oldState`` and ``newState`` with their ``inputs``, and, where a resource
is replaced, the properties that force it: ``replaceReasons``, or ``detailedDiff`` with kinds that end in
``-replace``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_fleet_stacks.plan_check.errors import PlanError

# pkg/resource/deploy/step.go: "replace" is the whole step; the CLI shows its two halves only on request.
REPLACES = frozenset({"replace", "create-replacement", "delete-replaced", "import-replacement"})
REMOVES = REPLACES | {"delete"}


@dataclass(frozen=True)
class PlanStep:
    """Planned change of one resource.

    Attributes:
        op: ``create``, ``update``, ``replace``, ``delete``, ``same`` and the like.
        type: the provider's token, say ``aws:kms/key:Key``.
        old: its deployed inputs; empty for a new resource.
        new: its wanted inputs; empty for a resource that is deleted.
        causes: the top-level properties that force a replacement.
    """

    op: str
    type: str
    name: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    causes: tuple[str, ...]


def parse(text: str) -> tuple[PlanStep, ...]:
    """Return the steps of a plan.

    Raises PlanError if the text is no such output.
    """
    try:
        digest = json.loads(text)
        return tuple(_step(raw) for raw in digest.get("steps") or ())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise PlanError(f"`pulumi preview --json` printed no plan that can be read: {error!r}") from error


def errors(text: str) -> tuple[str, ...]:
    """Return the errors that a failed preview printed; empty where its output cannot be read."""
    try:
        diagnostics = json.loads(text).get("diagnostics") or ()
        return tuple(
            str(diagnostic["message"]).strip()
            for diagnostic in diagnostics
            if diagnostic.get("severity") == "error"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _step(raw: Mapping[str, Any]) -> PlanStep:
    _, _, types, name = raw["urn"].split("::", 3)
    return PlanStep(
        op=raw["op"],
        type=types.rsplit("$", 1)[-1],
        name=name,
        old=(raw.get("oldState") or {}).get("inputs") or {},
        new=(raw.get("newState") or {}).get("inputs") or {},
        causes=_causes(raw),
    )


def _causes(raw: Mapping[str, Any]) -> tuple[str, ...]:
    detailed = raw.get("detailedDiff") or {}
    forced = [path for path, change in detailed.items() if str(change.get("kind", "")).endswith("-replace")]
    paths = [*(raw.get("replaceReasons") or ()), *forced]
    return tuple(dict.fromkeys(re.split(r"[.\[]", path)[0] for path in paths))
