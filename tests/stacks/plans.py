"""Pulumi's plan between two settings of a stack, from both registrations and ``replacement.toml``.

No engine runs here: a step is a replacement if a property of the table differs, or names a resource that
is replaced itself. A new resource has no id yet; ``pulumi preview`` prints a mark for it.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.rehearsal.registrations import Registration

TABLE = tomllib.loads(Path(__file__).with_name("replacement.toml").read_text())
# sdk/go/common/resource/plugin/rpc.go: UnknownStringValue
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
# resourceLustreFileSystemSchemaCustomizeDiff: a file system of less storage is a new one.
SHRINKING = {"aws:fsx/lustreFileSystem:LustreFileSystem": "storageCapacity"}


def digest(before: Rehearsed | None, after: Rehearsed) -> str:
    """Return the output of ``pulumi preview --json``, with the parts that the plan check reads."""
    steps = list(_steps(before.resources if before else (), after.resources))
    return json.dumps({"steps": steps, "changeSummary": {}}, default=str)  # archives are no JSON


def _steps(before: tuple[Registration, ...], after: tuple[Registration, ...]) -> Iterator[dict[str, Any]]:
    old = {resource.urn: resource for resource in before}
    new = {resource.urn for resource in after}
    replaced: set[str] = set()
    for each_resource in after:
        was = old.get(each_resource.urn)
        if was is None:
            yield _step("create", each_resource, None, each_resource.inputs)
            continue
        inputs = {key: _unknown(value, replaced) for key, value in each_resource.inputs.items()}
        reasons = [
            key
            for key in _changed(was.inputs, inputs)
            if _forces(each_resource.type, key, was.inputs, inputs)
        ]
        if reasons:
            replaced |= {each_resource.id, str(each_resource.outputs.get("arn", each_resource.id))}
            yield _step("replace", each_resource, was.inputs, inputs, reasons)
        else:
            yield _step("update" if was.inputs != inputs else "same", each_resource, was.inputs, inputs)
    for gone in (resource for resource in before if resource.urn not in new):
        yield _step("delete", gone, gone.inputs, None)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _forces(token: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if SHRINKING.get(token) == key:
        return bool(new[key] < old[key])
    row = TABLE.get(token, {})
    return key in row.get("forces", ()) or key in row.get("published", ())


def _unknown(value: Any, replaced: set[str]) -> Any:
    """Return an input as it is known before the replaced resources exist."""
    if isinstance(value, str):
        return UNKNOWN if value in replaced else value
    if isinstance(value, list):
        return [_unknown(item, replaced) for item in value]
    if isinstance(value, dict):
        return {key: _unknown(item, replaced) for key, item in value.items()}
    return value


def _step(
    op: str,
    registration: Registration,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    reasons: list[str] | None = None,
) -> dict[str, Any]:
    made: dict[str, Any] = {"op": op, "urn": registration.urn}
    if old is not None:
        made["oldState"] = {"inputs": dict(old)}
    if new is not None:
        made["newState"] = {"inputs": dict(new)}
    if reasons:
        made |= {"replaceReasons": reasons, "diffReasons": reasons}
    return made
