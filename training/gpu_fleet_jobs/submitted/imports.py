"""Search for the user's files that a program imports, also inside its functions. It runs no user code.

It reads only the text of a program. So it misses modules whose names a program computes while it runs.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from gpu_fleet.core.errors import ConfigError

LARGEST = 16 << 20  # bytes of a module; a larger file with such a name is no code, and may be of any size
OURS = "gpu_fleet"  # instances have this package; skip it if a user submits from a checkout of gpu-fleet


def imported(contents: Mapping[str, bytes], here: Path) -> dict[str, bytes]:
    """Return path from ``here`` -> content of each module below it that these programs import.

    The result includes the modules that those modules import in turn. Raises ConfigError.

    Args:
        contents: path from ``here`` -> content, of the files that are sent already.
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
                    modules[name] = _code(here / name)
                    open_paths.append(name)
    return modules


def _code(file: Path) -> bytes:
    if (size := file.stat().st_size) > LARGEST:
        raise ConfigError(f"{str(file)!r}: a module of {size:,} bytes; allowed: at most {LARGEST:,}")
    return file.read_bytes()


def _modules(text: bytes, path: PurePosixPath) -> Iterator[tuple[PurePosixPath | None, tuple[str, ...]]]:
    """Yield every module that may be imported: the package at which a relative name begins, and the name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # the run itself reports it
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
    """Yield the files of a module and of the packages above it; none for a name inside a module."""
    begins, names = module
    if begins is None and names[0] == OURS:
        return
    for root in roots if begins is None else (begins,):
        for length in range(1, len(names) + 1):
            inner = root.joinpath(*names[:length])
            for path in (inner.with_suffix(".py"), inner / "__init__.py"):
                if (here / path).is_file():
                    yield path.as_posix()
