"""What the stack wrote for this instance: /etc/gpu-fleet/instance.toml. Other computers have none."""

import getpass
import os
import tomllib
from pathlib import Path
from typing import Any

from gpu_fleet.config import LOCAL_ONLY
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


def place_of_checkpoints(uri: str, owner: str, directory: Path) -> str:
    """Where a run in `directory` keeps its checkpoints, empty for nowhere; `uri` and `owner` may be empty."""
    if uri:
        return "" if uri == LOCAL_ONLY else uri
    shared = str(table().get("checkpoint_uri", "")).rstrip("/")
    return f"{shared}/{owner or account()}/{run_id(directory)}" if shared else ""


def run_id(directory: Path) -> str:
    """Which of its owner's runs one is: its directory as it is written, so that a/run is not b/run.

    Of an absolute path the last part: on another instance the same run may lie on another disk.
    """
    written = Path(os.path.normpath(directory))
    return directory.resolve().name if written.is_absolute() or ".." in written.parts else str(written)
