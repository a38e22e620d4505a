"""Reference of the stack file: a JSON Schema and a page of its keys, generated from ``schema``'s classes.

``gpu-fleet schema --write`` writes them; ``gpu-fleet check`` checks rules between keys.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, regions
from gpu_fleet_stacks.core import files, naming
from gpu_fleet_stacks.settings import namespaces, projects, schema, yaml_text

FILE = Path(__file__).with_name("stack.schema.json")
# In a checkout it is beside this module; in any other project beside the stack files.
PAGE, PROJECT = Path("docs/reference/settings.md"), Path("Pulumi.yaml")
# First line of a stack file: https://github.com/redhat-developer/yaml-language-server
MODELINE = "# yaml-language-server: $schema="
# Keys of Pulumi beside `config` (https://www.pulumi.com/docs/iac/concepts/projects/stack-settings-file/).
OF_PULUMI = ("secretsprovider", "encryptedkey", "encryptionsalt", "environment")
ATTRIBUTE = re.compile(r"^    ([a-z_][a-z0-9_, ]*): (.*?)(?=^    \S|\Z)", re.MULTILINE | re.DOTALL)

QUOTED_NUMBER = r"^[0-9]+(\.[0-9]+)?$"
MOST_VALUES = 20  # values in a cell
WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}
WORDS |= {"ipv4network": "network, such as 10.20.0.0/16"}

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a whole stack file."""
    stack = TypeAdapter(schema.Stack).json_schema()
    definitions: Schema = stack.pop("$defs")
    for name, definition in [*definitions.items(), ("Stack", stack)]:
        _describe(definition, getattr(schema, name))
    stack["properties"]["region"]["enum"] = sorted(
        {region for cloud in Cloud for region in regions.of_cloud(cloud)}
    )
    definitions["Pool"]["properties"]["types"]["items"]["enum"] = sorted(kind.name for kind in catalog.load())
    prefix = namespaces.PREFIX
    config = {
        "type": "object",
        "properties": {f"{prefix}{key}": stack["properties"][key] for key in namespaces.KEYS},
        "patternProperties": {"^pulumi:": {}},
        "additionalProperties": False,
        "required": [f"{prefix}{key}" for key in stack["required"] if key in namespaces.KEYS],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stack of gpu-fleet",
        "description": "What must agree between keys is checked by `gpu-fleet check STACK`.",
        "type": "object",
        "properties": {"config": config, **{key: {} for key in OF_PULUMI}},
        "additionalProperties": False,
        "required": ["config"],
        "$defs": definitions,
    }


def _describe(definition: Schema, kind: type) -> None:
    """Copy a class's docstring into the schema: its text to the whole, each attribute to its key."""
    text, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    definition["description"] = _flat(text)
    definition.pop("title", None)
    said = {
        name: _flat(meaning) for names, meaning in ATTRIBUTE.findall(attributes) for name in names.split(", ")
    }
    for name, entry in definition.get("properties", {}).items():
        entry.pop("title", None)
        if name in said:
            entry["description"] = said[name]
        if isinstance(entry.get("default"), dict):
            del entry["default"]  # a section's default: each of its keys has its own
        for holder in (entry, _of_each_name(entry)):
            _quoted_numbers(holder)


def _of_each_name(entry: Schema) -> Schema:
    """Return the schema of each value of a mapping; empty where the entry is no mapping."""
    by_pattern: Schema = next(iter(entry.get("patternProperties", {}).values()), {})
    of_any: Schema = entry.get("additionalProperties", {})
    return by_pattern or of_any


def _quoted_numbers(entry: Schema) -> None:
    """Allow quotes around a decimal, but no other text."""
    options = entry.get("anyOf", [])
    if any(option.get("type") == "number" for option in options):
        for option in options:
            if option.get("type") == "string":
                option["pattern"] = QUOTED_NUMBER


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def markdown() -> str:
    """Return the reference of all keys, with one table for each section."""
    whole = json_schema()
    config, definitions = whole["properties"]["config"], whole["$defs"]
    lines = [
        "# Settings of a stack",
        "",
        "Made from `stacks/gpu_fleet_stacks/settings/schema.py` by `gpu-fleet schema --write`.",
        "A test holds it. Editors read `stacks/gpu_fleet_stacks/settings/stack.schema.json`,",
        "which the first line of a stack file names. What must agree",
        "between keys is checked by `gpu-fleet check STACK`.",
        "",
        "## The keys of `config:`",
        "",
        *_table(config["properties"], config["required"], definitions),
    ]
    for name, definition in sorted(definitions.items(), key=lambda item: _section(item[0])):
        lines += ["", f"## {_section(name)}", "", definition["description"], ""]
        if "enum" in definition:
            lines += [f"One of {_values(definition['enum'])}."]
        else:
            lines += _table(definition["properties"], definition.get("required", ()), definitions)
    return "\n".join(lines) + "\n"


def _table(properties: Mapping[str, Schema], required: list[str], definitions: Schema) -> Iterator[str]:
    yield "| Key | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for key, entry in properties.items():
        default = "required" if key in required else _default(entry)
        section = definitions.get(_named(entry) or _named(entry.get("items", {})), {})
        meaning = entry.get("description") or section.get("description", "")
        meaning = meaning[:1].upper() + meaning[1:]
        cells = (f"`{key}`", _value(entry), default, meaning)
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _default(entry: Schema) -> str:
    if "default" not in entry:
        return ""
    return f"`{json.dumps(entry['default'])}`"


def _named(entry: Schema) -> str:
    return str(entry.get("$ref", "")).rpartition("/")[2]


def _section(name: str) -> str:
    return name.removesuffix("Settings")


def _value(entry: Schema) -> str:
    """Return a type with its range, in words."""
    if name := _named(entry):
        return f"[{_section(name)}](#{_section(name).lower()})"
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_value(option) for option in entry["anyOf"]))
    if entry.get("type") == "array":
        return f"list of {_value(entry['items'])}"
    if entry.get("type") == "object":
        return f"name: {_value(_of_each_name(entry))}"
    if "enum" in entry:
        many = len(entry["enum"]) > MOST_VALUES
        return f"text, such as `{entry['enum'][0]}`" if many else _values(entry["enum"])
    return WORDS.get(str(entry.get("format")), WORDS[str(entry["type"])]) + _range(entry)


def _range(entry: Schema) -> str:
    low = entry.get("minimum", entry.get("exclusiveMinimum"))
    high = entry.get("maximum")
    above = "over " if "exclusiveMinimum" in entry else ""
    if low is None or high is None:
        return ""
    return f", {above}{_plain(low)} to {_plain(high)}"


def _plain(number: float) -> str:
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def _values(values: list[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def pulumi_project() -> str:
    """Return a project's Pulumi.yaml, with the keys that a stack file has.

    https://www.pulumi.com/docs/iac/concepts/projects/project-file/
    """
    whole = json_schema()
    config, definitions = whole["properties"]["config"], whole["$defs"]
    keys = {
        key.removeprefix(namespaces.PREFIX): _project_key(
            entry, definitions, required=key in config["required"]
        )
        for key, entry in config["properties"].items()
    }
    content = {
        "name": naming.PROJECT,
        "description": "Shared GPU fleets on AWS and Alibaba Cloud, a stack per environment",
        "runtime": {"name": "python", "options": {"toolchain": "pip", "virtualenv": ".venv"}},
        "stackConfigDir": "stacks",
        "config": keys,
    }
    return yaml_text.written(content)


def _project_key(entry: Schema, definitions: Schema, *, required: bool) -> Schema:
    section = definitions.get(_named(entry) or _named(entry.get("items", {})), {})
    parts = ", ".join(section.get("properties", {}))
    kind = entry.get("type") or section.get("type", "string")
    meaning = (entry.get("description") or section["description"]).rstrip(".")
    made: Schema = {"type": kind, "description": f"{meaning}: {parts}" if parts else meaning}
    if kind == "array":
        made["items"] = {"type": "object"}
    if not required:
        made["default"] = entry.get("default", {}) if entry.get("default") is not None else _empty(kind)
    return made


def _empty(kind: str) -> object:
    return {} if kind == "object" else ""


def modeline(stack_folder: Path) -> str:
    """Return the first line of a stack file in a folder, which may be that of a checkout."""
    in_checkout = Path(*FILE.parts[-3:])
    return f"{MODELINE}{in_checkout if (stack_folder / in_checkout).is_file() else FILE.name}"


def text() -> str:
    """Return the content of the schema's file."""
    return json.dumps(json_schema(), indent=1) + "\n"


def written_files(root: Path, stack_folder: Path) -> dict[Path, str]:
    """Return the files that ``--write`` writes for a project; in a gpu-fleet checkout the reference too."""
    if root.resolve() != projects.OWN:
        return {stack_folder / FILE.name: text()}
    return {FILE: text(), root / PAGE: markdown(), root / PROJECT: pulumi_project()}


@click.command("schema", epilog="\b\nExample:\n  gpu-fleet schema")
@click.option("--write", is_flag=True, help="Write it into the project, beside the stack files.")
def command(write: bool) -> None:
    """Print the JSON Schema of a stack file, with which editors complete and check it.

    A stack file names the schema in its first line.
    """
    if not write:
        click.echo(text(), nl=False)
        return
    for path, content in written_files(projects.root(), projects.stack_folder()).items():
        files.replace(path, content)
        click.echo(f"written: {path}")
