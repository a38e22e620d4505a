"""Reader of the TOML files that users and maintainers write: one line for each wrong key.

A line names the key, the value there and what is allowed.
"""

import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpu_fleet_stacks.core.errors import Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Content = TypeVar("Content", bound=BaseModel)
# pydantic's kind of error -> what is allowed, where its own words are not those of TOML
ALLOWED = {
    "missing": "required, and missing",
    "string_type": "must be text, in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "too_short": "must have at least {min_length} items",
    "enum": "allowed: {expected}",
    "literal_error": "allowed: {expected}",
    "value_error": "{error}",
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing"), "must be a date: 2026-01-31"
    ),
    **dict.fromkeys(("decimal_type", "decimal_parsing", "float_type", "finite_number"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("model_type", "dict_type"), "must be a table of keys and values"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list, in [ ]"),
}


def content_of(path: Path) -> dict[str, Any]:
    """Return a file's tables and values. Raises ValueError if it cannot be read, or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8, at byte {error.start}; save it as UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"{path}: is not TOML that is read here: its lists are nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: is not TOML: {error}") from error


def read(path: Path, kind: type[Content]) -> Content:
    """Return a file's content by a model.

    Raises ValueError if it cannot be read, is no TOML, or has wrong keys.
    """
    content = content_of(path)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        lines = [f"{path}: {_problem(kind, details)}" for details in error.errors()]
        raise ValueError("\n".join(lines)) from error


def _problem(kind: type[BaseModel], details: "ErrorDetails") -> str:
    """Return one wrong key in a line."""
    key = ".".join(map(str, details["loc"]))
    if details["type"] == "missing":
        return f"{key}: {ALLOWED['missing']}"
    if details["type"] == "extra_forbidden":
        keys = sorted(_keys(kind, details["loc"][:-1]))
        return f"{Problem(key, details['input'], 'unknown key')}; allowed: {', '.join(keys)}"
    said = ALLOWED.get(details["type"])
    allowed = said.format_map(details.get("ctx", {})) if said else _reworded(details["msg"])
    return str(Problem(key, details["input"], allowed))


def _reworded(message: str) -> str:
    return message.removeprefix("Input ").replace("should", "must", 1)


def _keys(kind: type[BaseModel], place: tuple[int | str, ...]) -> Mapping[str, Any]:
    """Return the keys that a table of the file may have, by its place."""
    for part in place:
        field = kind.model_fields.get(str(part))
        if field is not None:  # else the name of a table, or its number in a list
            kind = next(_models(field.annotation), kind)
    return kind.model_fields


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)
