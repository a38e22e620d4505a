"""First boot of an instance in a folder, which follows its user data only.

This module plays cloud-init: it writes the files and starts the unit of ``runcmd``. The program, the payload
and the recipe are the stack's own. The units that the recipe enabled run afterwards.
"""

import configparser
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet_stacks.rehearsal import processes
from gpu_fleet_stacks.rehearsal.errors import RehearsalError

AGENT = "gpu-reaper.service"
UNITS = "etc/systemd/system"
BOOTED = "multi-user.target"
OLDEST_PYTHON = (3, 11)
SYSTEM_PYTHON = "/usr/bin/python3"
# Prefixes of an instance's own files; a folder replaces the root before them.
OWN = ("/opt/", "/usr/local/", "/usr/libexec/")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class FirstBootError(RehearsalError):
    """User data, payload or units do not provide what an instance needs."""


def boot(user_data: str, root: Path, environment: Mapping[str, str], log: Path) -> None:
    """Do the work of cloud-init and systemd.

    Args:
        root: a folder that stands for the instance's root.
        environment: addresses of the instance's services; nothing of this process's environment is added.

    Raises:
        FirstBootError: the user data starts nothing.
        ChildError: the bootstrap fails.
    """
    config = yaml.safe_load(user_data)
    for file in config.get("write_files", ()):
        path = root / str(file["path"]).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"], encoding="utf-8")
        path.chmod(int(file["permissions"], 8))
    for unit in started_units(config):
        command = exec_start(root, unit)
        own = {**ENVIRONMENT, **environment, "GPU_FLEET_ROOT": str(root)}
        processes.run(command, log, own, inherit=False)


def started_units(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the units that ``runcmd`` starts. Raises FirstBootError if there is none."""
    commands = [command for command in config.get("runcmd", ()) if command[:2] == ["systemctl", "start"]]
    units = tuple(command[-1] for command in commands)
    if not units:
        raise FirstBootError(
            "the user data starts no unit: nothing would install agent and gate on this instance"
        )
    return units


def enabled_units(root: Path) -> tuple[str, ...]:
    """Return the units that start with the instance, as the recipe enabled them."""
    return tuple(sorted(link.name for link in (root / UNITS / f"{BOOTED}.wants").glob("*.service")))


def own_environment(root: Path, services: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the instance's processes: its files and services, nothing of this process."""
    return {
        **ENVIRONMENT,
        **services,
        "GPU_FLEET_ROOT": str(root),
        "GPU_FLEET_PYTHON": system_python(),
        "GPU_FLEET_INSTANCE_FILE": str(root / "etc/gpu-fleet/instance.toml"),
        "GPU_FLEET_RUN_DIR": str(root / "run/gpu-fleet"),
    }


def service(root: Path, unit: str) -> list[str]:
    """Return the command of a unit that starts with the instance. Raises FirstBootError."""
    if unit not in enabled_units(root):
        raise FirstBootError(f"{unit} does not start with the instance: the recipe enabled no such unit")
    return exec_start(root, unit)


def people_command(root: Path, *arguments: str) -> list[str]:
    """Return a command as users type it on the instance: ``gpu-fleet`` and its arguments.

    Raises:
        FirstBootError: the payload has no such program.
    """
    program = root / "usr/local/bin/gpu-fleet"
    if not program.is_file():
        raise FirstBootError(f"{program} is missing: the payload brought no commands for users")
    return ["/bin/sh", str(program), *arguments]


def exec_start(root: Path, unit: str) -> list[str]:
    """Return a unit's command, with paths below the folder. Raises FirstBootError."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    if not parser.read(root / UNITS / unit, encoding="utf-8"):
        raise FirstBootError(f"{UNITS}/{unit} is missing: neither user data nor payload brought it")
    command = parser.get("Service", "ExecStart", fallback="").split()
    if not command:
        raise FirstBootError(f"{UNITS}/{unit} has no ExecStart")
    return _below(root, command)


def _below(root: Path, command: Sequence[str]) -> list[str]:
    below = [f"{root}{word}" if word.startswith(OWN) else word for word in command]
    return [system_python() if word == SYSTEM_PYTHON else word for word in below]


@cache
def system_python() -> str:
    """Return a Python without this environment's packages: the system's, or else the one that made ours.

    Raises FirstBootError if neither exists.
    """
    for candidate in (SYSTEM_PYTHON, f"{sys.base_prefix}/bin/python3"):
        if shutil.which(candidate) and _is_new(candidate):
            return candidate
    raise FirstBootError(f"no Python >= 3.11 at {SYSTEM_PYTHON} or below {sys.base_prefix}")


def _is_new(python: str) -> bool:
    code = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return subprocess.run([python, "-I", "-c", code], check=False).returncode == 0
