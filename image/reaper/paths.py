"""Where the reaper's files lie on a machine; the environment moves them for tests and rehearsal."""

import os
from pathlib import Path


def instance_file() -> Path:
    """What the stack tells the machine about itself (``GPU_FLEET_INSTANCE_FILE``)."""
    return Path(os.environ.get("GPU_FLEET_INSTANCE_FILE", "/etc/gpu-fleet/instance.toml"))


def run_dir() -> Path:
    """Folder of what agent and trainer tell one another (``GPU_FLEET_RUN_DIR``)."""
    return Path(os.environ.get("GPU_FLEET_RUN_DIR", "/run/gpu-fleet"))


def replace_text(path: Path, text: str) -> None:
    """Write a file at once, so that nobody reads half of it.

    Args:
        path: of the file; its folder must be there.
        text: all of it.

    Raises:
        OSError: when it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def activity_file() -> Path:
    """The agent's newest judgement."""
    return run_dir() / "activity.json"


def stop_file() -> Path:
    """Its presence asks the trainer to save and end; its one line says why."""
    return run_dir() / "stop"
