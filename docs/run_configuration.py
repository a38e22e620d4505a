"""Tables of a run's keys, from the trainer's configuration and the comments beside its fields."""

import ast
import inspect
import io
import json
import tokenize
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pydantic import BaseModel

HEAD = "| Key | Value | Default | Meaning |\n|---|---|---|---|\n"
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
TYPES |= {"array": "list", "object": "table", "null": "nothing"}
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
NO_LIMIT = 1e6  # such a maximum is that of a type


def markdown(config: ModuleType) -> str:
    """Return one table for each section of a run's configuration."""
    meanings = _comments(config)
    sections = config.Config.model_fields.items()
    return "\n".join(_section(name, field.annotation, meanings) for name, field in sections)


def _section(name: str, section: type[BaseModel], meanings: dict[tuple[str, str], str]) -> str:
    values = section.model_json_schema()["properties"]
    rows = [
        f"| `{name}.{key}` | {_value(values[key])} | {_default(values[key])} "
        f"| {meanings.get((section.__name__, key), '')} |\n"
        for key in section.model_fields
    ]
    return f"## `{name}`\n\n{inspect.getdoc(section)}\n\n{HEAD}{''.join(rows)}"


def _value(schema: dict[str, Any]) -> str:
    """Return what a value may be, in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_value(one) for one in schema["anyOf"])
    limits = [
        f"{words} {schema[key]:g}" for key, words in LIMITS.items() if schema.get(key, NO_LIMIT) < NO_LIMIT
    ]
    return ", ".join([TYPES[schema["type"]], *limits])


def _default(schema: dict[str, Any]) -> str:
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else "required"


def _comments(config: ModuleType) -> dict[tuple[str, str], str]:
    """Return (class, field) -> the comment beside the field."""
    source = inspect.getsource(config)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    return {
        (owner, key): " ".join(by_line[line].lstrip("# ") for line in lines if line in by_line)
        for owner, key, lines in _fields(ast.parse(source))
    }


def _fields(tree: ast.Module) -> Iterator[tuple[str, str, range]]:
    """Yield (class, field, its lines)."""
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield owner.name, node.target.id, range(node.lineno, (node.end_lineno or node.lineno) + 1)
