"""The stack's file for this instance: /etc/gpu-fleet/instance.toml. Other computers have none."""

import getpass
import os
import tomllib
from pathlib import Path
from typing import Any

from gpu_fleet.core.config import LOCAL_ONLY
from gpu_fleet.core.errors import ConfigError

DEFAULT_FILE = "/etc/gpu-fleet/instance.toml"
DEFAULT_RUN_DIRECTORY = "/run/gpu-fleet"


def table() -> dict[str, Any]:
    """Return the whole file, empty if there is none; raises ConfigError if it cannot be read."""
    file = Path(os.environ.get("GPU_FLEET_INSTANCE_FILE", DEFAULT_FILE))
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error


def account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12
        return str(os.getuid())


def run_directory() -> Path:
    """Return the folder in which agent and trainer of an instance exchange files, such as the stop file."""
    return Path(os.environ.get("GPU_FLEET_RUN_DIR", DEFAULT_RUN_DIRECTORY))


def place_of_checkpoints(uri: str, owner: str, directory: Path) -> str:
    """Return the URI for a run's checkpoints: `uri`, else one in the stack's bucket; empty for none."""
    if uri:
        return "" if uri == LOCAL_ONLY else uri
    shared = str(table().get("checkpoint_uri", "")).rstrip("/")
    return f"{shared}/{owner or account()}/{run_id(directory)}" if shared else ""


def run_id(directory: Path) -> str:
    """Return the id of a run: its relative directory, or the last part of one that is absolute."""
    written = Path(os.path.normpath(directory))
    return directory.resolve().name if written.is_absolute() or ".." in written.parts else str(written)
