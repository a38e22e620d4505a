"""The project of a command: a folder with the Pulumi.yaml of gpu-fleet and its stack files.

``gpu-fleet init`` writes one; a checkout of gpu-fleet is one as well.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import StacksError

FILE = "Pulumi.yaml"
# Names the project, or a folder of stack files alone; `gpu-fleet --dir` sets it.
VARIABLE = "GPU_FLEET_DIR"
PATTERN = "Pulumi.*.yaml"
# The root of the checkout that this gpu-fleet runs from; of a wheel it is a folder of its environment.
OWN = Path(__file__).resolve().parents[3]
NAME = re.compile(rf"^name:\s*(['\"]?){naming.PROJECT}\1\s*(?:#.*)?$", re.MULTILINE)
CONFIG_FOLDER = re.compile(r"^stackConfigDir:\s*(['\"]?)([^'\"#\n]+?)\1\s*(?:#.*)?$", re.MULTILINE)


def folder() -> Path | None:
    """Return the folder of the stack files; None where there is no project.

    It is ``GPU_FLEET_DIR``, or else the working directory, if that folder holds stack files. Otherwise it
    is the stack folder of the nearest project above. Without such a project it is ``GPU_FLEET_DIR``, or
    else the stack folder of the checkout that this gpu-fleet runs from.

    Raises:
        StacksError: ``GPU_FLEET_DIR`` names no folder.
    """
    named = os.environ.get(VARIABLE, "")
    start = Path(named).absolute() if named else Path.cwd()
    if not start.is_dir():
        raise StacksError(f"{VARIABLE} (--dir) = {named!r}: there is no such folder")
    if any(start.glob(PATTERN)):
        return start
    above = next(_upward(start), None)
    if above is None and named:
        return start
    # Not upward: an environment in a project names it in no other folder.
    project = above or (OWN if _is_project(OWN) else None)
    return stack_folder_of(project) if project else None


def root() -> Path:
    """Return the folder with Pulumi.yaml, in which the Pulumi CLI runs. Raises StacksError."""
    stacks = folder()
    if stacks is not None:
        for project in _upward(stacks):
            if stack_folder_of(project).resolve() == stacks.resolve():
                return project
    raise StacksError(f"{missing()}; Pulumi runs in a project alone")


def stack_folder() -> Path:
    """Return the folder of the stack files. Raises StacksError if there is no project."""
    stacks = folder()
    if stacks is None:
        raise StacksError(missing())
    return stacks


def build_folder() -> Path:
    """Return the folder for files that can be made again: in the project, else the working directory."""
    stacks = folder()
    return next(_upward(stacks) if stacks else iter(()), Path.cwd()) / "build"


def missing() -> str:
    """Return the error message for a command outside of any project."""
    start = Path(os.environ.get(VARIABLE) or Path.cwd()).absolute()
    nearest = next((place for place in (start, *start.parents) if (place / FILE).is_file()), None)
    other = nearest is not None and not _is_project(nearest)
    named = f" ({nearest / FILE} has another name than {naming.PROJECT})" if nearest and other else ""
    return (
        f"no project of gpu-fleet in {start} or above it{named}: `gpu-fleet init DIR` makes one, and "
        f"--dir DIR or {VARIABLE} names one elsewhere"
    )


def stack_folder_of(project: Path) -> Path:
    """Return the folder of a project's stack files: Pulumi's ``stackConfigDir``."""
    said = CONFIG_FOLDER.search(_text(project))
    return project / said[2] if said else project


def _upward(start: Path) -> Iterator[Path]:
    """Yield every project in or above a folder, the nearest first."""
    return (place for place in (start, *start.parents) if _is_project(place))


def _is_project(place: Path) -> bool:
    return NAME.search(_text(place)) is not None


def _text(place: Path) -> str:
    try:
        return (place / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
