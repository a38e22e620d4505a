"""From a stack file's mapping to ``Stack``: every problem at once, or a value that can be built.

``load`` is the only function of the pure modules that knows Pulumi.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from stacks import naming, settings_rules
from stacks.errors import Problem, SettingsError
from stacks.settings import Pool, Stack

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

STRUCTURED = ("network", "access", "storage", "pools", "budget", "reaper", "image")
REQUIRED = tuple(
    field.name
    for field in fields(Stack)
    if field.default is MISSING and field.default_factory is MISSING and field.name != "name"
)


def load() -> Stack:
    """Read the running stack's settings from Pulumi's configuration.

    Raises:
        SettingsError: naming every key that is wrong.
    """
    import pulumi  # noqa: PLC0415 - the pure modules stay importable without Pulumi
    from pulumi.runtime import config  # noqa: PLC0415 - the same

    prefix = f"{naming.PROJECT}:"
    everything = {**config.get_config_env(), **config.CONFIG.get()}
    raw = {key.removeprefix(prefix): value for key, value in everything.items() if key.startswith(prefix)}
    return from_mapping(pulumi.get_stack(), {key: _decoded(key, value) for key, value in raw.items()})


def from_mapping(name: str, raw: Mapping[str, Any]) -> Stack:
    """Check a stack file's content, keys without the project prefix.

    Args:
        name: the stack's name.
        raw: what the YAML says, as plain Python values.

    Raises:
        SettingsError: naming every key that is wrong.
    """
    sound, problems = _shape({"name": name, **raw})
    absent = get_type_hints(Stack).keys() - raw.keys()
    problems += settings_rules.check(name, sound, absent)
    if problems:
        raise SettingsError(name, tuple(problems))
    return Stack(**sound)


def _decoded(key: str, value: Any) -> Any:
    """Undo Pulumi's JSON encoding of structured values; text that is not JSON is left for the shape check."""
    if key not in STRUCTURED or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """A parser for each top-level key, and one for a single pool."""
    hints = get_type_hints(Stack, include_extras=True)
    return {key: TypeAdapter(hint) for key, hint in hints.items()} | {"pools[]": TypeAdapter(Pool)}


@cache
def _schema(key: str) -> dict[str, Any]:
    return _adapters()[key].json_schema()


def _shape(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Parse key by key, so that one bad section does not hide what is wrong with another.

    Returns the keys that parsed, a pool list reduced to its sound pools among them, and the problems found.
    """
    known = [key for key in _adapters() if key != "pools[]"]
    sound: dict[str, Any] = {}
    problems = [
        Problem(key, value, f"unknown key; {_nearest(key, known)}")
        for key, value in content.items()
        if key not in known
    ]
    problems += [Problem(key, None, "required, and missing") for key in REQUIRED if key not in content]
    for key in (key for key in known if key in content):
        parsed, found = _parse(key, key, content[key])
        problems += found
        if not found:
            sound[key] = parsed
        elif key == "pools" and isinstance(content[key], list):
            parts = [_parse("pools[]", f"pools[{i}]", pool) for i, pool in enumerate(content[key])]
            sound[key] = tuple(None if bad else pool for pool, bad in parts)
    return sound, problems


def _parse(adapter: str, path: str, value: Any) -> tuple[Any, list[Problem]]:
    try:
        return _adapters()[adapter].validate_python(value), []
    except ValidationError as error:
        return None, [_problem(adapter, path, details) for details in error.errors()]


def _problem(adapter: str, key: str, details: "ErrorDetails") -> Problem:
    """One pydantic finding as key, value and what is allowed."""
    location = details["loc"]
    path = key + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    if details["type"] == "unexpected_keyword_argument":
        allowed = _known_keys(adapter, location[:-1])
        return Problem(path, details["input"], f"unknown key; {_nearest(str(location[-1]), allowed)}")
    if details["type"] in ("missing", "missing_argument"):
        return Problem(path, None, "required, and missing")
    return Problem(path, details["input"], _lowered(details["msg"]))


def _known_keys(adapter: str, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at ``location`` may have, from the JSON schema of the type."""
    schema = _schema(adapter)
    node = schema
    for part in location:
        node = _resolved(schema, node)
        node = node["items"] if isinstance(part, int) else node["properties"][part]
    return list(_resolved(schema, node)["properties"])


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference; one with a default beside it is wrapped in ``allOf``."""
    reference = node.get("$ref") or node.get("allOf", [{}])[0].get("$ref")
    return schema["$defs"][reference.rsplit("/", 1)[1]] if reference else node


def _nearest(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(key, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(names)}"


def _lowered(message: str) -> str:
    """Pydantic's sentence without its subject: the key and value already stand before it."""
    return re.sub(r"^(Input|String|Tuple|Value error,) ", "", message).replace("should", "must", 1)
