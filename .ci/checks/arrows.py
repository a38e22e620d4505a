"""Dependency rules: which rooms may import which, read from the source; and names with one home.

import-linter has contracts for the table below. It sees neither circles through the names that an
``__init__`` re-exports, nor the two clouds as one place, and it would be one more package in each
environment.
"""

import ast
import graphlib
import re
import sys
from collections.abc import Iterable, Iterator

from checks.sources import Checkout, Finding, Module, NothingToCheckError, line_of, name_of

HERE = ".ci/checks/arrows.py"
# room of the image -> the rooms of it that its modules may import; the recipe runs on a builder
KNOWS = {
    "core": (),
    "providers": ("core",),
    "slurm": ("core", "providers"),
    "instance": ("core", "providers", "slurm"),
    "controllers": ("core", "providers"),
    "console": ("core", "providers", "slurm", "instance", "controllers"),
    "recipe": ("core",),
}
IMAGE = "image/gpu_fleet_image"
# folder -> packages that its modules must not import
FORBIDDEN = {
    "stacks": ("tests", "gpu_fleet", "gpu_fleet_jobs"),
    "training": ("tests", "gpu_fleet_stacks", "gpu_fleet_image"),
    "training/gpu_fleet": ("gpu_fleet_jobs",),
    "image": ("tests", "gpu_fleet_stacks", "gpu_fleet", "gpu_fleet_jobs"),
    **{
        f"{IMAGE}/{room}": tuple(f"gpu_fleet_image.{other}" for other in KNOWS if other not in (room, *known))
        for room, known in KNOWS.items()
    },
    "stacks/gpu_fleet_stacks/aws": (
        "gpu_fleet_stacks.alicloud",
        "pulumi_alicloud",
        "gpu_fleet_stacks.rehearsal",
    ),
    "stacks/gpu_fleet_stacks/alicloud": ("gpu_fleet_stacks.aws", "pulumi_aws", "gpu_fleet_stacks.rehearsal"),
}
Arrows = dict[str, set[str]]

OWN = ("gpu_fleet_stacks", "gpu_fleet_image", "gpu_fleet", "gpu_fleet_jobs", "tests")
# A stack shares the contract and the clients of the clouds with what runs for it.
OF_IMAGE = ("gpu_fleet_image.core", "gpu_fleet_image.providers")
# It uploads the very tarball and wheels that the recipe assembles, and a proof trains by its example.
KNOW_THE_RECIPE = tuple(f"stacks/gpu_fleet_stacks/{room}/" for room in ("payload", "images", "acceptance"))
PROGRAM, MOST_LINES = "stacks/gpu_fleet_stacks/program.py", 40
SCHEMA, MOST_OF_A_FILE, MOST_OF_A_CLASS = "stacks/gpu_fleet_stacks/settings/schema.py", 500, 300
OF_PROGRAM = (
    *(
        "gpu_fleet_stacks.catalog",
        "gpu_fleet_stacks.core.errors",
        "gpu_fleet_stacks.settings",
        "gpu_fleet_stacks.settings.reader",
    ),
    *("gpu_fleet_stacks.aws.stack", "gpu_fleet_stacks.alicloud.stack"),
)
# Rooms that touch no cloud and no Pulumi, except for their modules that read or write something.
PURE = (
    "stacks/gpu_fleet_stacks/settings/",
    "stacks/gpu_fleet_stacks/catalog/",
    "stacks/gpu_fleet_stacks/cost/",
    "stacks/gpu_fleet_stacks/core/",
    "stacks/gpu_fleet_stacks/payload/instance_file.py",
)
IMPURE = (
    *(
        "stacks/gpu_fleet_stacks/settings/organization.py",
        "stacks/gpu_fleet_stacks/settings/reader.py",
        "stacks/gpu_fleet_stacks/settings/stack_files.py",
        "stacks/gpu_fleet_stacks/cost/notice.py",
    ),
    *(
        "stacks/gpu_fleet_stacks/cost/command.py",
        "stacks/gpu_fleet_stacks/catalog/command.py",
    ),
)
OUTSIDE = ("pulumi", "pulumi_aws", "pulumi_alicloud", "boto3")
READER = "stacks/gpu_fleet_stacks/settings/reader.py"
CONFIGURATION = ("pulumi.Config", "pulumi.runtime.config", "pulumi.config")
# The console's own modules are on every instance and load before any command.
IN_CONSOLE = 3
OF_CONSOLE = ("gpu_fleet_image.console", "click", *sys.stdlib_module_names)
# At the top of stacks/ is only what several rooms need and none owns.
TOP_NAMES = ("__init__", "program")
TOP_DEPTH = 2
TOP = {f"stacks/gpu_fleet_stacks/{name}.py" for name in TOP_NAMES}
# Only the mover raises a desired capacity; `destroy` empties groups, and an acceptance run raises those of
# its own throw-away stack.
RAISES = re.compile("set_desired_capacity|ExecuteScalingRule|ScaleWithAdjustment|execute_policy")
MAY_RAISE = (
    *(
        "image/gpu_fleet_image/controllers/mover/aws.py",
        "image/gpu_fleet_image/controllers/mover/alicloud.py",
    ),
    *(
        "stacks/gpu_fleet_stacks/acceptance/alicloud.py",
        "stacks/gpu_fleet_stacks/acceptance/alicloud_calls.py",
        "stacks/gpu_fleet_stacks/alicloud/function_roles.py",
    ),
)
# Folders whose rooms (each a folder or a module in it) need only the rooms below them.
LAYERED = (
    "stacks/gpu_fleet_stacks",
    "image/gpu_fleet_image",
    "image/gpu_fleet_image/instance",
    "image/gpu_fleet_image/controllers",
    "training/gpu_fleet",
    "training/gpu_fleet_jobs",
)
PRODUCT = ("stacks", "image", "training/gpu_fleet", "training/gpu_fleet_jobs")
# A class name with two homes that means one thing -> the reason.
ONE_THING = {
    "AgentCloud": "what the agent needs of a cloud, and the clouds that have it",
    "Engine": "what a teardown needs of the engine, and the engine",
    "Expected": "a table of instance.toml, read by two rooms that may not import each other",
    "FiniteRange": "a range without NaN, in two rooms that may not import each other",
    "FleetCallback": "what users import for their library: Hugging Face's Trainer, Lightning",
    "Groups": "what the mover needs of a cloud, and the clouds that have it",
    "Heartbeats": "what a sweep needs of a cloud, and the clouds that have it",
    "Hook": "what the agent completes of a cloud, and the cloud that has it beside the agent",
    "Instances": "what a sweep needs of a cloud, and the clouds that have it",
    "Job": "what a user submits, and what of it an instance needs: rooms that may not import each other",
    "OrphanedResources": "what a sweep needs of a cloud, and the clouds that have it",
    "Notices": "what the agent needs of a cloud, and the clouds that have it",
    "PlanStep": "what a cloud's room reads of a step of Pulumi's plan, and the step",
    "QuietHours": "a part of the stack file, and of the policy that is written from it",
    "StackFiles": "what the commands of an instance need of the stack files, and the stack files",
    "Webhook": "a part of the stack file, and of the policy that is written from it",
}


def rooms(checkout: Checkout) -> Iterator[Finding]:
    """Find imports of a room that it may not have."""
    for folder, names in FORBIDDEN.items():
        for module in checkout.modules(folder):
            yield from foreign(module, [name for name in module.imports if _is_of(name, names)])


def names_there(checkout: Checkout) -> Iterator[Finding]:
    """Find names that a file imports from a module of ours that lacks them: few tests load the benches."""
    paths = {name_of(path): path for path in checkout.files(*PRODUCT, "tests", suffix=".py")}
    for module in checkout.modules(*PRODUCT, "tests"):
        for node in module.all(ast.ImportFrom):
            package = str(node.module)
            names = {alias.name for alias in node.names if f"{package}.{alias.name}" not in paths}
            if package in paths and names:
                missing = names.difference(_names_of(checkout.module(paths[package])))
                yield from (Finding(module.path, node.lineno, f"{package} has no {name}") for name in missing)


def _names_of(module: Module) -> Iterator[str]:
    """Yield the names that a module defines or imports, those of its functions too."""
    yield from (node.name for node in module.all(ast.FunctionDef))
    yield from (node.name for node in module.all(ast.AsyncFunctionDef))
    yield from (node.name for node in module.all(ast.ClassDef))
    yield from (node.id for node in module.all(ast.Name) if isinstance(node.ctx, ast.Store))
    imported = (alias for node in module.all(ast.ImportFrom) for alias in node.names)
    plain = (alias for node in module.all(ast.Import) for alias in node.names)
    yield from (alias.asname or alias.name.split(".")[0] for alias in (*imported, *plain))


def environments(checkout: Checkout) -> Iterator[Finding]:
    """Find imports of the image, of Pulumi and of the configuration in the environments."""
    for module in checkout.modules("stacks"):
        yield from of_stacks(module)


def console(checkout: Checkout) -> Iterator[Finding]:
    """Find modules of the console that import more than click."""
    for module in (
        module for module in checkout.modules(f"{IMAGE}/console") if module.path.count("/") == IN_CONSOLE
    ):
        yield from foreign(module, [name for name in module.imports if not _is_of(name, OF_CONSOLE)])


def foreign(module: Module, names: Iterable[str]) -> Iterator[Finding]:
    """Return a finding for each forbidden import of a module."""
    return (Finding(module.path, module.imports[name], f"imports {name}: may not know it") for name in names)


def _is_of(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def of_stacks(module: Module) -> Iterator[Finding]:
    """Find forbidden imports of a module of the environments, and a module in no room."""
    recipe = ("gpu_fleet_image.recipe",) if module.path.startswith(KNOW_THE_RECIPE) else ()
    image = [
        name
        for name in module.imports
        if name.startswith("gpu_fleet_image.") and not _is_of(name, OF_IMAGE + recipe)
    ]
    yield from foreign(module, image)
    if module.path.startswith(PURE) and not module.path.startswith(IMPURE):
        yield from foreign(module, [name for name in module.imports if _is_of(name, OUTSIDE)])
    reads = "pulumi.Config(" in module.text or any(_is_of(name, CONFIGURATION) for name in module.imports)
    if reads != (module.path == READER):
        yield Finding(module.path, 1, f"{READER} reads the configuration, and nothing else")
    if module.path.count("/") == TOP_DEPTH and module.path not in TOP:
        yield Finding(module.path, 1, "stands in no room")


def program(checkout: Checkout) -> Iterator[Finding]:
    """Check that the program imports only the settings and the clouds, and is short."""
    module = checkout.module(PROGRAM)
    own = [name for name in module.imports if name.split(".", 1)[0] in OWN and name != "gpu_fleet_stacks"]
    yield from foreign(module, [name for name in own if not name.startswith(OF_PROGRAM)])
    if not 0 < (lines := module.text.count("\n")) <= MOST_LINES:
        yield Finding(PROGRAM, lines, f"has {lines} lines, at most {MOST_LINES} are short")


def sizes(checkout: Checkout) -> Iterator[Finding]:
    """Find files and classes that are too long to read; the schema is a reference, read key by key."""
    for module in checkout.modules(*PRODUCT):
        if (lines := module.text.count("\n")) > MOST_OF_A_FILE and module.path != SCHEMA:
            yield Finding(module.path, lines, f"has {lines} lines; allowed: {MOST_OF_A_FILE}")
        for node in module.all(ast.ClassDef):
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_OF_A_CLASS:
                yield Finding(
                    module.path, node.lineno, f"{node.name} has {lines}; allowed: {MOST_OF_A_CLASS}"
                )


def circles(checkout: Checkout) -> Iterator[Finding]:
    """Find circles of imports, between modules or between rooms; a folder's ``__init__`` is a module too."""
    for folder in PRODUCT:
        yield from circle(checkout, arrows(checkout.modules(folder)))
    for folder in LAYERED:
        yield from circle(checkout, between_rooms(folder, arrows(checkout.modules(folder))))


def arrows(modules: list[Module]) -> Arrows:
    """Return module -> the modules of the same folder that it imports; imports for types count too.

    A file that imports a module from its package needs that module, not the names in the ``__init__``.
    """
    names = {module.name for module in modules}
    return {
        module.name: (module.imports.keys() & names) - _passed_through(module, names) - {module.name}
        for module in modules
    }


def _passed_through(module: Module, names: set[str]) -> set[str]:
    """Return the packages from which a file imports modules only."""
    asked: dict[str, set[str]] = {}
    for node in module.all(ast.ImportFrom):
        package = str(node.module)
        asked.setdefault(package, set()).update(f"{package}.{alias.name}" for alias in node.names)
    return {package for package, wanted in asked.items() if wanted <= names}


def between_rooms(folder: str, modules: Arrows) -> Arrows:
    """Return room -> the rooms of a folder that it imports; a room is a folder or a module there."""
    base = folder.partition("/")[2].replace("/", ".")
    found: Arrows = {}
    for name, to in modules.items():
        if name != base:
            room, *known = (_room(other, base) for other in (name, *to) if other.startswith(f"{base}."))
            found.setdefault(room, set()).update(set(known) - {room})
    return found


def _room(module: str, base: str) -> str:
    return f"{base}.{module.removeprefix(f'{base}.').split('.')[0]}"


def circle(checkout: Checkout, to: Arrows) -> Iterator[Finding]:
    """Find a circle in the imports, if there is one."""
    try:
        graphlib.TopologicalSorter(to).prepare()
    except graphlib.CycleError as error:
        names = error.args[1]
        place = names[0].replace(".", "/")
        tries = (
            f"{top}{place}{end}"
            for top in ("", "stacks/", "image/", "training/")
            for end in (".py", "/__init__.py")
        )
        path = next(filter(checkout.has, tries), place)
        yield Finding(path, 1, f"imports in a circle: {' <- '.join(names)}")


def homes(checkout: Checkout) -> Iterator[Finding]:
    """Find a class name with two meanings, a component with another's type, a raise outside of the mover.

    The two clouds of one room count as one place.
    """
    places: dict[str, dict[str, Finding]] = {}
    for module in checkout.modules(*PRODUCT):
        cloud = re.search(r"(.*)\b(?:aws|alicloud)\b", module.path.rpartition("/")[0])
        for node, _ in module.statements:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                finding = Finding(module.path, node.lineno, f"{node.name} is another class elsewhere")
                places.setdefault(node.name, {})[f"{cloud[1]}CLOUD" if cloud else module.path] = finding
        if (hit := RAISES.search(module.text)) and module.path not in MAY_RAISE:
            yield Finding(module.path, line_of(module.text, hit.start()), f"{hit[0]}: the mover alone raises")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    for name in shared.keys() - ONE_THING.keys():
        yield from shared[name].values()
    for name in ONE_THING.keys() - shared.keys():
        yield Finding(HERE, 1, f"ONE_THING: {name} has one home")


def component_types(checkout: Checkout) -> Iterator[Finding]:
    """Check that every component declares a type of its own, of three parts."""
    known: set[str] = set()
    for module in checkout.modules("stacks"):
        for node in module.all(ast.Call):
            is_made = isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
            first = node.args[0] if is_made and node.args else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("gpu-fleet:"):
                token = str(first.value)
                if token in known or token.count(":") != 2:  # noqa: PLR2004 - package, module, name
                    yield Finding(module.path, node.lineno, f"{token} is no type of its own with three parts")
                known.add(token)
    if not known:
        raise NothingToCheckError("stacks: no component declares a type")


CHECKS = (rooms, names_there, environments, console, program, sizes, circles, homes, component_types)
