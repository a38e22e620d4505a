"""Parse a stack file's mapping into ``Stack``: a valid value, or every problem at once.

``load`` is the only function of the pure modules that uses Pulumi.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from ipaddress import IPv4Network
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from gpu_fleet_stacks.core.errors import Problem, SettingsError, shown
from gpu_fleet_stacks.releases import version
from gpu_fleet_stacks.settings import Stack, namespaces, rules
from gpu_fleet_stacks.settings.draft import draft
from gpu_fleet_stacks.settings.schema import MOMENT
from gpu_fleet_stacks.settings.yaml_text import LeadingZero

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

HIDDEN = "(not shown)"
OF_KEY = "[key]"  # pydantic's last part of the path where the key of a mapping is wrong, not its value
# pydantic's kinds of errors whose own words are those of Python -> what a stack file calls it.
ALLOWED = {
    "string_type": "must be text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("decimal_type", "decimal_parsing", "float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    "ip_v4_network": "must be an IPv4 network, such as 10.20.0.0/16",
    "dict_type": "must be a mapping of names to values",
    "dataclass_type": "must be a mapping of keys to values",
    "missing": "required, and missing",
    "too_short": "must have at least one item",
    "int_parsing_size": "must be a smaller number",
}
Parsed = tuple[Any, list[Problem]]


def load() -> Stack:
    """Read the running stack's settings from Pulumi's configuration. Raises SettingsError."""
    import pulumi  # noqa: PLC0415 - the pure modules stay importable without Pulumi
    from pulumi.runtime import config  # noqa: PLC0415 - the same

    everything = {**config.get_config_env(), **config.CONFIG.get()}
    return from_config(pulumi.get_stack(), everything, _decoded)


def from_config(
    name: str, config: Mapping[str, Any], decoded: Callable[[str, Any], Any] = lambda _, value: value
) -> Stack:
    """Check a stack's whole configuration.

    Args:
        config: full keys such as ``gpu-fleet:region`` -> value.
        decoded: (key without its namespace, value) -> plain value.

    Raises SettingsError, which names every key that is wrong, or that nothing would read.
    """
    own = {key: decoded(key, value) for key, value in namespaces.own_keys(config).items()}
    return _checked(name, own, list(namespaces.foreign_keys(config)))


def from_mapping(name: str, raw: Mapping[str, Any]) -> Stack:
    """Check a stack file's content, keys without the project prefix.

    Raises SettingsError, which names every wrong key.
    """
    return _checked(name, raw, [])


def _checked(name: str, raw: Mapping[str, Any], problems: list[Problem]) -> Stack:
    written_for = raw.get("version", "")
    if version.is_newer(written_for):
        here = f"is newer than this gpu-fleet, which is {version.running()}"
        allowed = f"{here}: install gpu-fleet {written_for} or newer"
        raise SettingsError(name, (Problem("version", written_for, allowed),))
    parsed, unparsed = _section(Stack, "", {**raw, "name": name})
    if "name" in raw:
        problems = [*problems, Problem("name", raw["name"], "unknown key: the file's name is the stack's")]
    problems = [*problems, *unparsed, *rules.check(parsed)]
    if problems:
        older = written_for if version.is_older(written_for) else ""
        raise SettingsError(name, tuple(_without_secret(problem) for problem in problems), older)
    whole: Stack = parsed
    return whole


def _without_secret(problem: Problem) -> Problem:
    """Return the problem without a secret: a webhook's address or a private key."""
    text = str(problem.value)
    address = problem.key.startswith("notify.webhooks") and "://" in text
    if not address and "PRIVATE KEY" not in text:
        return problem
    return Problem(problem.key, HIDDEN, problem.allowed.replace(text, HIDDEN))


def _decoded(key: str, value: Any) -> Any:
    """Undo Pulumi's JSON encoding of structured values; the shape check reports text that is not JSON."""
    if key not in _structured() or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


@cache
def _structured() -> frozenset[str]:
    """Return the keys of a stack file that hold mappings or lists."""

    def holds(hint: Any) -> bool:
        parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
        return is_dataclass(hint) or get_origin(hint) in (dict, tuple) or any(map(holds, parts))

    return frozenset(name for name, hint in _hints(Stack).items() if holds(hint))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _adapter(kind: Any, name: str) -> TypeAdapter[Any]:
    """Return the parser of one field."""
    return TypeAdapter(_hints(kind)[name])


def _section(kind: Any, path: str, raw: object) -> Parsed:
    """Parse a mapping field by field, so that one bad value hides no problem of another.

    Returns:
        A draft of the section, whole where nothing is wrong, and the problems.
    """
    known = list(_hints(kind))
    if not isinstance(raw, Mapping):
        said = f"must be a mapping with the keys {', '.join(known)}"
        return draft(kind, {}, known), [Problem(path, raw, said)]
    at = f"{path}." if path else ""
    allowed = known if path else [key for key in known if key != "name"]  # of the stack: its file's
    problems = [
        Problem(f"{at}{name}", value, f"unknown key; {_nearest(name, allowed)}")
        for name, value in ((key if isinstance(key, str) else shown(key), raw[key]) for key in raw)
        if name not in known
    ]
    values: dict[str, Any] = {}
    unparsed = []
    for name, field in kind.__pydantic_fields__.items():
        if name in raw:
            values[name], field_problems = _field(kind, name, f"{at}{name}", raw[name])
            problems += field_problems
            if values[name] is None and field_problems:
                unparsed.append(name)
        elif field.is_required():
            problems.append(Problem(f"{at}{name}", None, "required, and missing"))
            unparsed.append(name)
        else:
            values[name] = field.get_default(call_default_factory=True)
    if problems:
        return draft(kind, values, unparsed), problems
    return kind(**values), []


def _field(kind: Any, name: str, path: str, value: Any) -> Parsed:
    """Parse one field; return None with a problem where no part of it can be used."""
    hint = _hints(kind)[name]
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if is_dataclass(bare):
        return _section(bare, path, value)
    section = next((option for option in get_args(bare) if is_dataclass(option)), None)
    if section is not None and value is not None and get_origin(bare) is UnionType:
        return _section(section, path, value)
    if get_origin(bare) is tuple and not isinstance(value, list | tuple):
        return None, [Problem(path, value, _list_of(value))]
    if get_origin(bare) is tuple and is_dataclass(item := get_args(bare)[0]):
        return _sections(item, _adapter(kind, name), path, list(value))
    if get_origin(bare) is dict and isinstance(value, Mapping):
        return _items(_adapter(kind, name), path, value)
    return _leaf(_adapter(kind, name), path, value)


def _sections(kind: Any, adapter: TypeAdapter[Any], path: str, raw: list[object]) -> Parsed:
    """Parse a list of mappings, each by itself."""
    parts = [_section(kind, f"{path}[{index}]", item) for index, item in enumerate(raw)]
    sections = tuple(section for section, _ in parts)
    if problems := [problem for _, listed in parts for problem in listed]:
        return sections, problems
    return _leaf(adapter, path, sections)


def _items(adapter: TypeAdapter[Any], path: str, raw: Mapping[Any, object]) -> Parsed:
    """Parse a mapping of names; a problem with one leaves the others, and None where there are none."""
    values: dict[Any, Any] = {}
    problems = []
    for key, item in raw.items():
        parsed, item_problems = _leaf(adapter, path, {key: item})
        values |= parsed or {}
        problems += item_problems
    # then all together, to check their number
    return (values or None, problems) if problems else _leaf(adapter, path, dict(raw))


def _leaf(adapter: TypeAdapter[Any], path: str, value: object) -> Parsed:
    try:
        return adapter.validate_python(value), []
    except ValidationError as error:
        errors = error.errors()
        # wrong items are left out, so that a list of them is called too short as well
        others = [details for details in errors if details["type"] != "too_short"]
        return None, [_problem(path, details) for details in others or errors]


def _problem(key: str, details: "ErrorDetails") -> Problem:
    """Return a pydantic error as key, value and what is allowed."""
    parts = [part for part in details["loc"] if part != OF_KEY]
    path = key + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    value = None if details["type"] == "missing" else details["input"]
    return Problem(path, value, _allowed(details["type"], details["input"], details["msg"]))


def _allowed(kind: str, value: object, message: str) -> str:
    """Describe the allowed values, in the terms of the stack file where pydantic's are not enough."""
    if kind == "string_type" and not isinstance(value, Mapping | list | None):
        return _unquoted(value)
    if isinstance(value, LeadingZero):
        return "is octal to one YAML reader and decimal to another: drop the 0"
    if kind == "unexpected_keyword_argument":
        return "unknown key"
    if kind == "ip_v4_network" and (network := _network_of(value)) is not None:
        return f"has bits set beyond its prefix: the network is {network}"
    if kind in ALLOWED:
        return ALLOWED[kind]
    if kind == "too_long":
        message = message.partition(" after validation")[0]
    return re.sub(r"^(Input|String|Tuple|Dictionary|Value error,) ", "", message).replace("should", "must", 1)


def _unquoted(value: object) -> str:
    """Describe how a text is written that YAML reads as something else."""
    if isinstance(value, float):  # how it was written is not known: 1.0e3 has become 1000.0
        return "must be text, and YAML reads a number without quotes: put quotes around it"
    text = str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, datetime):
        text = f"{value:{MOMENT}}"
    return f'must be text, and YAML reads something else without quotes: write "{text}"'


def _network_of(value: object) -> IPv4Network | None:
    """Return the network of an address with a prefix."""
    try:
        return IPv4Network(value, strict=False) if isinstance(value, str) else None
    except ValueError:
        return None


def _list_of(value: object) -> str:
    if isinstance(value, Mapping):
        return "must be a list: begin each of its items with a dash"
    return f"must be a list, such as [{value}]" if value not in (None, "") else "must be a list"


def _nearest(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(key, names, n=1)
    if close and key.isprintable() and not key.isascii():  # it may look like the known one
        return f"did you mean {close[0]!r}? This one is {key!a}"
    return f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(names)}"
