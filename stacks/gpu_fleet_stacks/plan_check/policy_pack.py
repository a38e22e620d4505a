"""The policy pack's folder and environment, which the Pulumi CLI starts for a project.

A checkout has both where `make policy` sets them up. Any other project gets a copy of the package in its
build folder: on the path of the installed package the pack would import the program's libraries, which it
cannot share. Its environment is made beside the copy when it is first needed.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_stacks.core import files
from gpu_fleet_stacks.core.errors import StacksError

PACKAGE = Path(__file__).resolve().parents[1]
COPY = Path("build/policy")
PACK = Path("stacks", PACKAGE.name, "crossguard")
ENVIRONMENT = Path(".venv/policy")  # PulumiPolicy.yaml names the same path
LOCK, READY = "requirements.lock", ".made-from"
ADVICE = (
    "is missing: the policy pack has an environment of its own. Make it once with `make policy`, or leave "
    "the pack out with --no-policy"
)
NAME = "the policy pack of gpu-fleet"


@dataclass(frozen=True)
class PolicyPack:
    """The pack of a project.

    Attributes:
        top: the folder that holds the package.
    """

    project: Path
    top: Path

    @property
    def flag(self) -> str:
        """Value of ``--policy-pack``: the pack's path from the project."""
        return (self.top / PACK).relative_to(self.project).as_posix()

    @property
    def environment(self) -> Path:
        """The virtual environment of the pack."""
        return self.top / ENVIRONMENT

    @property
    def python(self) -> Path:
        """The interpreter that the CLI starts."""
        return self.environment / "bin" / "python"

    @property
    def is_of_checkout(self) -> bool:
        """Return whether the project holds gpu-fleet itself."""
        return self.top == self.project


def of_project(project: Path) -> PolicyPack:
    """Return the pack of a project without making anything."""
    own = PACKAGE.parents[1] == project.resolve()
    return PolicyPack(project, project if own else project / COPY)


def ready(project: Path, report: Callable[[str], object]) -> PolicyPack:
    """Return the pack of a project with its environment; outside of a checkout both are made.

    Args:
        report: called before a step that takes a minute.

    Raises:
        StacksError: it is missing, or cannot be made; the message says what to do.
    """
    pack = of_project(project)
    if pack.is_of_checkout:
        if not pack.python.exists():
            raise StacksError(f"{pack.python} {ADVICE}")
        return pack
    try:
        _copy(pack)
        _make_environment(pack, report)
    except (OSError, shutil.Error) as error:
        raise StacksError(f"{NAME} cannot be made in {pack.top}: {error}") from error
    return pack


def _copy(pack: PolicyPack) -> None:
    """Copy the package of this gpu-fleet beside the environment, and remove any older copy."""
    target = pack.top / "stacks" / PACKAGE.name
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "Pulumi.*.yaml"))


def _make_environment(pack: PolicyPack, report: Callable[[str], object]) -> None:
    lock = pack.top / PACK / LOCK
    made_from, stamp = hashlib.sha256(lock.read_bytes()).hexdigest(), pack.environment / READY
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == made_from:
        return
    report(f"setting up {pack.environment} for {NAME}: a minute, and once")
    pip = [str(pack.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(pack.environment)],
        [*pip, "--no-deps", "--require-hashes", "-r", str(lock)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise StacksError(f"{NAME}: {' '.join(command[1:4])} failed: {said}; --no-policy leaves it out")
    files.replace(stamp, made_from)
