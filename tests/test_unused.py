"""What the rooms define, the product uses: a name that tests alone know is theirs, or nobody's."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ((ROOT, "image"), (ROOT, "stacks"), (ROOT / "training", "gpu_fleet"))
CONFIGURATION = ("pyproject.toml", "Makefile", "image/rootfs", "image/steps", "image/provision.sh")
BY_CLICK = re.compile(r"\b(command|group)\b")
# By its name or its room's: a module that is chosen by the cloud's name, or that another program calls.
CALLED_BY_NAME = {
    **dict.fromkeys(("connect", "instances", "caller", "account_id", "AgentCloud"), "image/reaper: by cloud"),
    "handle": "Lambda, Function Compute; what the mover finds of a cloud",
    **dict.fromkeys(("send", "addresses"), "image/runs: by cloud"),
    "ask": "catalog refresh: by cloud",
    "look": "preflight: by cloud",
    "AlicloudAccount": "acceptance: by cloud",
    "AwsAccount": "acceptance: by cloud",
    "FleetSteps": "users import it",
    "FleetCallback": "users import it",
    "ResumableLoader": "users import it",
    "open_split": "dataset.OPENERS names the module",
    "run_rank": "torchrun starts it",
    "measure": "loaded by train.bench",
    "serve": "Pulumi starts the policy pack",
    "decoder_flops_per_token": "the formula by which tests/training/test_metrics.py holds the count",
    "namespace": "tests of the reaper say the namespace as agents have it, who take it from instance.toml",
    "unpack": "tests/image fetches cloud-init with the apt of the recipe",
}


@cache
def trees() -> dict[str, ast.Module]:
    """Module -> its syntax tree, of every room, and of the program."""
    found = {"__main__": ast.parse((ROOT / "__main__.py").read_text())}
    for top, room in TOPS:
        for path in (top / room).rglob("*.py"):
            name = ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text())
    return found


def names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        called = any(BY_CLICK.search(ast.unparse(decorator)) for decorator in node.decorator_list)
        return [] if called or node.name.startswith("__") else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [
        target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("__")
    ]


def used_by_others() -> set[tuple[str, str]]:
    """(module, name) of what a module takes from another."""
    found = set()
    for tree in trees().values():
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {(str(node.module), alias.name) for alias in node.names}
                modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        found |= {
            (modules[owner], node.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and (owner := ast.unparse(node.value)) in modules
        }
    return found


def used_within(tree: ast.Module) -> dict[str, int]:
    """Name -> in how many of a module's statements it stands."""
    counts: dict[str, int] = {}
    for statement in tree.body:
        for name in {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}:
            counts[name] = counts.get(name, 0) + (name not in names_of(statement))
    return counts


def texts() -> str:
    """Where a name may stand as text, such as the console's table."""
    paths = [
        path
        for place in CONFIGURATION
        for path in [ROOT / place, *(ROOT / place).rglob("*")]
        if path.is_file()
    ]
    strings = (
        node.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return "\n".join([*(path.read_text(errors="replace") for path in paths), *strings])


def unused() -> set[str]:
    taken, said = used_by_others(), texts()
    found = set()
    for module, tree in trees().items():
        within = used_within(tree)
        for name in (name for statement in tree.body for name in names_of(statement)):
            if (
                not within.get(name)
                and (module, name) not in taken
                and not re.search(rf"{re.escape(module)}[:.]{name}\b", said)
            ):
                found.add(f"{module}.{name}")
    return found


def test_no_name_of_the_rooms_is_used_by_tests_alone():
    names = unused()

    assert len(trees()) > 300
    assert [name for name in sorted(names) if name.rpartition(".")[2] not in CALLED_BY_NAME] == []
