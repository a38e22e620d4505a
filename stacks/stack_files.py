"""The stack files beside this module: which there are, and what they say."""

from collections.abc import Hashable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from stacks import naming, settings_reader
from stacks.errors import StacksError
from stacks.settings import Stack

FOLDER = Path(__file__).parent


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, as Pulumi's own reader does; PyYAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, each of its keys once."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"key {key.value!r} stands there twice"
                    raise ConstructorError(
                        "while reading a mapping", node.start_mark, problem, key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def names() -> list[str]:
    """The stacks that have a file, in alphabetical order."""
    return sorted(
        path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in FOLDER.glob("Pulumi.*.yaml")
    )


def path_of(name: str) -> Path:
    """The file of a stack.

    Raises:
        StacksError: naming the stacks there are.
    """
    known = names()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise StacksError(f"no stack {name!r}: there are {', '.join(known)}{hint}")
    return FOLDER / f"Pulumi.{name}.yaml"


def config_of(path: Path) -> dict[str, Any]:
    """The ``config`` mapping of a stack file, with full keys such as ``gpu-fleet:region``.

    Raises:
        StacksError: when the file cannot be read or holds no such mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StacksError(f"{path} cannot be read: {error}") from error
    config = content.get("config", {}) if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise StacksError(f"{path}: 'config' must be a mapping of keys to values")
    odd = [key for key in config if not isinstance(key, str)]
    if odd:
        raise StacksError(f"{path}: config.{odd[0]!r}: a key must be text, such as 'gpu-fleet:region'")
    return config


def settings_of(name: str) -> Stack:
    """A stack's settings, read and checked without Pulumi.

    Raises:
        StacksError: naming everything that is wrong with its file.
    """
    prefix = f"{naming.PROJECT}:"
    config = config_of(path_of(name))
    own = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    return settings_reader.from_mapping(name, own)
