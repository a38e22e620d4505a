"""Registrations of programs, computed once: cached on disk by the hash of their inputs, or in this process.

``declared`` and ``stood`` run no program whose registrations are cached. A test that patches lookups of a
program, or reads its log, runs it by ``run``.
"""

import hashlib
import importlib
import os
import pickle
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pulumi

from gpu_fleet_image.recipe import payload
from gpu_fleet_stacks.rehearsal import invokes, monitor, program
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from gpu_fleet_stacks.settings import Cloud, Stack, stack_files
from tests.stacks.deflating import deflate_once

deflate_once()

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "registrations"
# What registrations are made of beside the settings; of the tests' folder what is no test.
SOURCES = ("__main__.py", "stacks", "image", "training", "tests/stacks")

_made: dict[str, bytes] = {}


class AnyType(dict[str, Any]):
    """A creator for every type: returns the inputs and computed values, and keeps nothing."""

    def get(self, token: str, default: Any = None) -> Any:
        def create(_: Any, name: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            computed = {
                "arn": f"arn:aws:any:::{name}",
                "name": name,
                "keyId": name,
                "dnsName": f"{name}.example",
                "latestVersion": 1,
                "prefixListId": "pl-0123456789abcdef0",
            }
            return f"{name}-id", computed | inputs

        return create


def answer_of_none(clients: RegionClients, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Answer lookups for an account without a built image, without moto."""
    if token == "aws:ssm/getParametersByPath:getParametersByPath":
        return {**arguments, "id": "none", "arns": [], "names": [], "types": [], "values": []}
    if token == "aws:ssm/getParameter:getParameter":
        return {**arguments, "id": "none", "value": "ami-0123456789abcdef0"}
    return invokes.answer(clients, token, arguments)


def run(of: Stack | str) -> Rehearsed:
    """Run the program of a shipped stack or any settings; return its registrations and exports."""
    if isinstance(of, str):
        return run_program(of)
    build = importlib.import_module(f"gpu_fleet_stacks.{of.cloud}.stack").build

    def exporting() -> None:
        for name, value in build(of).items():
            pulumi.export(name, value)

    return run_program(of.name, program=exporting, config={})


@contextmanager
def nowhere() -> Iterator[None]:
    """Create no resources in the block, and use no moto."""
    with patch.object(program, "CREATORS", AnyType()), patch.object(monitor, "answer", answer_of_none):
        yield


def declared(of: Stack | str) -> Rehearsed:
    """Return the registrations of a shipped stack or any settings in an empty account."""

    def make() -> Rehearsed:
        if _settings(of).cloud is not Cloud.AWS:
            return run(of)
        with nowhere():
            return run(of)

    return kept("declared", of, make)


def stood(of: Stack | str) -> Rehearsed:
    """Return the registrations with moto's ids; the resources are removed afterwards."""

    def make() -> Rehearsed:
        with moto_server(_settings(of).region):
            return run(of)

    return kept("stood", of, make)


def kept(way: str, of: Stack | str, make: Callable[[], Rehearsed]) -> Rehearsed:
    """Return the result of ``make`` for a stack, from the cache if the sources are the same.

    Args:
        way: name of the way it is made, apart from the settings; unique to one caller.
        of: the settings, or the name of a shipped stack.
        make: runs the program. Its patches follow from ``way``: a test's own patches would be cached.

    Returns:
        A separate copy for each caller.
    """
    settings = _settings(of)
    maker = Path(str(sys.modules[make.__module__].__file__))
    key = _digest(way, repr(of), repr(settings), *_read_beside(settings, maker))
    found = _loaded(_made[key]) if key in _made else _from_disk(key)
    if found is not None:
        return found
    content = pickle.dumps(make(), pickle.HIGHEST_PROTOCOL)
    if not _to_disk(key, content):
        _made[key] = content
    return _loaded(content)


def _settings(of: Stack | str) -> Stack:
    return of if isinstance(of, Stack) else stack_files.settings_of(of)


def _read_beside(settings: Stack, maker: Path) -> Iterator[str]:
    """Yield the other inputs of registrations, outside of the settings and ``SOURCES``."""
    named = (ROOT / name for name in (settings.image.payload, settings.image.disk) if name)
    for path in (maker, *named):
        if path.is_file():
            yield hashlib.sha256(path.read_bytes()).hexdigest()
    yield from (
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("GPU_FLEET")
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _loaded(content: bytes) -> Rehearsed:
    found: Rehearsed = pickle.loads(content)
    return found


def _from_disk(key: str) -> Rehearsed | None:
    folder = _folder()
    try:
        found = _loaded((folder / key).read_bytes()) if folder else None
    except FileNotFoundError:
        return None
    return found if found and _files_lie(found) else None


def _files_lie(rehearsed: Rehearsed) -> bool:
    """Return whether the uploaded files exist: a payload is made below ``build`` too."""
    inputs = (value for made in rehearsed.registrations for value in made.inputs.values())
    return all(Path(value.path).is_file() for value in inputs if isinstance(value, pulumi.FileAsset))


def _to_disk(key: str, content: bytes) -> bool:
    """Cache it for other processes, in one move, unless a source is newer than this process's code."""
    folder = _folder()
    if folder is None or _newest() >= _began():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        Path(file.name).rename(folder / key)
    except FileNotFoundError:  # a process of other sources has just removed the folder
        return False
    return True


@cache
def _folder() -> Path | None:
    """Return the folder for registrations of these sources and packages; None if a source is newer."""
    if _newest() >= _began():
        return None
    payloads = payload.digest(payload.assemble(ROOT))  # follows git's index as well as the sources
    digest = hashlib.sha256(f"{ROOT} {sys.version} {_packages()} {payloads}".encode())
    for path in _sources():
        digest.update(f"\0{path}\0".encode() + path.read_bytes())
    folder = FOLDER / digest.hexdigest()[:16]
    for other in FOLDER.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _packages() -> list[str]:
    """Return name and version of every installed package."""
    return sorted(path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))


def _sources() -> list[Path]:
    found = [ROOT / name for name in SOURCES if (ROOT / name).is_file()]
    for top in (ROOT / name for name in SOURCES if (ROOT / name).is_dir()):
        for folder, folders, names in os.walk(top):
            folders[:] = [
                name for name in folders if name != "__pycache__" and not name.endswith(".egg-info")
            ]
            found += [Path(folder) / name for name in names if not name.startswith("test_")]
    return sorted(found)


def _newest() -> float:
    return max(path.stat().st_mtime for path in _sources())


@cache
def _began() -> float:
    """Return the start time of this process, by the wall clock."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age
