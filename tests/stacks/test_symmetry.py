"""Comparison of the two clouds, folder by folder.

Whatever differs has a row with its reason in docs/explanation/clouds.md.
"""

import ast
import re
from pathlib import Path

from tests.stacks.alicloud_programs import STACKS as ALICLOUD_STACKS
from tests.stacks.alicloud_programs import shipped

STACKS = Path(__file__).parents[2] / "stacks" / "gpu_fleet_stacks"
AWS, ALICLOUD = STACKS / "aws", STACKS / "alicloud"
PAGE = STACKS.parents[1] / "docs/explanation/clouds.md"
ROW = re.compile(
    r"^\| `(?P<where>[^`]+)` \| (?P<aws>[^|]+) \| (?P<alicloud>[^|]+) \| (?P<why>[^|]+) \|$", re.MULTILINE
)


def listed():
    """Return place -> reason, from the table."""
    return {row["where"]: row["why"].strip() for row in ROW.finditer(PAGE.read_text())}


def files(folder):
    return {path.name for path in folder.glob("*.py")}


def public(path):
    """Return the public functions and classes of a module."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
    return {name for name in names if not name.startswith("_")}


def exported(folder):
    """Return the names that ``build`` exports, read from its last line."""
    tree = ast.parse((folder / "stack.py").read_text())
    (build,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build"]
    result = build.body[-1]
    assert isinstance(result, ast.Return)
    assert isinstance(result.value, ast.Dict)
    return {key.value for key in result.value.keys}


def test_the_table_is_read_and_every_row_has_a_reason():
    assert len(listed()) > 10
    assert all(listed().values())


def test_both_clouds_have_the_same_files():
    apart = files(AWS) ^ files(ALICLOUD)

    assert sorted(apart - listed().keys()) == []


def test_a_file_has_the_same_public_functions_and_classes_on_both_clouds():
    apart = {
        f"{name}: {found}"
        for name in files(AWS) & files(ALICLOUD)
        for found in public(AWS / name) ^ public(ALICLOUD / name)
    }

    assert sorted(apart - listed().keys()) == []


# Calls that end instances or keys. No other module makes one; left out are the rehearsal,
# which reaches moto alone, and an acceptance run, whose stack is its own.
ENDS = {
    "teardown/aws.py": (
        *("terminate_instances", "update_auto_scaling_group", "set_instance_protection"),
        "schedule_key_deletion",
    ),
    "teardown/alicloud.py": (
        *("DeleteInstances", "ModifyScalingGroup", "SetInstancesProtection", "ScheduleKeyDeletion"),
    ),
}


def test_only_a_users_destroy_shrinks_groups_and_terminates_instances_beside_the_sweep():
    sources = {
        path.relative_to(STACKS).as_posix(): path.read_text()
        for path in STACKS.rglob("*.py")
        if not {"rehearsal", "acceptance"} & set(path.parts)
    }

    for module, acts in ENDS.items():
        assert {name for name, text in sources.items() if any(f'"{act}"' in text for act in acts)} == {module}


def test_both_clouds_export_the_same_outputs():
    apart = {f"output: {output}" for output in exported(AWS) ^ exported(ALICLOUD)}

    assert sorted(apart - listed().keys()) == []


def test_a_shipped_stack_exports_what_the_source_says():
    for name in ALICLOUD_STACKS:
        assert shipped(name).outputs.keys() == exported(ALICLOUD)


def test_components_carry_their_clouds_name_in_their_type():
    tokens = {
        (folder.name, found)
        for folder in (AWS, ALICLOUD)
        for path in folder.glob("*.py")
        for found in re.findall(r'"gpu-fleet:(\w+):\w+"', path.read_text())
    }

    assert tokens == {("aws", "aws"), ("alicloud", "alicloud")}
