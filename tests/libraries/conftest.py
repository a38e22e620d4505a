"""The environment of these tests: the libraries that the project works with and does not need."""

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).parent / "requirements.lock"


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter with the libraries over the packages of this one, kept in build/ for the next time."""
    name = hashlib.sha256(LOCK.read_bytes() + sys.prefix.encode()).hexdigest()[:12]
    folder = ROOT / "build" / f"libraries-{name}"
    program = folder / "bin/python"
    if not (folder / "whole").exists():
        venv.create(folder, with_pip=True, clear=True)
        site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        (site / "parent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--require-hashes", "-r", LOCK]
        installed = subprocess.run(pip, capture_output=True, text=True, check=False)
        if installed.returncode:
            pytest.skip(f"no libraries from PyPI: {installed.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    return program
