"""Pulumi.yaml's schema and the settings name the same keys."""

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("key", sorted(SCHEMA))
def test_every_key_has_a_type_and_a_description(key):
    assert SCHEMA[key]["type"] in {"string", "boolean", "object", "array"}
    assert len(SCHEMA[key]["description"]) > 20


@pytest.mark.parametrize("key", sorted(key for key in SECTIONS if SCHEMA[key]["type"] == "object"))
def test_a_description_names_every_key_of_its_section(key):
    missing = [field.name for field in fields(SECTIONS[key]) if field.name not in SCHEMA[key]["description"]]

    assert missing == []


@pytest.mark.parametrize("stack", stack_files.names())
def test_every_stack_sets_what_the_schema_gives_no_default_for(stack):
    content = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    required = {key for key, entry in SCHEMA.items() if "default" not in entry}

    assert {f"gpu-fleet:{key}" for key in required} <= set(content)


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
