"""Who uses what: a graph from each name that a module binds to the names that its code says.

A node is `(file, name)`: a function, a class, a constant or an import at a module's top. `(file, BODY)` is
what runs when the module is loaded, `(file, WHOLE)` all of it, and `(file, TEXT)` what its readers see. Code
is read, not run, so that a use is seen in a process that a test starts, too: a name in a string of a test is
a use (`python -m gpu_fleet`), and so is the word of a command (`gpu-fleet take`).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

BODY, WHOLE, TEXT = "", "*", "#"  # no names of Python
# Where modules lie, and the folder that their names begin below.
ROOMS = {
    "stacks/gpu_fleet_stacks": "stacks/",
    "image/gpu_fleet_image": "image/",
    "training/gpu_fleet": "training/",
    "training/gpu_fleet_jobs": "training/",
    "tests": "",
    ".ci": ".ci/",
    "__main__.py": "",
}
# Tables of commands: a word of the command line, and the "module:name" that it loads.
COMMANDS = {
    "image/gpu_fleet_image/console/commands.toml": (
        re.compile(r'^(?:[\w-]+\.commands\.)?([\w-]+) = \["([\w.]+:\w+)"', re.MULTILINE),
        re.compile(r"console"),
    ),
    "training/gpu_fleet/cli.py": (
        re.compile(r'^ +"([\w-]+)": "([\w.]+:\w+)",$', re.MULTILINE),
        re.compile(r'^tests/training/|\bgpu_fleet\b|(gpu-fleet |")train\b'),
    ),
}
# Tests that ask each command for its help.
EVERY_COMMAND = re.compile(r"tests/image/console/test_(console|completion)\.py")
# What these say, and do to each test, is about the suite, not about what is tested.
SUITE = ("tests/conftest.py", "tests/preloaded.py")
LOADED = "PRELOADED"  # lists of modules that a process loads, so that others begin quickly
WORDS = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
BY_NAME = ("setattr", "getattr", "delattr", "object")  # of a module, as monkeypatch and mock have them
# In a module that loads others by their names.
LOADS = re.compile(r"import_module|imported\(|LazyGroup|lazy\.load")
FROM = re.compile(r"from ([\w.]+) import ([\w, ]+)")
CLOUDS = ("aws", "alicloud")
LONGEST_NAME = 200  # characters; longer strings are texts

Node = tuple[str, str]

Definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Module:
    """What a file binds at its top: name -> its statements, import -> the dotted name of what it imports."""

    file: str
    text: str
    names: dict[str, list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, str] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    body: list[ast.AST] = field(default_factory=list)

    @classmethod
    def of(cls, file: str, text: str) -> "Module":
        module = cls(file, text)
        top = ast.parse(text).body
        if "__doc__" in text:
            module.body += top[:1]
        for node in _at_the_top(top):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module.imports |= bound(node)
                module.loads += loaded(node)
            elif names := _names(node):
                for name in names:
                    module.names[name].append(node)
            else:
                module.body.append(node)
        return module

    @property
    def is_test(self) -> bool:
        return self.file.startswith("tests/")

    @cached_property
    def of_each_test(self) -> list[str]:
        """Names of a conftest that each test below it has: fixtures with autouse, and hooks of pytest."""
        return [
            name
            for name, nodes in self.names.items()
            if name.startswith("pytest_") or any("autouse" in ast.dump(node) for node in nodes)
        ]

    def says(self) -> dict[str, str]:
        """Each node's name with what it says, without comments and layout."""
        said = {name: "".join(map(ast.dump, nodes)) for name, nodes in self.names.items()}
        for name, target in self.imports.items():
            said |= {name: said.get(name, "") + target, _import(name): target}
        return {**said, BODY: "".join(map(ast.dump, self.body))}


def _import(name: str) -> str:
    """The node of an import for its own file, which uses a part of what it imports and says which."""
    return f"import {name}"


def _at_the_top(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a module and of its conditions, and the conditions themselves; no docstring."""
    for node in statements:
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.ExceptHandler):
            yield from _at_the_top(ast.iter_child_nodes(node))
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield node


def _names(node: ast.AST) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, Definitions):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    leaves = [leaf for target in targets for leaf in getattr(target, "elts", [target])]
    return [leaf.id for leaf in leaves if isinstance(leaf, ast.Name)]


def bound(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """What an import binds, with the dotted name of what that is."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    tops = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
    return {top: top for top in tops} | {alias.asname: alias.name for alias in node.names if alias.asname}


def loaded(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The dotted names that an import loads."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names]


def _imports_in(text: str) -> Iterator[str]:
    """The dotted names that a script in a string imports from modules."""
    for module, names in FROM.findall(text):
        yield from (f"{module}.{name}" for name in WORDS.findall(names))


def _name(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


class _Uses(ast.NodeVisitor):
    """What code says: dotted names of imports with what follows, names of its own module, and strings."""

    def __init__(self, module: Module, code: Iterable[ast.AST]) -> None:
        self.module = module
        self.dotted: set[str] = set()
        self.own: set[str] = set()
        self.loads: list[str] = []
        self.strings: list[str] = []
        self.arguments: set[str] = set()
        self.imports = dict(module.imports)
        for node in code:
            self.visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports |= bound(node)
        self.loads += loaded(node)

    visit_ImportFrom = visit_Import  # noqa: N815 - the names of NodeVisitor

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes = [node.attr]
        base = node.value
        while isinstance(base, ast.Attribute):
            attributes.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name):
            self._use(base.id, *reversed(attributes))
        else:
            self.visit(base)

    def visit_Call(self, node: ast.Call) -> None:
        """`setattr(module, "name", ...)` uses that name alone."""
        match node.args:
            case _ if _name(node.func) == "is_here":  # asks for a module and loads none
                self.visit(node.func)
            case [ast.Name(id=base), ast.Constant(value=str(name)), *rest] if _name(node.func) in BY_NAME:
                self._use(base, name)
                self.visit(node.func)
                for other in [*rest, *node.keywords]:
                    self.visit(other)
            case _:
                self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Annotations of functions do nothing when it runs."""
        self.arguments |= {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        defaults = [one for one in [*node.args.defaults, *node.args.kw_defaults] if one]
        for part in [*node.decorator_list, *defaults, *node.body]:
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - as above

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (len(node.value) < LONGEST_NAME or "import " in node.value):
            self.strings.append(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """`f"gpu_fleet_stacks.{cloud}.stack"` names a module for each cloud."""
        for cloud in CLOUDS:
            parts = (part.value if isinstance(part, ast.Constant) else cloud for part in node.values)
            name = "".join(map(str, parts))
            if WORDS.fullmatch(name):
                self.dotted.add(name)
        self.generic_visit(node)

    def _use(self, name: str, *attributes: str) -> None:
        if name in self.imports:
            self.dotted.add(".".join([self.imports[name], *attributes]))
        if name not in self.module.names:
            self.own.add(_import(name))
        if name not in self.module.imports:  # of a name that was removed or is new, too
            self.own.add(name)
        if name == "globals":
            self.own.add(WHOLE)


class Graph:
    """The uses of all modules, from each node to those that it uses."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.modules = {file: Module.of(file, text) for file, text in sources.items() if file.endswith(".py")}
        self.files = names_of(self.modules)
        self.commands = {
            file: commands_in(sources.get(file, ""), table) for file, (table, _) in COMMANDS.items()
        }
        self.uses: dict[Node, set[Node]] = defaultdict(set)
        for module in self.modules.values():
            self._add(module)

    @cached_property
    def users(self) -> dict[Node, set[Node]]:
        found = defaultdict(set)
        for node, used in self.uses.items():
            for one in used:
                found[one].add(node)
        return found

    def users_of(self, changed: Iterable[Node]) -> set[Node]:
        """All nodes that use a changed one, at any depth, with the changed ones."""
        found: set[Node] = set()
        ahead = [*changed]
        while ahead:
            node = ahead.pop()
            if node not in found:
                found.add(node)
                ahead += self.users.get(node, ())
        return found

    def whole(self, file: str) -> set[Node]:
        """All nodes of a module."""
        module = self.modules[file]
        return {(file, name) for name in (WHOLE, *module.says())}

    def naming(self, file: str) -> list[str]:
        """The modules of tests that name a file which is no module, as those that read it do."""
        name = Path(file).name if Path(file).name not in ("README.md", "__init__.py") else file
        return [other.file for other in self.modules.values() if other.is_test and name in other.text]

    def _add(self, module: Module) -> None:
        file = module.file
        self.uses[file, WHOLE] |= {(file, BODY), *((file, name) for name in [*module.names, *module.imports])}
        if file not in SUITE:
            self.uses[file, BODY] |= {node for name in module.loads for node in self._loaded(name)}
            self._add_uses(module, BODY, module.body)
        for name, nodes in module.names.items():
            self._add_uses(module, name, nodes)
            for node in nodes:
                self._add_registration(module, name, node)
        for name, target in module.imports.items():
            self.uses[file, name] |= {*self.of_name(target), (file, BODY)}
        if module.is_test:
            self._add_fixtures(module)
        if EVERY_COMMAND.fullmatch(file):
            for targets in (targets for table in self.commands.values() for targets in table.values()):
                self.uses[file, WHOLE] |= {node for target in targets for node in self.of_name(target)}

    def _add_uses(self, module: Module, name: str, code: Iterable[ast.AST]) -> None:
        file = module.file
        said = _Uses(module, code)
        found = {(file, own) for own in said.own} | {(file, BODY)}
        for dotted in said.dotted:
            found |= self.of_name(dotted)
        for dotted in said.loads:
            found |= self._loaded(dotted)
        if name != LOADED:
            found |= {*self._of_strings(module, said.strings)}
        if module.is_test:
            for above in self._conftests(file):
                fixtures = ({*said.strings} & above.names.keys()) | (said.arguments - above.imports.keys())
                found |= {(above.file, fixture) for fixture in fixtures}
            found |= {(file, fixture) for fixture in said.arguments - module.imports.keys()}
        self.uses[file, name] |= found - {(file, name)}

    def _add_registration(self, module: Module, name: str, node: ast.AST) -> None:
        """`@group.command()` makes a function part of the group, and another file's decorator may keep it."""
        for decorator in getattr(node, "decorator_list", []):
            said = _Uses(module, [decorator.func if isinstance(decorator, ast.Call) else decorator])
            for own in said.own & module.names.keys():
                self.uses[module.file, own].add((module.file, name))
            if any(self.of_name(dotted) for dotted in said.dotted):
                self.uses[module.file, BODY].add((module.file, name))

    def _add_fixtures(self, module: Module) -> None:
        """The fixtures that each test of a folder has, and what its conftest says to pytest."""
        for above in self._conftests(module.file):
            if above.file not in SUITE:
                self.uses[module.file, WHOLE] |= {(above.file, name) for name in (BODY, *above.of_each_test)}

    def _conftests(self, file: str) -> list[Module]:
        places = [str(folder / "conftest.py") for folder in Path(file).parents]
        return [self.modules[place] for place in places if place in self.modules and place != file]

    def _of_strings(self, module: Module, strings: Iterable[str]) -> Iterator[Node]:
        """What the strings of a definition may name: modules, names in them, scripts and commands."""
        texts = [*strings]
        by_name = not module.is_test and module.file not in COMMANDS and LOADS.search(module.text)
        as_main = "-m" in texts or any("-m " in text for text in texts)
        for text in texts:
            dotted = text.replace(":", ".")
            if by_name and "." in text and WORDS.fullmatch(dotted):
                yield from self.of_name(dotted)
            if (module.is_test and module.file not in SUITE) or as_main:
                for word in [*WORDS.findall(dotted), *_imports_in(text)]:
                    if "." in word or as_main:
                        yield from self.of_name(word)
                yield from self._of_programs(module, text)

    def _of_programs(self, module: Module, text: str) -> Iterator[Node]:
        """A script by its path, `gpu-fleet`, and its commands by their words."""
        if text.endswith(".py"):
            named = [file for file in self.modules if f"/{file}".endswith(f"/{text}")]
            yield from ((file, WHOLE) for file in named if len(named) == 1 and not is_test_module(file))
        if text == "gpu-fleet" or text.endswith("bin/gpu-fleet"):
            yield from self.of_name("gpu_fleet_image.console")
        words = {word.strip("'\"[](),`") for word in text.split()}
        for file, (_, told_by) in COMMANDS.items():
            said = self.commands[file].keys() & words
            if said and told_by.search(f"{module.file} {module.text}"):
                for target in (target for word in said for target in self.commands[file][word]):
                    yield from self.of_name(target)

    def of_name(self, dotted: str) -> set[Node]:
        """The nodes of a dotted name: the packages on the way, and the module or what is named in it."""
        parts = dotted.split(".")
        ends = [end for end in range(1, len(parts) + 1) if ".".join(parts[:end]) in self.files]
        if not ends:
            return set()
        found = {(self.files[".".join(parts[:end])], BODY) for end in ends}
        last = self.files[".".join(parts[: ends[-1]])]
        rest = parts[ends[-1] :]
        found |= {(last, rest[0]), (last, "__getattr__")} if rest else {(last, WHOLE)}
        main = f"{dotted}.__main__"
        return found | ({(self.files[main], WHOLE)} if main in self.files else set())

    def _loaded(self, dotted: str) -> set[Node]:
        """The bodies that an import of a name runs."""
        return {(file, BODY) for file, _ in self.of_name(dotted) if not file.endswith("/__main__.py")}


def commands_in(text: str, table: re.Pattern[str]) -> dict[str, list[str]]:
    """Each word of a table of commands, with the dotted names of what it may load: groups share words."""
    found = defaultdict(list)
    for word, target in table.findall(text):
        found[word].append(target.replace(":", "."))
    return found


def is_test_module(file: str) -> bool:
    return Path(file).name.startswith("test_")


def names_of(files: Iterable[str]) -> dict[str, str]:
    """The dotted name of each module, with its file, but the `__main__` of the top: every script says it."""
    found = {}
    for file in files:
        below = next((base for room, base in ROOMS.items() if file.startswith(room)), "")
        name = file.removeprefix(below).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found[name] = file
    found.pop("__main__", None)
    return found


def changed_nodes(file: str, before: str, after: str) -> set[Node]:
    """The nodes of a module that say something else than before."""
    old, new = Module.of(file, before).says(), Module.of(file, after).says()
    found = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if [name for name in old if name in new] != [name for name in new if name in old]:
        found.add(BODY)  # what is used while the module is loaded may be bound too late
    return {(file, name) for name in found}
