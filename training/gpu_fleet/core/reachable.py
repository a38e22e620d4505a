"""Search for modules that loaded modules may still import inside functions. It runs and imports nothing.

It resolves each name as Python would now: first among the loaded modules, then by the import system. Imports
at the top of loaded modules are done, or were skipped, and are not searched again.
"""

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

TOP = "__main__"
OF_PROGRAM = ("__name__ == '__main__'", "'__main__' == __name__")  # conditions
FOR_TYPES = re.compile(r"(\w+\.)?TYPE_CHECKING")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@dataclass(frozen=True)
class Located:
    """Location of a module."""

    name: str
    package: str  # start of its relative imports; empty: it has none
    file: Path | None  # None if there is no source
    folders: tuple[str, ...] = ()  # for a package: the folders of its modules


def reachable(loaded: Mapping[str, ModuleType], is_wanted: Callable[[str], bool]) -> dict[str, Path]:
    """Return name -> file of each wanted module that these may still import, also indirectly."""
    known: dict[str, Located | None] = {}  # each module is searched once
    modules: dict[str, Path] = {}
    waiting = [(_of_loaded(name, module), _is_at_its_top(name, module)) for name, module in loaded.items()]
    while waiting:
        importer, all_of_it = waiting.pop()
        for name in _imports(importer, all_of_it=all_of_it):
            for place in _on_the_way_to(name, known, is_wanted):
                if place.file is not None and place.name not in sys.modules and place.name not in modules:
                    modules[place.name] = place.file
                    waiting.append((place, True))
    return dict(sorted(modules.items()))


def _on_the_way_to(
    name: str, known: dict[str, Located | None], is_wanted: Callable[[str], bool]
) -> Iterator[Located]:
    """Yield the locations of the packages above a module, which Python imports first, and its own."""
    place: Located | None = None
    for part in accumulate(name.split("."), "{}.{}".format):
        if part not in known:
            known[part] = _find(part, place, is_wanted)
        place = known[part]
        if place is None:
            return
        yield place


def _find(name: str, above: Located | None, is_wanted: Callable[[str], bool]) -> Located | None:
    """Return the location of a module; None if it is missing, or not a source that counts."""
    if name in sys.modules:
        return _of_loaded(name, sys.modules[name])
    package, _, tail = name.rpartition(".")
    # below a package by its last part: the full name would make Python import the packages above
    spec = _spec(name) if above is None else PathFinder.find_spec(tail, [*above.folders])
    if spec is None:
        return None
    folders = tuple(spec.submodule_search_locations or ())
    source = (spec.has_location and spec.origin) or ""
    if source.endswith(".py") and is_wanted(source):
        return Located(name, name if folders else package, Path(source), folders)
    return Located(name, name, None, folders) if folders and not spec.has_location else None


def _of_loaded(name: str, module: Any) -> Located:
    known = getattr(module, "__dict__", {})  # not getattr: some modules invent any attribute
    source = known.get("__file__") or ""
    return Located(
        name,
        known.get("__package__") or "",
        Path(source) if source.endswith(".py") else None,
        tuple(known.get("__path__") or ()),
    )


def _is_at_its_top(name: str, module: ModuleType) -> bool:
    """Return whether a module may still be running its top level, like the main program."""
    spec = vars(module).get("__spec__")
    return name == TOP or spec is None or getattr(spec, "_initializing", False)


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # an importer does not find it either
        return None


def _imports(importer: Located, *, all_of_it: bool) -> Iterator[str]:
    """Yield the full names that a module imports; without `all_of_it`, only those inside its functions."""
    try:
        source = importer.file.read_bytes() if importer.file else b""
        imports = _imports_in(source, as_program=importer.name == TOP, all_of_it=all_of_it)
    except (OSError, SyntaxError, ValueError, RecursionError):  # the run itself reports it
        return
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif base := _base(node, importer.package):
            yield base  # below: names that may be modules of it, except names that it already has
            known = getattr(sys.modules.get(base), "__dict__", {})
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name not in known)


@cache  # a run asks several times, and parsing takes milliseconds
def _imports_in(
    source: bytes, *, as_program: bool, all_of_it: bool
) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports that may run at the import or in a function; without `all_of_it`, in a function."""
    imports: list[ast.Import | ast.ImportFrom] = []
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(source), all_of_it)]
    while waiting:
        node, counts = waiting.pop()
        children = _that_may_run(node, as_program=as_program)
        inner = (child for child in children if isinstance(child, HOLD_STATEMENTS))
        waiting.extend((child, counts or isinstance(child, FUNCTIONS)) for child in inner)
        if counts and isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
    return tuple(imports)


def _base(node: ast.ImportFrom, package: str) -> str:
    """Return the full name after `from`; empty if it is outside of the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _that_may_run(node: ast.AST, *, as_program: bool) -> Iterable[ast.AST]:
    """Return the children of a node, without branches for type checkers or (in a module) for the program."""
    if not isinstance(node, ast.If):
        return ast.iter_child_nodes(node)
    test, branch, other = ast.unparse(node.test), node.body, node.orelse
    if test.startswith("not "):
        test, branch, other = test.removeprefix("not "), other, branch
    passed_over = FOR_TYPES.fullmatch(test) or (test in OF_PROGRAM and not as_program)
    return other if passed_over else [*branch, *other]
