"""Paths of the reaper's files on an instance; environment variables move them for tests and rehearsal."""

import os
from pathlib import Path


def instance_file() -> Path:
    """Return the path of the stack's declaration of the instance (``GPU_FLEET_INSTANCE_FILE``)."""
    return Path(os.environ.get("GPU_FLEET_INSTANCE_FILE", "/etc/gpu-fleet/instance.toml"))


def run_dir() -> Path:
    """Return the folder of agent's and gate's reports, which only root writes (``GPU_FLEET_RUN_DIR``)."""
    return Path(os.environ.get("GPU_FLEET_RUN_DIR", "/run/gpu-fleet"))


def activity_file() -> Path:
    """Return the path of the agent's newest judgement."""
    return run_dir() / "activity.json"


def agent_socket() -> Path:
    """Return the path of the agent's socket for users' ``keep``, ``release``, ``status`` and ``explain``."""
    return run_dir() / "agent.sock"


def ready_file() -> Path:
    """Return the path of the gate's report of this boot."""
    return run_dir() / "ready.json"


def passed_file() -> Path:
    """Return the path of a file that lets trainers start (``trainer@.service``): the gate passed."""
    return run_dir() / "ready"


def users_file() -> Path:
    """Return the path of the list of users seen since boot, one word each (``User``)."""
    return run_dir() / "users"


def gpus_file() -> Path:
    """Return the path of users' reservations of the instance's GPUs (``gpu-fleet gpu``)."""
    return run_dir() / "gpus.json"


def stop_file() -> Path:
    """Return the path of a file whose presence asks the trainer to save and end.

    Its one line is the reason.
    """
    return run_dir() / "stop"


def closed_file() -> Path:
    """Return the path of a file that blocks ``gpu-fleet train launch``: the instance is being terminated."""
    return run_dir() / "closed"


def nologin_file() -> Path:
    """Return the path of a file whose presence makes ``pam_nologin`` refuse users, with its text.

    It is ``/run/nologin`` on an instance.
    """
    return run_dir().parent / "nologin"
