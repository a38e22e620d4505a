"""Ways to break the reaper on purpose, one guard or one operator at a time.

A mutant replaces a function's code, so that it works for every reference to the function, such as a tuple of
rules or a module that imported it. Functions are found by their names below ``ROOMS``,
in any module; a name that is missing, or there twice, is an error.
"""

import ast
import builtins
import importlib
import inspect
import pkgutil
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import cast

# what decides about an instance, and what leads there
ROOMS = tuple(
    f"gpu_fleet_image.{room}"
    for room in (
        *("core", "providers", "instance.agent", "controllers.sweep", "controllers.meter"),
        *("console.users", "console.operators"),
    )
)
TESTS = tuple(room.replace("gpu_fleet_image", "tests/image").replace(".", "/") for room in ROOMS)

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


PROBE = "__reached__"  # in builtins, while conditions are probed


class TargetError(Exception):
    """Error for a mutant whose target is missing: name its new place in the mutant."""


@dataclass(frozen=True)
class Mutant:
    """One way to break one function: other code in its place."""

    name: str  # unique
    function: FunctionType
    code: CodeType

    @contextmanager
    def alive(self) -> Iterator[None]:
        whole = self.function.__code__
        self.function.__code__ = self.code
        try:
            yield
        finally:
            self.function.__code__ = whole


@cache
def modules() -> tuple[ModuleType, ...]:
    names = [
        found.name
        for room in map(importlib.import_module, ROOMS)
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
    ]
    return tuple(importlib.import_module(name) for name in names if not name.endswith("__main__"))


@cache
def functions() -> dict[str, list[FunctionType]]:
    """Return name, or class and name, -> the reaper's functions of that name."""
    found: dict[str, list[FunctionType]] = {}
    for module in modules():
        for function in functions_of(module):
            found.setdefault(function.__qualname__, []).append(function)
    return found


def functions_of(module: ModuleType) -> list[FunctionType]:
    """Return the functions and methods that a module defines, in the order of its lines."""
    made = []
    for holder in (
        module,
        *(each_value for each_value in vars(module).values() if inspect.isclass(each_value)),
    ):
        if getattr(holder, "__module__", module.__name__) != module.__name__:
            continue
        for raw in vars(holder).values():
            # of a property, of a class's method, of a command
            bare = next(
                (found for name in ("fget", "__func__", "callback") if (found := getattr(raw, name, None))),
                raw,
            )
            value = inspect.unwrap(bare)
            if not isinstance(value, FunctionType) or value.__name__ == "<lambda>":
                continue
            if value.__code__.co_filename == module.__file__:
                made.append(value)
    return sorted(set(made), key=lambda resource: resource.__code__.co_firstlineno)


def target(name: str) -> FunctionType:
    """Return the only function of a name, ``Lease.renew`` or, in a folder or module, ``aws:Instances.fleet``.

    Raises:
        TargetError: there is none, or more than one.
    """
    folder, _, qualname = name.rpartition(":")
    found = [
        function
        for function in functions().get(qualname, [])
        if not folder or f".{folder}." in f"{function.__module__}."
    ]
    if len(found) != 1:
        raise TargetError(f"{name}: {len(found)} functions of this name among the reaper's; 1 is needed")
    return found[0]


def home(name: str) -> ModuleType:
    return importlib.import_module(target(name).__module__)


def entries(table: str) -> dict[str, list[str]]:
    """Return heading -> its lines, indented by four; a line indented by eight continues the last."""
    found: dict[str, list[str]] = {}
    for line in table.strip().replace("\n        ", " ").splitlines():
        if not line.startswith(" "):
            found[line] = []
        else:
            found[list(found)[-1]].append(line.strip())
    return found


def broken(text: str) -> Mutant:
    """Make the mutant of ``function: answer``, ``function: old -> new`` or ``function(parameters): body``."""
    place, _, change = text.partition(": ")
    function, is_whole, parameters = place.partition("(")
    old, is_swapped, new = change.partition(" -> ")
    if is_swapped:
        return swaps(function, old, new)
    return becomes(function, parameters.removesuffix(")"), change) if is_whole else gives(function, change)


def gives(name: str, answer: str) -> Mutant:
    """Return a mutant with a constant result: a guard that never refuses."""
    function = target(name)
    return Mutant(
        f"{name} gives {answer}",
        function,
        _code(f"def {function.__name__}(*_, **__): return {answer}", function),
    )


def becomes(name: str, parameters: str, body: str) -> Mutant:
    function = target(name)
    return Mutant(
        f"{name} gives {body}",
        function,
        _code(f"def {function.__name__}({parameters}): return {body}", function),
    )


def swaps(name: str, old: str, new: str) -> Mutant:
    """Return a mutant with one expression replaced, at its first place.

    Raises:
        TargetError: the function has no such expression.
    """
    function = target(name)
    wanted = ast.dump(ast.parse(old, mode="eval").body)
    tree = _tree(function)
    places = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and ast.dump(node) == wanted]
    if not places:
        raise TargetError(f"{function.__qualname__}: there is no {old} in it")
    _put(tree, places[0], ast.parse(new, mode="eval").body)
    return Mutant(f"{function.__qualname__}: {old} becomes {new}", function, _compiled(tree, function))


def negations(module: ModuleType) -> Iterator[Mutant]:
    """Yield a mutant for each comparison, boolean operator and bare condition of a module, negated."""
    for function in functions_of(module):
        yield from _negations_of(function)


def _negations_of(function: FunctionType) -> Iterator[Mutant]:
    seen: Counter[str] = Counter()
    where = f"{function.__module__.removeprefix('gpu_fleet_image.')}: {function.__qualname__}"
    for index in range(len(_places(_tree(function)))):
        tree = _tree(function)
        before, after = _negate(tree, index)
        change = f"{where}: {before} becomes {after}"
        seen[change] += 1
        name = change if seen[change] == 1 else f"{change} ({seen[change]})"
        yield Mutant(name, function, _compiled(tree, function))


def probe(broken: Iterable[ModuleType], note: Callable[[Collection[str]], object]) -> None:
    """Report each condition that is evaluated from now on, by the names of its negations.

    It cannot be undone: use it in a process that ends afterwards.

    Args:
        broken: modules of the conditions.
        note: called at each evaluation.
    """
    names: list[list[str]] = []

    def reached(number: int, value: object) -> object:
        note(names[number])
        return value

    vars(builtins)[PROBE] = reached
    for function in [item for module in broken for item in functions_of(module)]:
        tree, probes = _tree(function), _Probes()
        for (node, _), mutant in zip(_places(tree), list(_negations_of(function)), strict=True):
            if id(node) not in probes.numbers:
                probes.numbers[id(node)] = len(names)
                names.append([])
            names[probes.numbers[id(node)]].append(mutant.name)
        function.__code__ = _compiled(probes.visit(tree), function)


def rebuilt(function: FunctionType) -> CodeType:
    return _compiled(_tree(function), function)


class _Probes(ast.NodeTransformer):
    """Transformer that wraps expressions in a call that returns their value."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}  # id of an expression's node -> argument of the call

    def visit(self, node: ast.AST) -> ast.AST:
        number = self.numbers.get(id(node))
        seen: ast.AST = self.generic_visit(node)
        if number is None:
            return seen
        arguments = [ast.Constant(number), cast("ast.expr", seen)]
        return ast.Call(ast.Name(PROBE, ast.Load()), arguments, [])


def explained() -> dict[str, str]:
    """Return name of a negation that no test can detect -> reason why it changes nothing."""
    content = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
    return {survivor["mutant"]: survivor["reason"] for survivor in content["survivors"]}


def _places(tree: ast.AST) -> list[tuple[ast.AST, int]]:
    """Yield every operator and every bare condition: its node, and its number in a chain."""
    bare = {id(function) for node in ast.walk(tree) for test in _tests_of(node) for function in _bare(test)}
    return [
        (node, index)
        for node in ast.walk(tree)
        for index in range(
            len(node.ops)
            if isinstance(node, ast.Compare)
            else isinstance(node, ast.BoolOp)
            or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            or id(node) in bare
        )
    ]


def _tests_of(node: ast.AST) -> list[ast.expr]:
    """Return the conditions of a statement, an expression or a loop."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _bare(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that are true or false by themselves."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _bare(value)
    elif not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
        yield test


def _negate(tree: ast.Module, index: int) -> tuple[str, str]:
    """Negate one operator or condition in place; return its expression before and after."""
    node, position = _places(tree)[index]
    before = ast.unparse(node)
    changed: ast.AST = node
    if isinstance(node, ast.Compare):
        node.ops[position] = NEGATED[type(node.ops[position])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    else:
        # of what was negated, this is its truth
        changed = ast.UnaryOp(ast.Not(), cast("ast.expr", node))
        _put(tree, node, changed)
    return before, ast.unparse(ast.fix_missing_locations(changed))


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else super().visit(node)

    Swap().visit(tree)


def _tree(function: FunctionType) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    return tree


def _compiled(tree: ast.AST, function: FunctionType) -> CodeType:
    return _code(ast.unparse(ast.fix_missing_locations(tree)), function)


def _code(source: str, function: FunctionType) -> CodeType:
    """Return the code of the only function in a source, with its free variables, such as for ``super()``."""
    if around := ", ".join(function.__code__.co_freevars):
        source = f"def around({around}):\n{textwrap.indent(source, ' ')}"
    codes = _codes_in(compile(source, f"<a mutant of {function.__qualname__}>", "exec"))
    codes = _codes_in(codes[0]) if around else codes
    code = next(item for item in codes if item.co_name == function.__name__)
    if code.co_freevars != function.__code__.co_freevars:
        raise TargetError(f"{function.__qualname__} is a closure, which no mutant can take the place of")
    return code


def _codes_in(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
