"""The files of a checkout, each read and parsed once, and the findings of checks."""

import ast
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOMS = ("stacks", "image", "training", "tests", "docs", ".ci", ".github")
MADE = ("__pycache__", "_cache", ".egg-info")  # folders that tools leave
PRODUCT = ("stacks", "image", "training")
PACKAGES_BELOW = re.compile(rf"^(?:{'|'.join(PRODUCT)})/")  # names of modules begin below a room

N = TypeVar("N", bound=ast.AST)
Nodes = dict[type[ast.AST], list[ast.AST]]


class Finding(NamedTuple):
    """One violation."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class NothingToCheckError(Exception):
    """A check has nothing to look at: its files or rows were moved."""


class Module:
    """A Python file with its nodes by kind, for the whole file and for each of its top statements."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.name = name_of(path)
        self.statements = [(statement, _by_kind(statement)) for statement in ast.parse(text, path).body]

    def all(self, kind: type[N]) -> Iterator[N]:
        """Yield every node of exactly this kind."""
        for _, nodes in self.statements:
            yield from nodes.get(kind, ())  # type: ignore[misc] # they are of that kind

    @cached_property
    def notes(self) -> list[ast.Constant]:
        """Docstrings and other texts that are statements."""
        values = (node.value for node in self.all(ast.Expr))
        return [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]

    @cached_property
    def imports(self) -> dict[str, int]:
        """Imported modules, and imported names that may be modules -> line."""
        found = {alias.name: node.lineno for node in self.all(ast.Import) for alias in node.names}
        for node in self.all(ast.ImportFrom):
            names = (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
            found |= dict.fromkeys(names, node.lineno)
        return found


class Checkout:
    """The files of a folder, or texts in their place."""

    def __init__(self, root: Path, texts: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._texts = dict(texts or {})
        self._modules: dict[str, Module] = {}
        self.paths = sorted(_listed(root) if texts is None else texts)
        self.folders = {above for path in self.paths for above in _above(path)}

    def files(self, *folders: str, suffix: str = "") -> list[str]:
        """Return the files below folders, in order.

        Raises:
            NothingToCheckError: there are none.
        """
        starts = tuple(f"{folder}/" for folder in folders)
        found = [path for path in self.paths if path.startswith(starts) and path.endswith(suffix)]
        if not found:
            raise NothingToCheckError(f"{', '.join(folders)}: no {suffix or 'file'} to check")
        return found

    def pages(self) -> list[str]:
        """Return every Markdown page, of the rooms and at the top."""
        found = [path for path in self.paths if path.endswith(".md")]
        if not found:
            raise NothingToCheckError("no page to check")
        return found

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it is missing."""
        if path not in self._texts:
            file = self.root / path
            known = path in self._known
            self._texts[path] = file.read_text(encoding="utf-8", errors="replace") if known else ""
        return self._texts[path]

    def module(self, path: str) -> Module:
        """Return a Python file, parsed."""
        if path not in self._modules:
            self._modules[path] = Module(path, self.text(path))
        return self._modules[path]

    def modules(self, *folders: str) -> list[Module]:
        """Return every Python file below folders, parsed."""
        return [self.module(path) for path in self.files(*folders, suffix=".py")]

    def has(self, path: str) -> bool:
        """Return whether there is such a file or folder; a `*` matches any part of a name."""
        path = posixpath.normpath(path)
        if "*" not in path:
            return path in self._known or path in self.folders or path == "."
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
        return any(map(pattern.fullmatch, (*self.paths, *self.folders)))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.paths)


def name_of(path: str) -> str:
    """Return the name by which a Python file is imported."""
    return PACKAGES_BELOW.sub("", path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def line_of(text: str, part: str | int) -> int:
    """Return the line of a text in which a part begins; the first line if the part is missing."""
    return text.count("\n", 0, max(text.find(part) if isinstance(part, str) else part, 0)) + 1


def _listed(root: Path) -> Iterator[str]:
    """Yield the files at the top, and those of the rooms without the output of tools."""
    yield from (path.name for path in root.iterdir() if path.is_file())
    for room in ROOMS:
        for folder, folders, names in os.walk(root / room):
            folders[:] = [name for name in folders if not name.endswith(MADE)]
            yield from (Path(folder, name).relative_to(root).as_posix() for name in names)


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _by_kind(start: ast.AST) -> Nodes:
    """Return a node and all nodes below it, by kind; like `ast.walk`, in half the time."""
    found: Nodes = defaultdict(list)
    left = [start]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                left += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)
    return dict(found)
