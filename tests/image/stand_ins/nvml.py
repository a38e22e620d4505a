"""The library in the place of NVIDIA's driver, as a file of the disk."""

import subprocess
from pathlib import Path

from gpu_fleet_image.recipe import build_requirements

COMPILER = ("gcc",)
PLACE = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def files(folder: Path) -> dict[str, bytes]:
    """Path on the disk -> content.

    Raises:
        RequirementError: there is no compiler, and it cannot be installed.
    """
    build_requirements.install(COMPILER)
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return {PLACE: library.read_bytes()}
