"""What the stack wrote for this instance: /etc/gpu-fleet/instance.toml. Other computers have none."""

import getpass
import os
import tomllib
from pathlib import Path
from typing import Any

from gpu_fleet.errors import ConfigError

DEFAULT_FILE = "/etc/gpu-fleet/instance.toml"
DEFAULT_RUN_DIRECTORY = "/run/gpu-fleet"


def table() -> dict[str, Any]:
    """The whole file, empty where there is none; raises ConfigError when it cannot be read."""
    file = Path(os.environ.get("GPU_FLEET_INSTANCE_FILE", DEFAULT_FILE))
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error


def account() -> str:
    """Who runs this process: the account's name, or its number where it has no name (a container)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12
        return str(os.getuid())


def run_directory() -> Path:
    """Where agent and trainer of an instance leave word for one another; holds the stop file."""
    return Path(os.environ.get("GPU_FLEET_RUN_DIR", DEFAULT_RUN_DIRECTORY))
