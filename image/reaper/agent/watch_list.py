"""Programs whose mere presence is work, told by their command line. Pure.

A Python process with a CUDA context is no such program: an open notebook holds one for days. The process
table looks whether it gets on.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate"})
LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
BUILDERS = frozenset({"docker", "docker-buildx", "podman", "buildah", "buildctl", "nerdctl"})
BUILD_WORDS = frozenset({"build", "buildx", "bake", "bud"})
FIRST_WORDS = 4  # `docker --context x buildx build`: global flags may stand before the word


def is_watched(command: Sequence[str]) -> bool:
    """Whether a command is a launcher of training, a copy or an image build.

    Args:
        command: the arguments, the program first.
    """
    names = _names(command)
    if not names:
        return False
    if LAUNCHERS.intersection(names) or _runs_module(command):
        return True
    if names[0] == "rsync":
        return "--daemon" not in command
    return names[0] in BUILDERS and bool(BUILD_WORDS.intersection(command[1 : 1 + FIRST_WORDS]))


def is_trainer(command: Sequence[str]) -> bool:
    """Whether a command trains: a launcher, or this project's own trainer."""
    own = any(word == "-m" and after == "gpu_fleet" for word, after in pairwise(command))
    return own or bool(LAUNCHERS.intersection(_names(command))) or _runs_module(command)


def is_jupyter_kernel(command: Sequence[str]) -> bool:
    """Whether a command is a notebook's kernel."""
    return any("ipykernel" in word for word in command[:4])


def _names(command: Sequence[str]) -> list[str]:
    """The program's name, and the next word's: `python3 /opt/venv/bin/torchrun ...` is torchrun too."""
    return [PurePath(word).name for word in command[:2]]


def _runs_module(command: Sequence[str]) -> bool:
    return any(word == "-m" and after in LAUNCHER_MODULES for word, after in pairwise(command))
