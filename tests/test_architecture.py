"""Who may know whom: the arrows of the house, read from the source."""

import ast
import graphlib
import re
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("stacks", "image", "training", "tests")
CONFIGURATION = ("pulumi.Config", "pulumi.runtime.config", "pulumi.config")
KNOW_CONFIGURATION = {"stacks/settings/reader.py"}
PURE = ("settings", "catalog", "cost")
# Those of these rooms that read or write something, or speak to Pulumi.
IMPURE = {
    *("settings/reader.py", "settings/stack_files.py", "cost/notice.py", "cost/command.py"),
    *("catalog/command.py", "catalog/refresh"),
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or within a function, by its full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def offenders(paths: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in sorted(imports(path))
        if any(name == room or name.startswith(f"{room}.") for room in forbidden)
    ]


def test_there_is_something_to_hold():
    assert all(sources(room) for room in ROOMS)


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("stacks", ("tests", "gpu_fleet")),
        ("training/gpu_fleet", ("tests", "stacks", "image")),
        ("image", ("tests", "stacks", "gpu_fleet")),
        ("image/instance", ("image.reaper", "image.readiness", "image.console")),
        ("image/readiness", ("image.reaper", "image.console")),
        ("image/runs", ("image.readiness", "image.console")),
        ("image/reaper", ("image.runs", "image.gpus")),
        ("image/capacity", ("image.runs",)),
        ("stacks/aws", ("stacks.alicloud", "pulumi_alicloud", "stacks.rehearsal")),
        ("stacks/alicloud", ("stacks.aws", "pulumi_aws", "stacks.rehearsal")),
    ],
)
def test_a_room_imports_nothing_it_may_not_know(folder, forbidden):
    assert offenders(sources(folder), forbidden) == []


def test_only_what_assembles_the_payload_knows_the_image():
    """A stack uploads the very tarball that the image's own room assembles; two assemblies would part."""
    paths = [path for path in sources("stacks") if ROOT / "stacks" / "payload" not in path.parents]
    allowed = {"image.payload", "image.errors", "image.wheel_store", "image.wheels"}
    known = {
        name for path in sources("stacks/payload") for name in imports(path) if name.startswith("image.")
    }

    assert offenders(paths, ("image",)) == []
    assert {".".join(name.split(".")[:2]) for name in known} <= allowed


def test_the_program_knows_the_settings_and_the_clouds_only():
    pure = ("stacks.catalog", "stacks.errors", "stacks.settings", "stacks.settings.reader")
    allowed = (*pure, "stacks.aws.stack", "stacks.alicloud.stack")
    rooms = [
        name for name in imports(ROOT / "__main__.py") if name.split(".")[0] in ROOMS and name != "stacks"
    ]

    assert [name for name in rooms if not name.startswith(allowed)] == []


def test_the_program_has_at_most_forty_lines():
    assert len((ROOT / "__main__.py").read_text().splitlines()) <= 40


def test_pure_modules_touch_no_cloud_and_no_pulumi():
    impure = {ROOT / "stacks" / name for name in IMPURE}
    rooms = sources(*(f"stacks/{room}" for room in PURE))
    paths = [path for path in rooms if not impure & {path, path.parent}]
    paths += [ROOT / "stacks/naming.py", ROOT / "stacks/payload/instance_file.py"]

    assert offenders(paths, ("pulumi", "pulumi_aws", "pulumi_alicloud", "boto3")) == []


def test_only_the_reader_of_settings_reads_the_configuration():
    readers = {line.split(" ")[0] for line in offenders(sources("stacks"), CONFIGURATION)}
    callers = {
        str(path.relative_to(ROOT)) for path in sources("stacks") if "pulumi.Config(" in path.read_text()
    }

    assert readers | callers == KNOW_CONFIGURATION


def test_every_component_declares_a_type_of_its_own_with_three_parts():
    tokens = [
        argument.value
        for path in sources("stacks")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "__init__"
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant) and str(argument.value).startswith("gpu-fleet:")
    ]

    assert tokens
    assert len(set(tokens)) == len(tokens)
    assert all(len(token.split(":")) == 3 for token in tokens)


def test_the_console_imports_click_and_itself_alone():
    """Its modules go to every instance and load before any command does."""
    own = ("image.console", "click", *sys.stdlib_module_names)

    foreign = {
        name
        for path in sources("image/console")
        for name in imports(path)
        if name not in own and not name.startswith(tuple(f"{package}." for package in own))
    }

    assert foreign == set()


def arrows(room: str) -> dict[str, set[str]]:
    """Module -> the modules of the same folder that it imports; types count too.

    Who imports a module from its package needs that module, not the names that the ``__init__`` hands on.
    """
    start = ROOT / "training" if room.startswith("training/") else ROOT
    modules = {
        ".".join(path.relative_to(start).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(room)
    }
    return {
        name: (imports(path) & modules.keys()) - _passed_through(path, modules.keys()) - {name}
        for name, path in modules.items()
    }


def _passed_through(path: Path, modules: Collection[str]) -> set[str]:
    """The packages from which a file imports modules alone."""
    asked: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            asked.setdefault(str(node.module), set()).update(
                f"{node.module}.{name.name}" for name in node.names
            )
    return {package for package, names in asked.items() if names <= set(modules)}


@pytest.mark.parametrize("room", ["stacks", "image", "training/gpu_fleet"])
def test_no_modules_import_each_other_in_a_circle(room):
    """The ``__init__`` of a folder is one of them."""
    order = list(graphlib.TopologicalSorter(arrows(room)).static_order())

    assert len(order) > 30


def test_a_circle_through_the_init_of_a_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_architecture.ROOT", tmp_path)
    for file, text in {
        "__init__.py": "from stacks.lookup import load\n",
        "lookup.py": "from stacks import reader\n",
        "reader.py": "from stacks import load\n",
    }.items():
        (tmp_path / "stacks").mkdir(exist_ok=True)
        (tmp_path / "stacks" / file).write_text(text)

    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(arrows("stacks")).static_order())


def rooms_of(folder: str) -> dict[str, set[str]]:
    """Room -> the rooms that it imports, of one folder; a room is a folder in that or a module."""
    base = folder.removeprefix("training/").replace("/", ".")

    def room(module: str) -> str:
        return module.removeprefix(f"{base}.").split(".")[0]

    found: dict[str, set[str]] = {}
    for name, to in arrows(folder).items():
        if name != base:
            known = {room(other) for other in to if other.startswith(f"{base}.")}
            found.setdefault(room(name), set()).update(known - {room(name)})
    return found


@pytest.mark.parametrize(
    ("folder", "rooms"),
    [
        ("stacks", {"settings", "catalog", "cost", "payload", "aws", "alicloud"}),
        ("image", {"instance", "reaper", "capacity", "readiness"}),
        ("image/reaper", {"agent", "sweep", "money", "people", "aws", "alicloud"}),
        ("training/gpu_fleet", {"checkpoint", "parallel", "data", "pool", "metrics", "stopping"}),
    ],
)
def test_no_rooms_import_each_other_in_a_circle(folder, rooms):
    """Each can be read with those below it alone."""
    order = list(graphlib.TopologicalSorter(rooms_of(folder)).static_order())

    assert rooms <= set(order)


def test_a_module_of_stacks_stands_in_its_room():
    """At the top is only what several rooms need and none owns."""
    assert {path.name for path in (ROOT / "stacks").glob("*.py")} == {
        *("__init__.py", "__main__.py", "errors.py", "files.py", "listing.py", "naming.py"),
    }


# A class name with two homes that is one thing, and why it has them.
ONE_THING = {
    "AgentCloud": "what the agent needs of a cloud, and the clouds that have it",
    "Engine": "what a teardown needs of the engine, and the engine",
    "Expected": "a table of instance.toml, read by two rooms that may not import each other",
    "FiniteRange": "a range without NaN, in three rooms that may not import one another",
    "FleetCallback": "what users import for their library: Hugging Face's Trainer, Lightning",
    "Groups": "what the mover needs of a cloud, and the clouds that have it",
    "Heartbeats": "what a sweep needs of a cloud, and the clouds that have it",
    "Instances": "what a sweep needs of a cloud, and the clouds that have it",
    "Job": "what a user submits, and what of it an instance needs: rooms that may not import each other",
    "Leftovers": "what a sweep needs of a cloud, and the clouds that have it",
    "Notices": "what the agent needs of a cloud, and the clouds that have it",
    "PlanStep": "what a cloud's room reads of a step of Pulumi's plan, and the step",
    "QuietHours": "a part of the stack file, and of the policy that is written from it",
    "StackFiles": "what the commands of an instance need of the stack files, and the stack files",
    "Webhook": "a part of the stack file, and of the policy that is written from it",
}


def homes() -> dict[str, set[str]]:
    """Class name -> where it is defined; the two clouds of one room count as one place."""
    found: dict[str, set[str]] = {}
    for path in sources("stacks", "image", "training/gpu_fleet"):
        where = path.relative_to(ROOT)
        cloud = re.search(r"(.*)\b(?:aws|alicloud)\b", str(where.parent))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(f"{cloud[1]}CLOUD" if cloud else str(where))
    return found


def test_a_class_name_means_one_thing():
    shared = {name for name, places in homes().items() if len(places) > 1}

    assert shared == ONE_THING.keys()
