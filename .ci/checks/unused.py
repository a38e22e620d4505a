"""Unused names: the product must use each name that its rooms define, and tests each helper of theirs."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from checks.sources import Checkout, Finding, Module, line_of

CONFIGURATION = ("image/gpu_fleet_image/recipe/rootfs", "image/gpu_fleet_image/recipe/steps")
CONFIGURATION_FILES = ("pyproject.toml", "Makefile", "image/gpu_fleet_image/recipe/provision.sh")
BY_CLICK = re.compile(r"\b(command|group)\b")
# Names that are called by name: of a module that the cloud's name selects, or by another program.
CALLED_BY_NAME = {
    **dict.fromkeys(
        ("connect", "instances", "caller", "account_id", "AgentCloud"),
        "image/gpu_fleet_image/providers: by cloud",
    ),
    "handle": "Lambda, Function Compute; what the mover finds of a cloud",
    **dict.fromkeys(("send", "addresses"), "image/gpu_fleet_image/console/runs: by cloud"),
    "ask": "catalog refresh: by cloud",
    "look": "preflight: by cloud",
    "AlicloudAccount": "acceptance: by cloud",
    "AwsAccount": "acceptance: by cloud",
    "FleetSteps": "users import it",
    "FleetCallback": "users import it",
    "open_split": "dataset.OPENERS names the module",
    "run_rank": "torchrun starts it",
    "measure": "loaded by train.bench",
    "serve": "Pulumi starts the policy pack",
    "unpack": "tests/image fetches cloud-init with the apt of the recipe",
}
# Definition at the top of a test module: a function, a class, or a constant.
DEFINITION = re.compile(r"^(?:(?:def|class) (\w+)|([A-Z_]+)(?:: [^\n=]+)? = )", re.MULTILINE)
WORD = re.compile(r"\w+")
# Names that pytest calls, by name or for their effect.
BY_PYTEST = re.compile(r"test_|Test|pytest_|__")
# Decorators that register the function, as those of plays, mutants and commands do; these do not.
KEEPS = re.compile(r"^@(?!pytest\.fixture|cache|contextmanager|dataclass)|autouse=True", re.MULTILINE)


def names(checkout: Checkout) -> Iterator[Finding]:
    """Find names of the rooms that the product does not use, and exceptions that are not needed."""
    modules = [
        checkout.module("__main__.py"),
        *checkout.modules("image", "stacks", "training/gpu_fleet", "training/gpu_fleet_jobs"),
    ]
    taken = {pair for module in modules for pair in taken_from_others(module)}
    said = texts(checkout, modules)
    needed = set()
    for module in modules:
        for name, line in unused(module, taken, said):
            needed.add(name)
            if name not in CALLED_BY_NAME:
                yield Finding(module.path, line, f"{name}: nothing of the product uses it")
    for name in CALLED_BY_NAME.keys() - needed:
        yield Finding(".ci/checks/unused.py", 1, f"CALLED_BY_NAME: {name} needs no reason")


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a top statement defines, without commands, which click registers."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        called = any(BY_CLICK.search(ast.unparse(decorator)) for decorator in node.decorator_list)
        return [] if called or node.name.startswith("__") else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("__")]


def taken_from_others(module: Module) -> set[tuple[str, str]]:
    """Return (module, name) of each name that a module uses of another."""
    known = {
        alias.asname or alias.name: alias.name for node in module.all(ast.Import) for alias in node.names
    }
    taken = set()
    for node in module.all(ast.ImportFrom):
        taken |= {(str(node.module), alias.name) for alias in node.names}
        known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    owners = ((_dotted(node.value), node.attr) for node in module.all(ast.Attribute))
    return taken | {(known[owner], name) for owner, name in owners if owner in known}


def _dotted(node: ast.expr) -> str:
    """Return `a.b` for an expression that is a chain of names, or else an empty text."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def texts(checkout: Checkout, modules: list[Module]) -> str:
    """Return the texts in which a name may be used, such as the console's table."""
    files = (*CONFIGURATION_FILES, *checkout.files(*CONFIGURATION))
    strings = (node.value for module in modules for node in module.all(ast.Constant))
    return "\n".join([*map(checkout.text, files), *(text for text in strings if isinstance(text, str))])


def unused(module: Module, taken: set[tuple[str, str]], said: str) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of names that no other module, no other statement of the module and no text uses."""
    within = set()
    for statement, nodes in module.statements:
        words = {node.id for node in nodes.get(ast.Name, ()) if isinstance(node, ast.Name)}
        within |= words.difference(names_of(statement))
    for statement, _ in module.statements:
        for name in names_of(statement):
            if (
                name not in within
                and (module.name, name) not in taken
                and not _is_said(module.name, name, said)
            ):
                yield name, statement.lineno


def _is_said(module: str, name: str, said: str) -> bool:
    places = (f"{module}:{name}", f"{module}.{name}")
    return any(place in said and re.search(rf"{re.escape(place)}\b", said) for place in places)


def helpers(checkout: Checkout) -> Iterator[Finding]:
    """Find helpers of tests that no test uses.

    A helper is used if its own module has its name twice, or another module has it beside the module's name.
    """
    paths = checkout.files("tests", suffix=".py")
    words = {path: Counter(WORD.findall(checkout.text(path))) for path in paths}
    for path in paths:
        module = path.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]
        for name, line in defined(checkout.text(path)):
            others = (known for other, known in words.items() if other != path and name in known)
            if words[path][name] == 1 and not any(
                module == "conftest" or module in known for known in others
            ):
                yield Finding(path, line, f"{name}: no test uses it")


def defined(text: str) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of a test module's own definitions, not of those for pytest or a list of plays."""
    for hit in DEFINITION.finditer(text):
        name, above = hit[1] or hit[2], text[: hit.start()]
        is_code = above.count('"""') % 2 == 0  # not a program in a string
        if is_code and not BY_PYTEST.match(name) and not KEEPS.search(above.rpartition("\n\n")[2]):
            yield name, line_of(text, hit.start())


CHECKS = (names, helpers)
