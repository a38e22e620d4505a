"""The development environment, every package held by hash: `environment.py install|lock|show FOLDER`.

`make` calls both with the Python of `.venv`. torch is separate: a computer without an NVIDIA GPU gets the CPU
build, a tenth of the CUDA one, from the PyTorch project's index, or from where pip is configured to look;
PyPI lacks it. Modules are compiled at their first import: to compile all at once took half of the set-up's
time.
"""

import os
import platform
import re
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
SITE = Path(sysconfig.get_path("purelib"))
LOCK, TORCH_PYPI, TORCH_CPU = "requirements.lock", "torch-pypi.lock", "torch-cpu.lock"
# The lock of each environment, and its sources.
REQUIREMENTS = {
    LOCK: (
        "requirements.txt",
        "training/requirements.txt",
        "image/requirements.txt",
        "tests/requirements.txt",
    ),
    "stacks/gpu_fleet_stacks/crossguard/requirements.lock": (
        "stacks/gpu_fleet_stacks/crossguard/requirements.txt",
    ),
    # installed beside the first environment's packages, whose versions it keeps
    "tests/libraries/requirements.lock": ("tests/libraries/requirements.txt",),
    # the site's, over the first
    "docs/requirements.lock": ("docs/requirements.txt",),
}
OLDEST_PYTHON = "3.11"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_S = 5
# pip's message for a file that differs from the locked one: a user has to look into it.
MISMATCH = "DO NOT MATCH THE HASHES"
DRIVER = Path("/proc/driver/nvidia/version")
# Packages that only torch needs, where it comes with CUDA.
CUDA = re.compile(r"(torch|triton|cuda-[a-z0-9-]+|nvidia-(?!ml-py)[a-z0-9-]+)==")

Source = tuple[str, tuple[str, ...]]  # in words, and pip's options
CPU_BUILD: Source = ("the CPU build, from download.pytorch.org", ("--index-url", CPU_INDEX, "-r", TORCH_CPU))
CPU_ELSEWHERE: Source = ("the CPU build, from where pip's configuration looks", ("-r", TORCH_CPU))
FROM_PYPI: Source = ("PyPI's build, on Linux with 2.5 GB of CUDA", ("-r", TORCH_PYPI))


def torch_sources(system: str, processor: str, gpu: bool, reachable: Callable[[], bool]) -> list[Source]:
    """Return the sources of torch, in the order to try. PyPI's build has no CUDA on macOS and Windows."""
    if gpu or (system, processor) != ("Linux", "x86_64"):
        return [FROM_PYPI]
    return [CPU_BUILD, FROM_PYPI] if reachable() else [CPU_ELSEWHERE, FROM_PYPI]


def index_answers() -> bool:
    """Return whether the PyTorch project's index answers; one try of five seconds."""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/", timeout=PROBE_S):  # noqa: S310 - https above
            return True
    except OSError:
        say(f"{CPU_INDEX} cannot be reached")
        return False


def say(text: str) -> None:
    """Write one line for the user who sets the environment up."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def pip(*options: str) -> str:
    """Install by these options; return pip's errors, or an empty text."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-compile", *options]
    done = subprocess.run(command, cwd=TOP, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if line and not line.startswith("WARNING")]
    return "\n".join(errors[-12:]) or f"pip ended with {done.returncode}"


def install() -> int:
    """Bring this Python's environment to the state in the locks."""
    error = pip("--require-hashes", "-r", LOCK) or install_torch()
    error = error or pip("--no-build-isolation", "--editable", ".")
    if error:
        say(error)
        return 1
    show_trainer(SITE)
    return 0


def show_trainer(site: Path) -> None:
    """Let type checkers and editors find ``gpu_fleet`` from any folder.

    They run no import hook, which is all that an installation in place leaves, but they read a path in a
    ``.pth`` file. Its folder holds only the trainer, so that it shadows no user's `image`, `stacks` or
    `tests`.
    """
    (site / "gpu_fleet_trainer.pth").write_text(f"{TOP / 'training'}\n", encoding="utf-8")


def show_packages(environment: Path) -> int:
    """Let a virtual environment import the packages of this one, after its own."""
    python = environment / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "gpu_fleet_packages.pth").write_text(f"{SITE}\n", encoding="utf-8")
    return 0


def install_torch() -> str:
    """Install the first available build of torch; return the error of none, or of a differing wheel."""
    error = ""
    for words, options in torch_sources(
        platform.system(), platform.machine(), DRIVER.exists(), index_answers
    ):
        error = pip("--require-hashes", *options)
        if not error:
            say(f"torch: {words}")
        if not error or MISMATCH in error:
            break
        say(f"torch: not {words}: {error.splitlines()[-1]}")
    return error


def lock() -> int:
    """Resolve the requirements again, for every platform and Python, and the wheels of each image.

    Versions that still fit stay.
    """
    uv = Path(sys.executable).with_name("uv")
    for target, sources in REQUIREMENTS.items():
        command = [str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON]
        command += [
            "--generate-hashes",
            "--annotation-style",
            "line",
            "--custom-compile-command",
            "make lock",
        ]
        subprocess.run([*command, "--output-file", target, *sources], cwd=TOP, check=True, env=_environment())
        split(TOP / target, TOP / TORCH_PYPI if target == LOCK else Path(os.devnull))
    return subprocess.run(
        [sys.executable, "-m", "gpu_fleet_image.recipe.wheels"], cwd=TOP, check=False
    ).returncode


def split(listing: Path, torch: Path) -> None:
    """Move torch, and the packages that only it needs, out of a lock into one of its own."""
    head, *blocks = re.split(r"^(?=[a-z0-9])", listing.read_text(encoding="utf-8"), flags=re.MULTILINE)
    listing.write_text(head + "".join(block for block in blocks if not CUDA.match(block)), encoding="utf-8")
    torch.write_text(head + "".join(block for block in blocks if CUDA.match(block)), encoding="utf-8")


def _environment() -> dict[str, str]:
    """Return an environment in which only PyPI is used, whatever the computer's own configuration is."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UV_")} | {
        "UV_NO_CONFIG": "1"
    }


if __name__ == "__main__":
    if sys.argv[1] == "show":
        sys.exit(show_packages(Path(sys.argv[2])))
    sys.exit({"install": install, "lock": lock}[sys.argv[1]]())
