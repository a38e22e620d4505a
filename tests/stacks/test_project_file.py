"""Pulumi.yaml's schema and the settings name the same keys."""

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import yaml

from stacks.settings import Stack, stack_files

ROOT = Path(__file__).parents[2]
PROJECT = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
SCHEMA = PROJECT["config"]
# the name is Pulumi's own
SETTINGS = {field.name: field for field in fields(Stack) if field.name != "name"}
SECTIONS = {name: field.type for name, field in SETTINGS.items() if is_dataclass(field.type)}


def test_the_schema_and_the_settings_name_the_same_keys():
    assert set(SCHEMA) == set(SETTINGS)


def test_every_key_has_a_type_and_a_description():
    types = {"string", "boolean", "object", "array"}

    assert [
        key for key, entry in SCHEMA.items() if entry["type"] not in types or len(entry["description"]) <= 20
    ] == []


def test_a_description_names_every_key_of_its_section():
    descriptions = {key: SCHEMA[key]["description"] for key in SECTIONS if SCHEMA[key]["type"] == "object"}

    assert descriptions
    assert [
        f"{key}.{field.name}"
        for key, text in descriptions.items()
        for field in fields(SECTIONS[key])
        if field.name not in text
    ] == []


def test_every_stack_sets_what_the_schema_gives_no_default_for():
    required = {f"gpu-fleet:{key}" for key, entry in SCHEMA.items() if "default" not in entry}
    files = {
        name: yaml.safe_load((ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"]
        for name in stack_files.names()
    }

    assert {name: missing for name, content in files.items() if (missing := required - content.keys())} == {}


def test_a_key_the_settings_require_has_no_default_in_the_schema():
    with_default = {
        key
        for key, field in SETTINGS.items()
        if field.default is not MISSING or field.default_factory is not MISSING
    }

    assert [key for key in SCHEMA if "default" in SCHEMA[key] and key not in with_default] == []


def test_stack_files_lie_where_the_settings_do():
    assert PROJECT["stackConfigDir"] == "stacks"
    assert PROJECT["runtime"] == {"name": "python", "options": {"toolchain": "pip", "virtualenv": ".venv"}}
