"""Commands that count as activity: launchers, submitted runs, copies, builds, tasks of Ray. Pure."""

import re
from collections.abc import Sequence
from itertools import pairwise

LAUNCHERS = frozenset(
    {
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "horovodrun", "colossalai", "composer"),
        # Open MPI 4 and 5 with their daemons on the other nodes, MPICH and Intel MPI with theirs, Slurm's
        *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prun", "prted"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "srun", "salloc", "sbatch"),
    }
)
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.", "horovod.runner")
# Interpreters: the kernel shows their script's name as the next word that is no option.
_INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|julia|java|lua|bash|sh|dash|ash|zsh|ksh|fish|ld-linux.*)[0-9.]*t?"
)
# Programs that run a module by ``-m``; `grep -m` and `git commit -m` run none. Python has other names, too:
# python3.12-dbg, pypy3, ipython.
_RUNS_MODULES = re.compile(r"i?(?:python|pypy|graalpy)[\w.-]*|uv|coverage|kernprof|scalene|viztracer|debugpy")
# Programs that may stand before it. Any other starts Python as a process of its own, which is seen by itself.
WRAPPERS = frozenset(
    {
        *("env", "nice", "ionice", "chrt", "nohup", "setsid", "stdbuf", "timeout", "time", "taskset"),
        *("numactl", "sudo", "runuser", "systemd-run", "systemd-inhibit", "flock", "xvfb-run", "tini"),
        *("dumb-init", "ssh", "conda", "mamba", "micromamba", "pixi", "poetry", "pdm", "hatch", "pipenv"),
        *("apptainer", "singularity", "nsys", "ncu", "nvprof", "rocprof", "perf", "py-spy", "strace"),
        *("ltrace", "gdb", "cuda-gdb", "valgrind", "compute-sanitizer"),
    }
)
_MODULE_OPTION = re.compile("-[A-Za-z]*m")  # `python -um torch.distributed.run`
_OPTIONS_WITH_A_VALUE = frozenset({"-X", "-W", "-o", "--rcfile", "--init-file"})  # of Python and shells
# ``gpu-fleet submit`` (rootfs/etc/systemd/system/gpu-run@.service): it may start any command
_SUBMITTED = ("-m", "gpu_fleet", "work")
_BUILDERS = frozenset({"docker", "docker-buildx", "podman", "buildah", "buildctl", "nerdctl"})
_BUILD_WORDS = frozenset({"build", "buildx", "bake", "bud"})
_FIRST_WORDS = 4  # `docker --context x buildx build`: global flags may stand before the word
# A worker of Ray takes its task's name; these workers run no task (seen in Ray 2.5x, and its source,
# python/ray/_private/workers and ray_constants.py).
_RAY_AT_REST = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_RAY_COMMANDS = frozenset({"job", "submit", "exec"})
# Of any language's kernel; jupyter_client names the file like this.
CONNECTION_FILE = re.compile(r"(?:.*/)?kernel-(?P<id>[\w-]+)\.json")


def is_watched(command: Sequence[str], words: frozenset[str] = frozenset()) -> bool:
    """Return whether a command counts as activity while it runs: a launcher, run, copy, build or task of Ray.

    Args:
        words: program names that the stack adds (``idle.watch``).
    """
    names = _names(command)
    if not names:
        return False
    return (
        bool(words.intersection(names))
        or is_launcher(command)
        or tuple(command[1:4]) == _SUBMITTED
        or (names[0] == "rsync" and "--daemon" not in command)
        or (names[0].startswith("ray::") and not command[0].startswith(_RAY_AT_REST))
        or ("ray" in names and bool(_RAY_COMMANDS.intersection(command[1:3])))
        # "slurmstepd: [12.0]" is a step of a job; "slurmstepd infinity" only holds the cgroup
        or names[0] == "slurmstepd:"
        or (names[0] in _BUILDERS and bool(_BUILD_WORDS.intersection(command[1 : 1 + _FIRST_WORDS])))
    )


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether a command starts the ranks of a job."""
    modules = _modules(command[:6])  # a debugger or a coverage tool may stand before the module
    return bool(LAUNCHERS.intersection(_names(command))) or any(
        module.startswith(_LAUNCHER_MODULES) for module in modules
    )


def is_trainer(command: Sequence[str]) -> bool:
    """Return whether a command trains: a launcher, or this project's own trainer."""
    return "gpu_fleet" in _modules(command) or is_launcher(command)


def kernel_id(command: Sequence[str]) -> str | None:
    """Return the id of a notebook's kernel, or None for any other command."""
    files = (word for word in command if word.endswith(".json"))
    return next((match["id"] for word in files if (match := CONNECTION_FILE.fullmatch(word))), None)


def _modules(command: Sequence[str]) -> list[str]:
    """Return the modules that Python runs by ``-m``, also behind a wrapper or shell; else an empty list."""
    names = [base_name(word) for word in command]
    first = names[0] if names else ""
    if first not in WRAPPERS and not _INTERPRETER.fullmatch(first) and not _RUNS_MODULES.fullmatch(first):
        return []
    python = next((at for at, name in enumerate(names) if _RUNS_MODULES.fullmatch(name)), len(names))
    return [after for word, after in pairwise(command[python:]) if _MODULE_OPTION.fullmatch(word)]


def _names(command: Sequence[str]) -> list[str]:
    """Return the program's name and its script's: `python3 /opt/venv/bin/torchrun ...` is torchrun too.

    A file that `vim torchrun` edits is none. A process with its own title has all of it in the first word.
    """
    if not command or command[0].startswith("-"):
        return []
    if command[0].startswith("slurmstepd"):
        return [base_name(command[0].split(" ")[0])]
    script = _script(command)
    return [base_name(command[0]), *([base_name(script)] if script else [])]


def _script(command: Sequence[str]) -> str:
    """Return the file that an interpreter runs; empty for any other program, or without a file."""
    if _INTERPRETER.fullmatch(base_name(command[0])) is None:
        return ""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return word
        if word == "-c" or _MODULE_OPTION.fullmatch(word):
            return ""
        if word in _OPTIONS_WITH_A_VALUE:
            next(words, None)
    return ""


def base_name(word: str) -> str:
    """Return a program's name without its folder."""
    return word.rstrip("/").rpartition("/")[2]
