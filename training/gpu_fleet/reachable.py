"""Which modules those that are loaded may still import, inside their functions. Nothing is run or imported.

Each name is looked for as Python would look for it now: among what is loaded, then by the import system, so a
file that a loaded or an installed module hides is none. What loaded modules import at their top has been
imported, or has been passed over, and is not looked for again.
"""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

TOP = "__main__"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@dataclass(frozen=True)
class Located:
    """Where a module is."""

    name: str
    package: str  # that its relative imports begin at; empty: it has none
    file: Path | None  # None where it is no source
    folders: tuple[str, ...] = ()  # of a package, in which its modules are


def reachable(loaded: Mapping[str, ModuleType], is_wanted: Callable[[str], bool]) -> dict[str, Path]:
    """Name -> file of each module that is not loaded yet and that these may import, and those in turn.

    Args:
        loaded: where the imports begin, by the names in sys.modules.
        is_wanted: whether a source file counts; what others import is not looked for.
    """
    places = _Places(is_wanted)
    modules: dict[str, Path] = {}
    waiting = [(_of_loaded(name, module), _is_at_its_top(name, module)) for name, module in loaded.items()]
    while waiting:
        importer, all_of_it = waiting.pop()
        for name in _imports(importer, all_of_it=all_of_it):
            for place in places.on_the_way_to(name):
                if place.file is not None and place.name not in sys.modules and place.name not in modules:
                    modules[place.name] = place.file
                    waiting.append((place, True))
    return dict(sorted(modules.items()))


class _Places:
    """Of modules, each looked for once."""

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        self._known: dict[str, Located | None] = {}

    def on_the_way_to(self, name: str) -> Iterator[Located]:
        """Those of the packages above a module, which Python imports first, and its own."""
        above: Located | None = None
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            part = ".".join(parts[:length])
            if part not in self._known:
                self._known[part] = self._find(part, above)
            above = self._known[part]
            if above is None:
                return
            yield above

    def _find(self, name: str, above: Located | None) -> Located | None:
        """None of what is not there, or is not a source that counts."""
        if name in sys.modules:
            return _of_loaded(name, sys.modules[name])
        package, _, tail = name.rpartition(".")
        spec = _spec(name) if above is None else _spec_within(tail, above.folders)
        if spec is None:
            return None
        folders = tuple(spec.submodule_search_locations or ())
        if spec.has_location and spec.origin.endswith(".py") and self._is_wanted(spec.origin):
            return Located(name, name if folders else package, Path(spec.origin), folders)
        return (
            Located(name, name, None, folders) if folders and not spec.has_location else None
        )  # a namespace


def _of_loaded(name: str, module: Any) -> Located:
    known = getattr(module, "__dict__", {})  # some make up each attribute that they are asked for
    source = known.get("__file__") or ""
    return Located(
        name,
        known.get("__package__") or "",
        Path(source) if source.endswith(".py") else None,
        tuple(known.get("__path__") or ()),
    )


def _is_at_its_top(name: str, module: ModuleType) -> bool:
    """Whether a module may not have come to its last line, as the program that is running."""
    spec = vars(module).get("__spec__")
    return name == TOP or spec is None or getattr(spec, "_initializing", False)


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # of an importer that does not know it either
        return None


def _spec_within(tail: str, folders: tuple[str, ...]) -> Any:
    """By the last part of its name: by the whole one the import system would import the packages above."""
    return PathFinder.find_spec(tail, list(folders)) if folders else None


def _imports(importer: Located, *, all_of_it: bool) -> Iterator[str]:
    """The full names of what a module imports; else what its functions import."""
    try:
        source = importer.file.read_bytes() if importer.file else b""
        imports = _imports_in(source, as_program=importer.name == TOP, all_of_it=all_of_it)
    except (OSError, SyntaxError, ValueError, RecursionError):  # the run itself says so
        return
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif base := _base(node, importer.package):
            yield base  # and what may be a module of it, unless it is known for a name in it
            known = getattr(sys.modules.get(base), "__dict__", {})
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name not in known)


@cache
def _imports_in(
    source: bytes, *, as_program: bool, all_of_it: bool
) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Imports of a source, which is parsed once: a run asks several times, and parsing takes milliseconds."""
    return tuple(_statements(ast.parse(source), as_program=as_program, all_of_it=all_of_it))


def _base(node: ast.ImportFrom, package: str) -> str:
    """What `from ... import` names, in full; empty where it leads out of the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _statements(
    tree: ast.Module, *, as_program: bool, all_of_it: bool
) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that may run when a module is imported or its functions are called; else in these alone."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, all_of_it)]
    while waiting:
        node, counts = waiting.pop()
        children = _that_may_run(node, as_program=as_program)
        inner = (child for child in children if isinstance(child, HOLD_STATEMENTS))
        waiting.extend((child, counts or isinstance(child, FUNCTIONS)) for child in inner)
        if counts and isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _that_may_run(node: ast.AST, *, as_program: bool) -> Iterable[ast.AST]:
    """The children of a node, but those of a branch for type checkers, or for the program alone."""
    if not isinstance(node, ast.If):
        return ast.iter_child_nodes(node)
    test, branch, other = node.test, node.body, node.orelse
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, branch, other = test.operand, node.orelse, node.body
    passed_over = _is_for_types(test) or (_is_of_program(test) and not as_program)
    return other if passed_over else [*branch, *other]


def _is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _is_of_program(test: ast.expr) -> bool:
    """Whether it is `__name__ == "__main__"`."""
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, *test.comparators]
    return {getattr(side, "id", None) or getattr(side, "value", None) for side in sides} == {"__name__", TOP}
