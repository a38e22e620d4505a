"""Bake a root file system here: mmdebstrap makes the base, and the payload's own recipe runs inside it."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_image.recipe import build_requirements, lock, payload, wheels
from gpu_fleet_image.recipe.errors import BakeError, RequirementError

_ENTER = Path(__file__).with_name("enter.sh")
BASE = "debian-12"
# Files of packages are older; files that the bake itself makes get this time (2025-11-24T16:00:00Z).
SOURCE_DATE_EPOCH = 1_764_000_000
# A finished root file system of 2.5 GiB, the disk made from it, and the packages that apt unpacks.
NEEDED_GIB = 8
_LOG_LINES_SHOWN = 15

Listener = Callable[[str], None]


@dataclass(frozen=True)
class Baked:
    """A root file system, and the time that each of its parts took.

    Attributes:
        seconds: part -> seconds, ``base`` and the steps in their order.
    """

    root: Path
    seconds: dict[str, float]
    size_bytes: int


def check_computer(folder: Path, needed_gib: float = NEEDED_GIB) -> None:
    """Check this computer before a bake begins.

    Raises:
        RequirementError: not root, no apt, or too little free space.
    """
    reason = build_requirements.hindrance()
    if reason is not None:
        raise RequirementError(f"cannot bake: {reason}")
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < needed_gib:
        raise RequirementError(
            f"{folder}: {free_gib:.1f} GiB free, a bake needs {needed_gib:g}; use --output"
        )


def bake(target: str, files: payload.Files, root: Path, cache: Path, listener: Listener) -> Baked:
    """Make the root file system of a target.

    Args:
        target: ``qemu`` or ``oci``.
        root: the folder to make; must not exist.
        cache: packages and wheels, kept between bakes.
        listener: called with the name of each part as it begins.

    Raises:
        BakeError: a part failed; the message names it and ends with its last lines.
        LockError: something differs from the lockfile.
    """
    (cache / "apt" / "partial").mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    with _timed(seconds, "wheels", listener):
        wheels.fetch(cache / "files" / "wheels")
    with _timed(seconds, "base", listener):
        _make_base(root)
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-payload-") as folder:
        payload.write(files, Path(folder))
        command = enter(root, Path(folder), cache, target)
        seconds |= run_steps(command, root.parent / f"{target}.log", listener)
    return Baked(root, seconds, size_bytes(root))


def enter(root: Path, recipe: Path, cache: Path, target: str) -> list[str]:
    """Return the argument list that provisions a root file system, with its own mounts and processes."""
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    environment = ["env", f"TARGET={target}", f"SOURCE_DATE_EPOCH={SOURCE_DATE_EPOCH}"]
    places = [str(place) for place in (root, recipe, cache / "files", cache / "apt")]
    return [*environment, *own, str(_ENTER), *places, "/run/bake/payload/provision.sh"]


def _make_base(root: Path) -> None:
    suite = next(
        artefact.version for artefact in lock.load() if (artefact.name, artefact.base) == ("archive", BASE)
    )
    command = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        "--components=main contrib non-free non-free-firmware",
        suite,
        str(root),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BakeError(f"mmdebstrap failed:\n{_tail(done.stderr.splitlines())}")


def run_steps(command: list[str], log: Path, listener: Listener) -> dict[str, float]:
    """Run the recipe with its output in a log; return the seconds of each step, as the recipe names them."""
    seconds: dict[str, float] = {}
    lines: list[str] = []
    step = "provision"
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            lines.append(line.rstrip())
            event = dict(re.findall(r"(\w+)=(\S+)", line)) if line.startswith("event=") else {}
            if event.get("event") == "step-started":
                step = event["step"]
                listener(step)
            elif event.get("event") == "step-done":
                seconds[event["step"]] = float(event["seconds"])
    if process.returncode != 0:
        raise BakeError(f"step {step} failed (all of it in {log}):\n{_tail(lines)}")
    return seconds


@contextmanager
def _timed(seconds: dict[str, float], part: str, listener: Listener) -> Iterator[None]:
    listener(part)
    started = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - started


def _tail(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES_SHOWN:])


def size_bytes(root: Path) -> int:
    """Return the disk space of a folder's files, in bytes; hard links count once."""
    seen: set[int] = set()
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            status = (Path(folder) / name).lstat()
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total
