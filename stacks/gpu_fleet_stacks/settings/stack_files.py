"""The stack files of a project: their list and their content."""

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.settings import Stack, namespaces, neighbours, projects, reader, yaml_errors, yaml_text

LONGEST_TEXT = 40  # characters of a text in a message


def names() -> list[str]:
    """Return the stacks that have a file, in alphabetical order; none where there is no project.

    Raises:
        StacksError: ``GPU_FLEET_DIR`` names no folder.
    """
    folder = projects.folder()
    return sorted(map(name_of, folder.glob(projects.PATTERN))) if folder else []


def name_of(path: Path) -> str:
    """Return the name of the stack in a file, from the file's name."""
    return path.name.removeprefix("Pulumi.").removesuffix(".yaml")


def path_of(name: str) -> Path:
    """Return the file of a stack.

    Raises:
        StacksError: there is none; the message names the existing stacks, or how to make the first.
    """
    folder, known = projects.folder(), names()
    if folder is None or not known:
        raise StacksError(f"no stack {name!r}: {missing(name)}")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise StacksError(f"no stack {name!r}; known: {', '.join(known)}{hint}")
    return folder / f"Pulumi.{name}.yaml"


def missing(name: str = "NAME") -> str:
    """Return the error message for a command that finds no stack file."""
    folder = projects.folder()
    if folder is None:
        return projects.missing()
    return f"no stack file in {folder}; `gpu-fleet new {name}` writes one"


def config_of(path: Path) -> dict[str, Any]:
    """Return the ``config`` mapping of a stack file, with full keys such as ``gpu-fleet:region``.

    Raises StacksError if the file cannot be read or holds no such mapping.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StacksError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = yaml_text.read(raw.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise StacksError(f"{path} cannot be read: {yaml_errors.explained(error, raw)}") from error
    if content is None:
        raise StacksError(f"{path}: is empty; `gpu-fleet new` writes a stack file")
    if not isinstance(content, dict):
        raise StacksError(f"{path}: must be a mapping with the key 'config'; it is {_called(content)}")
    if beside := [key for key in content if str(key).startswith(namespaces.PREFIX)]:
        raise StacksError(f"{path}: {beside[0]!r} is beside 'config:'; must be below it")
    if content.get("config") is None:
        raise StacksError(f"{path}: 'config:' is missing or empty; every key must be below it, indented")
    config = content["config"]
    if not isinstance(config, dict):
        raise StacksError(f"{path}: 'config' must be a mapping of keys to values; it is {_called(config)}")
    odd = [key for key in config if not isinstance(key, str)]
    if odd:
        raise StacksError(f"{path}: config.{odd[0]!r}: a key must be text, such as 'gpu-fleet:region'")
    return config


def _called(content: object) -> str:
    """Return what stands in place of a mapping, for users."""
    if isinstance(content, list):
        return "a list: remove the dashes before its keys"
    return f"the text {content[:LONGEST_TEXT]!r}" if isinstance(content, str) else repr(content)


def place_of(name: str) -> dict[str, str]:
    """Return a stack's cloud, region, account_id, and endpoint_url of an emulator or an empty text.

    Raises StacksError, which names everything that is wrong with its file.
    """
    stack = settings_of(name)
    return {
        "cloud": str(stack.cloud),
        "region": stack.region,
        "account_id": stack.account_id,
        "endpoint_url": stack.endpoint_url or "",
    }


def pools_of(name: str) -> list[str]:
    """Return the names of a stack's pools, in the order of its file; errors as in ``settings_of``."""
    return [pool.name for pool in settings_of(name).pools]


def settings_of(name: str) -> Stack:
    """Return a stack's settings, read and checked without Pulumi. Raises StacksError."""
    return reader.from_config(name, config_of(path_of(name)))


def alone_of(name: str) -> Stack:
    """Return a stack's settings, also checked against the stack files beside it.

    Another file that is invalid is skipped; its own check reports it.

    Raises:
        StacksError: as in ``settings_of``, or a stack shares a physical name; the message names it.
    """
    return with_neighbours(name)[0]


def with_neighbours(name: str) -> tuple[Stack, list[Stack]]:
    """Return the same, and the stacks of the other valid files; errors as for ``alone_of``."""
    stack = settings_of(name)
    others = list(beside(name))
    if problems := tuple(neighbours.clashes(stack, others)):
        raise SettingsError(name, problems)
    return stack, others


def beside(name: str) -> Iterator[Stack]:
    """Yield the stacks of every other valid file."""
    for other in names():
        if other != name:
            with suppress(StacksError):
                yield settings_of(other)
