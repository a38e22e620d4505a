"""Where the reaper's files lie on an instance; the environment moves them for tests and rehearsal."""

import os
from pathlib import Path


def instance_file() -> Path:
    """What the stack declares about the instance (``GPU_FLEET_INSTANCE_FILE``)."""
    return Path(os.environ.get("GPU_FLEET_INSTANCE_FILE", "/etc/gpu-fleet/instance.toml"))


def run_dir() -> Path:
    """What agent and gate report to trainers and users; root alone writes it (``GPU_FLEET_RUN_DIR``)."""
    return Path(os.environ.get("GPU_FLEET_RUN_DIR", "/run/gpu-fleet"))


def activity_file() -> Path:
    """The agent's newest judgement."""
    return run_dir() / "activity.json"


def agent_socket() -> Path:
    """Where the agent takes users' ``keep``, ``release``, ``status`` and ``explain``."""
    return run_dir() / "agent.sock"


def ready_file() -> Path:
    """The gate's report of this boot."""
    return run_dir() / "ready.json"


def passed_file() -> Path:
    """Its presence lets trainers start (``trainer@.service``): the gate passed."""
    return run_dir() / "ready"


def users_file() -> Path:
    """Who was seen since boot, a word each (``User``)."""
    return run_dir() / "users"


def gpus_file() -> Path:
    """Who reserved which of the instance's GPUs (``gpu-fleet gpu``)."""
    return run_dir() / "gpus.json"


def stop_file() -> Path:
    """Its presence asks the trainer to save and end; its one line says why."""
    return run_dir() / "stop"


def closed_file() -> Path:
    """With it ``gpu-fleet train launch`` starts nothing: the instance is being terminated."""
    return run_dir() / "closed"


def nologin_file() -> Path:
    """Its presence makes ``pam_nologin`` refuse users, with its text: ``/run/nologin`` on an instance."""
    return run_dir().parent / "nologin"
