"""Pulumi.yaml's schema and the settings name the same keys."""

from dataclasses import MISSING, fields
from pathlib import Path

import yaml

from gpu_fleet_stacks.settings import Stack, reader, stack_files
from tests.ran import ran
from tests.stacks.shipped import SHIPPED

ROOT = Path(__file__).parents[3]
PROJECT = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
SCHEMA = PROJECT["config"]
# the name is Pulumi's own
SETTINGS = {field.name: field for field in fields(Stack) if field.name != "name"}


def test_the_schema_and_the_settings_name_the_same_keys():
    assert set(SCHEMA) == set(SETTINGS)


def test_every_stack_sets_what_the_schema_gives_no_default_for():
    required = {f"gpu-fleet:{key}" for key, entry in SCHEMA.items() if "default" not in entry}
    paths = {name: ROOT / "stacks" / f"Pulumi.{name}.yaml" for name in SHIPPED}
    files = {name: yaml.safe_load(path.read_text())["config"] for name, path in paths.items()}

    assert {name: missing for name, content in files.items() if (missing := required - content.keys())} == {}


def test_a_key_the_settings_require_has_no_default_in_the_schema():
    fixed = {key for key, field in SETTINGS.items() if field.default is field.default_factory is MISSING}

    assert [key for key in SCHEMA if "default" in SCHEMA[key] and key in fixed] == []


def test_pulumis_copy_of_the_defaults_into_a_configuration_changes_no_setting():
    required = {key for key, entry in SCHEMA.items() if "default" not in entry}
    written = stack_files.config_of(ROOT / "stacks" / "Pulumi.aws-dev.yaml")
    least = {key: value for key, value in written.items() if key.removeprefix("gpu-fleet:") in required}
    image = {"gpu-fleet:image": written["gpu-fleet:image"], "gpu-fleet:budget": written["gpu-fleet:budget"]}
    copied = {f"gpu-fleet:{key}": SCHEMA[key]["default"] for key in SCHEMA if key not in required}

    assert reader.from_config("dev", copied | least | image) == reader.from_config("dev", least | image)


def test_the_shipped_stacks_are_those_that_git_has():
    listed = ran(["git", "ls-files", "stacks/Pulumi.*.yaml"], cwd=ROOT, check=True)

    assert [stack_files.name_of(Path(line)) for line in listed.stdout.split()] == list(SHIPPED)


def test_stack_files_lie_where_the_settings_do():
    assert PROJECT["stackConfigDir"] == "stacks"
    assert PROJECT["runtime"] == {"name": "python", "options": {"toolchain": "pip", "virtualenv": ".venv"}}
