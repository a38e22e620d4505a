"""Click objects as text: a command's module is loaded when it is called, not before."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import click

from gpu_fleet_image.console.errors import CommandNotHereError

# Package -> the extra of the wheel with its commands' requirements.
_EXTRAS = {"gpu_fleet_stacks": "platform", "gpu_fleet": "train", "gpu_fleet_jobs": "train"}


def is_here(target: str) -> bool:
    """Return whether the module of ``module:attribute`` is on this computer, without loading it."""
    room, *rest = target.partition(":")[0].split(".")
    spec = importlib.util.find_spec(room)
    if spec is None:
        return False
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    path = Path(*rest)
    return any(
        (root / path).with_suffix(".py").is_file() or (root / path / "__init__.py").is_file()
        for root in roots
    )


def load(target: str) -> Any:
    """Load ``module:attribute``.

    Raises CommandNotHereError if a package that the module needs is not installed on this computer.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        room = module.partition(".")[0]
        advice = f"; pip install 'gpu-fleet[{_EXTRAS[room]}]' installs it" if room in _EXTRAS else ""
        raise CommandNotHereError(
            f"needs the Python package {error.name}, which is not installed here{advice}"
        ) from error


def command(target: str) -> click.Command:
    """Load the click command or group of ``module:attribute``; errors as for ``load``."""
    loaded: click.Command = load(target)
    return loaded
