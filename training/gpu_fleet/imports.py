"""Which files of a user a program imports, wherever in it: inside a function too. Nothing of it is run.

By the text alone. What a program imports by a name that it makes up while it runs is not seen.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

OURS = "gpu_fleet"  # instances have it, also where a user submits from our checkout


def imported(contents: Mapping[str, bytes], here: Path) -> dict[str, bytes]:
    """Path from ``here`` -> content of each module below it that these programs import, and those in turn.

    Args:
        contents: path from ``here`` -> content, of what travels already.
        here: the folder of the run. Python looks for modules there, and beside each program.
    """
    modules: dict[str, bytes] = {}
    roots = {PurePosixPath(), *(PurePosixPath(path).parent for path in contents if path.endswith(".py"))}
    open_paths = [path for path in contents if path.endswith(".py")]
    while open_paths:
        path = open_paths.pop()
        text = contents[path] if path in contents else modules[path]
        for module in _modules(text, PurePosixPath(path)):
            for name in _files(module, roots, here):
                if name not in contents and name not in modules:
                    modules[name] = (here / name).read_bytes()
                    open_paths.append(name)
    return modules


def _modules(text: bytes, path: PurePosixPath) -> Iterator[tuple[PurePosixPath | None, tuple[str, ...]]]:
    """Every module that may be imported: the package that a relative one begins at, and its name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # the run itself says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, tuple(alias.name.split("."))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            begins = path.parents[min(node.level, len(path.parents)) - 1] if node.level else None
            yield from ((begins, (*base, alias.name)) for alias in node.names)


def _files(
    module: tuple[PurePosixPath | None, tuple[str, ...]], roots: Iterable[PurePosixPath], here: Path
) -> Iterator[str]:
    """The files of a module and of the packages above it; a name out of a module is none itself."""
    begins, names = module
    if begins is None and names[0] == OURS:
        return
    for root in roots if begins is None else (begins,):
        for length in range(1, len(names) + 1):
            inner = root.joinpath(*names[:length])
            for path in (inner.with_suffix(".py"), inner / "__init__.py"):
                if (here / path).is_file():
                    yield path.as_posix()
