"""The wheels of trainer, agent and gate.

``python -m gpu_fleet_image.recipe.wheels`` resolves and locks them by hash.

There is one list for each base, with one wheel for each package: the one that the base's own Python would
choose. uv resolves for any base on any computer and downloads no wheel. The versions are those of the
development environment's locks.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from gpu_fleet_image.recipe import places
from gpu_fleet_image.recipe.errors import ImageError, LockError, RequirementError
from gpu_fleet_image.recipe.lock import with_values

PROJECT = places.PROJECT
_RECIPE = places.folder("image/gpu_fleet_image/recipe")
_LOCKFILE = _RECIPE / "versions.toml"
LOCAL = "debian-12"
PYTHONS = {LOCAL: (3, 11), "ubuntu-24.04": (3, 12)}
# The newest glibc that a base's wheels may need, as manylinux_2_N.
GLIBC = {LOCAL: 36, "ubuntu-24.04": 39}
_OLDEST_GLIBC = 5
_CONSTRAINTS = ("requirements.lock", "torch-pypi.lock")
CPU_TORCH = "torch-cpu.lock"
# PyPI has no CPU build of torch for Linux.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
REQUIREMENTS = ("training/requirements.txt", "image/requirements.txt")
# The users' tools: an environment of its own on top of the trainer's.
TOOLS, TOOLS_BASE = _RECIPE / "tools.txt", "ubuntu-24.04"
_TOOLS_HEADER = (
    "# Every wheel of the users' tools that the trainer's list lacks; "
    "`python -m gpu_fleet_image.recipe.wheels` writes this\n"
    "# from image/gpu_fleet_image/recipe/tools.txt, at the trainer's versions where both need a package.\n"
)
_HEADER = (
    "# Every wheel of the image's virtual environment; "
    "`python -m gpu_fleet_image.recipe.wheels` writes this from\n"
    f"# {' and '.join(REQUIREMENTS)}.\n"
)
_TORCH = {
    LOCAL: "# torch is the CPU build: this list is for local bakes.\n",
    "ubuntu-24.04": "# torch brings CUDA 13 and NCCL with it, so the machine has no CUDA of its own.\n",
}


def list_of(base: str) -> Path:
    """Return the list of a base's wheels."""
    return _RECIPE / "wheels" / f"{base}.txt"


LIST = list_of(LOCAL)


def requirement_files(project: Path = PROJECT) -> list[Path]:
    """Return the requirements files of the image's Python."""
    return [project / name for name in REQUIREMENTS if (project / name).is_file()]


def pins(text: str) -> dict[str, str]:
    """Return name -> version of the ``name==version`` lines of a requirements file or a list of wheels."""
    pairs = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}


def check_fresh(listing: Path, requirements: Iterable[str]) -> None:
    """Check the list of wheels against the requirements that it was made from.

    Raises LockError, which names every requirement that is missing or has another version in the list.
    """
    have = pins(listing.read_text(encoding="utf-8"))
    odd = [
        f"{name}=={version} (the list has {have.get(name, 'none')})"
        for text in requirements
        for name, version in pins(text).items()
        if have.get(name, "").split("+")[0] != version
    ]
    if odd:
        raise LockError(
            f"{listing.name}: made from other requirements: {', '.join(odd)}; "
            "run `python -m gpu_fleet_image.recipe.wheels`"
        )


def fetch(folder: Path, listing: Path = LIST) -> None:
    """Download every wheel of the list that the folder lacks, and check each against its hash.

    Raises:
        LockError: a wheel is not available or has another hash; the message is pip's.
        RequirementError: this Python is not the image's.
    """
    _require_python(LOCAL)
    folder.mkdir(parents=True, exist_ok=True)
    text = listing.read_text(encoding="utf-8")
    if hashes(text) <= {sha256(wheel) for wheel in folder.glob("*.whl")}:
        return
    torch, rest = re.findall(r"^torch==.*\n", text, re.MULTILINE), re.sub(r"(?m)^torch==.*\n", "", text)
    _pip(rest, folder)
    if not torch:
        return
    try:
        # a computer whose own index or folder has torch need not reach the PyTorch project's index
        _pip("".join(torch), folder)
    except LockError:
        _pip("".join(torch), folder, "--index-url", CPU_INDEX)


def lock(base: str, listing: Path | None = None, lockfile: Path = _LOCKFILE) -> str:
    """Resolve the requirements, write the list and its SHA-256 into the lockfile; return that hash.

    Raises LockError if there is no solution (the message is uv's), or a package has no wheel for the base.
    """
    listing = listing or list_of(base)
    packages = resolve(base)
    lines = [
        f"{package['name']}=={package['version']} --hash=sha256:{best(package, tags(base))}\n"
        for package in packages
    ]
    if base == LOCAL:
        lines = [line for line in lines if line.split("==")[0] not in pins(_text("torch-pypi.lock"))]
        lines.append(cpu_torch(_text(CPU_TORCH), PYTHONS[base]))
    text = _HEADER + _TORCH[base] + "".join(sorted(lines))
    listing.parent.mkdir(exist_ok=True)
    listing.write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    changed = with_values(lockfile.read_text(encoding="utf-8"), "python-wheels", base, {"sha256": digest})
    lockfile.write_text(changed, encoding="utf-8")
    return digest


def lock_tools(lockfile: Path = _LOCKFILE) -> str:
    """Lock the users' tools as ``lock`` does, without the packages that the trainer has.

    Raises:
        LockError: as in ``lock``; also where tools and trainer need different versions of a package.
    """
    own = pins(list_of(TOOLS_BASE).read_text(encoding="utf-8"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in own.items()))
        file.flush()
        packages = resolve(TOOLS_BASE, [TOOLS], [Path(file.name)])
    lines = [
        f"{package['name']}=={package['version']} --hash=sha256:{best(package, tags(TOOLS_BASE))}\n"
        for package in packages
        if canonicalize_name(package["name"]) not in own
    ]
    text = _TOOLS_HEADER + "".join(sorted(lines))
    list_of("tools").write_text(text, encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    changed = with_values(
        lockfile.read_text(encoding="utf-8"), "tools-wheels", TOOLS_BASE, {"sha256": digest}
    )
    lockfile.write_text(changed, encoding="utf-8")
    return digest


def resolve(
    base: str, requirements: Sequence[Path] = (), constraints: Sequence[Path] = ()
) -> Sequence[Mapping[str, Any]]:
    """Resolve requirements for a base; return the ``packages`` of a pylock.toml (PEP 751).

    Args:
        requirements, constraints: files; without them those of the trainer and the agent.

    Raises LockError as in ``lock``.
    """
    requirements = requirements or requirement_files()
    constraints = constraints or [PROJECT / name for name in _CONSTRAINTS]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pylock.toml"
        command = [
            *(str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-config"),
            *("--format", "pylock.toml", "--only-binary", ":all:", "--output-file", str(output)),
            *("--python-version", ".".join(map(str, PYTHONS[base]))),
            *("--python-platform", f"x86_64-manylinux_2_{GLIBC[base]}"),
            *(word for path in constraints for word in ("--constraint", str(path))),
            *map(str, requirements),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LockError(f"uv pip compile failed: {' '.join(done.stderr.split())[-600:]}")
        content: Sequence[Mapping[str, Any]] = tomllib.loads(output.read_text(encoding="utf-8"))["packages"]
    return content


def tags(base: str) -> list[Tag]:
    """Return the tags that a base's Python can install, the best first."""
    python = PYTHONS[base]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC[base], _OLDEST_GLIBC - 1, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    interpreter = f"cp{''.join(map(str, python))}"
    return [*cpython_tags(python, platforms=platforms), *compatible_tags(python, interpreter, platforms)]


def best(package: Mapping[str, Any], wanted: Sequence[Tag]) -> str:
    """Return SHA-256 of the wheel that an installer would choose.

    Raises:
        LockError: the package has no fitting wheel.
    """
    rank = {tag: place for place, tag in enumerate(wanted)}
    fitting = [
        (min(rank[tag] for tag in own & rank.keys()), wheel["hashes"]["sha256"])
        for wheel in package.get("wheels", ())
        if (own := parse_wheel_filename(unquote(wheel["url"].rsplit("/", 1)[-1]))[3]) & rank.keys()
    ]
    if not fitting:
        raise LockError(f"{package['name']}=={package['version']}: no wheel for this base")
    return str(min(fitting)[1])


def cpu_torch(text: str, python: tuple[int, int]) -> str:
    """Return the line of torch's CPU build for a Python. Raises LockError."""
    marker = re.escape(f"python_version == '{'.'.join(map(str, python))}'")
    version = re.search(
        rf"^(torch==\S+) ; {marker}[^\n]*\\\n\s+(--hash=sha256:[0-9a-f]{{64}})", text, re.MULTILINE
    )
    if version is None:
        raise LockError(f"{CPU_TORCH}: no torch for Python {'.'.join(map(str, python))}")
    return f"{version[1]} {version[2]}\n"


def _text(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def hashes(text: str) -> set[str]:
    """Return the hashes of a list of wheels."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def sha256(wheel: Path) -> str:
    """Return SHA-256 of a wheel's content, in hexadecimal."""
    with wheel.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_python(base: str) -> None:
    if sys.version_info[:2] != PYTHONS[base]:
        wanted, have = (".".join(map(str, version)) for version in (PYTHONS[base], sys.version_info[:2]))
        raise RequirementError(f"Python {have}: {base} has {wanted}, and wheels fit only one version")


def _pip(listing: str, into: Path, *options: str) -> None:
    """Download the wheels of a list, and check each against its hash.

    Raises:
        LockError: a wheel is not available; the message is pip's.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(listing)
        file.flush()
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary", ":all:", "--no-deps", "--require-hashes", "--find-links", str(into)),
            *("--dest", str(into), "--requirement", file.name, *options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise LockError(f"pip download failed: {' '.join(lines[-6:])}")


def main() -> int:
    """Lock the wheels of every base, then those of the tools; return 1, after one line, if that fails."""
    for name in (*PYTHONS, "tools"):
        try:
            digest = lock_tools() if name == "tools" else lock(name)
        except ImageError as error:
            sys.stderr.write(f"error: {name}: {error}\n")
            return 1
        sys.stdout.write(f"{list_of(name)}: sha256 {digest}, written to {_LOCKFILE.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
