"""The recipe's own files, for tests that run its steps; and its progress."""

import os
import subprocess
from functools import cache
from pathlib import Path

from gpu_fleet_image.recipe import payload
from tests.ran import ran

ROOTFS = payload.PROJECT / "image/gpu_fleet_image/recipe/rootfs"
NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child")
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
LIBEXEC = ROOTFS / "usr/libexec/gpu-fleet"

# 1,340 files of Python, which no step asks for until it runs some
PYTHON = ("python/", "vendor/")


@cache
def _files() -> payload.Files:
    return {name: content for name, content in payload.assemble().items() if not name.startswith(PYTHON)}


def lay_down(folder: Path) -> Path:
    """Write them to a folder."""
    payload.write(_files(), folder)
    return folder


def provision(folder: Path, *steps: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe that lies in a folder."""
    return ran(["bash", str(folder / "provision.sh"), *steps], env={"PATH": PATH} | environment)


def report(part: str) -> None:
    """Say what a bake is at, past pytest's capture: it takes minutes."""
    os.write(2, f"\nevent=bake part={part}".encode())


def do_nothing(folder: Path) -> None:
    """Let each of its steps read the library, and no more."""
    for step in (folder / "steps").glob("*.sh"):
        step.write_text('set -euo pipefail\n. "$PAYLOAD/lib.sh"\n')
