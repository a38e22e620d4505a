"""Folders of this gpu-fleet, a checkout or an installed package, and of its results."""

import os
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]  # the folder that holds gpu_fleet_image
PROJECT = PACKAGES.parent if PACKAGES.name == "image" else PACKAGES
_CACHE_VARIABLE = "XDG_CACHE_HOME"
# Folder of a checkout -> its place in the wheel, instead of below the folder of its room
# (image/gpu_fleet_image/recipe/users_wheel.py).
INSTALLED = {"training/examples": "gpu_fleet_image/examples"}


def _is_checkout(project: Path = PROJECT) -> bool:
    """Return whether the folder is a checkout, or a copy of one, and not an environment's packages."""
    return (project / "pyproject.toml").is_file()


def folder(name: str, project: Path = PROJECT) -> Path:
    """Return a folder of the project."""
    in_checkout = project / name
    return in_checkout if in_checkout.is_dir() else project / INSTALLED.get(name, name.partition("/")[2])


def build_folder() -> Path:
    """Return the folder of results, named by content: in the checkout, else in the user's cache."""
    if _is_checkout():
        return PROJECT / "build"
    named = os.environ.get(_CACHE_VARIABLE)
    return (Path(named) if named else Path.home() / ".cache") / "gpu-fleet"
