"""Commands that are work while they run: launchers, submitted runs, copies, builds, tasks of Ray. Pure."""

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
# What runs a script, whose name the kernel then shows as the next word that is no option.
_INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|julia|java|lua|bash|sh|dash|ash|zsh|ksh|fish|ld-linux.*)[\d.]*t?"
)
# What runs a module by ``-m``; `grep -m` and `git commit -m` run none. Of other names a Python may have:
# python3.12-dbg, pypy3, ipython.
_RUNS_MODULES = re.compile(r"i?(?:python|pypy|graalpy)[\w.-]*|uv|coverage|kernprof|scalene|viztracer|debugpy")
# What may stand before it. What else starts a Python starts a process of its own, which is seen by itself.
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
# ``gpu-fleet submit`` (rootfs/etc/systemd/system/gpu-run@.service): any command may run below it
_SUBMITTED = ("-m", "gpu_fleet", "work")
_BUILDERS = frozenset({"docker", "docker-buildx", "podman", "buildah", "buildctl", "nerdctl"})
_BUILD_WORDS = frozenset({"build", "buildx", "bake", "bud"})
_FIRST_WORDS = 4  # `docker --context x buildx build`: global flags may stand before the word
# A worker of Ray calls itself after what it runs; these run nothing (seen of Ray 2.5x, and its source,
# python/ray/_private/workers and ray_constants.py).
_RAY_AT_REST = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
_RAY_COMMANDS = frozenset({"job", "submit", "exec"})
# Of any language's kernel; jupyter_client names the file so.
CONNECTION_FILE = re.compile(r"(?:.*/)?kernel-(?P<id>[\w-]+)\.json")


def is_watched(command: Sequence[str], words: frozenset[str] = frozenset()) -> bool:
    """Whether a command is work while it runs: a launcher, a submitted run, a copy, a build, a task of Ray.

    Args:
        command: the arguments, the program first.
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
        # "slurmstepd: [12.0]" is a step of a job; the other, "slurmstepd infinity", only holds the cgroup
        or names[0] == "slurmstepd:"
        or (names[0] in _BUILDERS and bool(_BUILD_WORDS.intersection(command[1 : 1 + _FIRST_WORDS])))
    )


def is_launcher(command: Sequence[str]) -> bool:
    """Whether a command starts the ranks of a job."""
    modules = _modules(command[:6])  # a debugger, or what measures coverage, may stand before the module
    return bool(LAUNCHERS.intersection(_names(command))) or any(
        module.startswith(_LAUNCHER_MODULES) for module in modules
    )


def is_trainer(command: Sequence[str]) -> bool:
    """Whether a command trains: a launcher, or this project's own trainer."""
    return "gpu_fleet" in _modules(command) or is_launcher(command)


def kernel_id(command: Sequence[str]) -> str | None:
    """The id of a notebook's kernel, or None for any other command."""
    files = (word for word in command if word.endswith(".json"))
    return next((match["id"] for word in files if (match := CONNECTION_FILE.fullmatch(word))), None)


def _modules(command: Sequence[str]) -> list[str]:
    """The modules that a Python runs by ``-m``, behind a wrapper or shell too; none of another program."""
    names = [base_name(word) for word in command]
    first = names[0] if names else ""
    if first not in WRAPPERS and not _INTERPRETER.fullmatch(first) and not _RUNS_MODULES.fullmatch(first):
        return []
    python = next((at for at, name in enumerate(names) if _RUNS_MODULES.fullmatch(name)), len(names))
    return [after for word, after in pairwise(command[python:]) if _MODULE_OPTION.fullmatch(word)]


def _names(command: Sequence[str]) -> list[str]:
    """The program's name, and its script's: `python3 /opt/venv/bin/torchrun ...` is torchrun too.

    What `vim torchrun` edits is none. A process that gave itself a title has all of it in the first word.
    """
    if not command or command[0].startswith("-"):
        return []
    if command[0].startswith("slurmstepd"):
        return [base_name(command[0].split(" ")[0])]
    script = _script(command)
    return [base_name(command[0]), *([base_name(script)] if script else [])]


def _script(command: Sequence[str]) -> str:
    """The file that an interpreter runs; empty for any other program, and where it runs none."""
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
    """A program without its folder."""
    return word.rstrip("/").rpartition("/")[2]
