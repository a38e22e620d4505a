"""The wheels of trainer, agent and gate: ``python -m image.wheels`` resolves and locks them by hash.

One list a base, each made with the Python of that base: markers and tags are those of whoever resolves.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from image.errors import ImageError, LockError, RequirementError

PROJECT = Path(__file__).resolve().parents[1]
LOCKFILE = PROJECT / "image" / "versions.toml"
LOCAL = "debian-12"
PYTHONS = {LOCAL: (3, 11), "ubuntu-24.04": (3, 12)}
REQUIREMENTS = ("training/requirements.txt", "image/reaper/requirements.txt")
HEADER = (
    "# Every wheel of the image's virtual environment; `python -m image.wheels` writes this from\n"
    f"# {' and '.join(REQUIREMENTS)}.\n"
)
TORCH = {
    LOCAL: "# torch is the CPU build: this list is for local bakes.\n",
    "ubuntu-24.04": "# torch brings CUDA 13 and NCCL with it, so the machine has no CUDA of its own.\n",
}


def list_of(base: str) -> Path:
    """The list of a base's wheels."""
    return PROJECT / "image" / "wheels" / f"{base}.txt"


LIST = list_of(LOCAL)


def requirement_files(project: Path = PROJECT) -> list[Path]:
    """What the image's Python needs, as its rooms pin it."""
    return [project / name for name in REQUIREMENTS if (project / name).is_file()]


def pins(text: str) -> dict[str, str]:
    """Name -> version of the ``name==version`` lines of a requirements file or a list of wheels."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def check_fresh(listing: Path, requirements: Iterable[str]) -> None:
    """Hold the list of wheels against the requirements it was made from.

    Raises:
        LockError: naming every requirement that the list lacks or has in another version.
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
            f"{listing.name}: made from other requirements: {', '.join(odd)}; run `python -m image.wheels`"
        )


def fetch(folder: Path, listing: Path = LIST) -> None:
    """Download every wheel of the list that is not in the folder yet, each held against its hash.

    Raises:
        LockError: pip's words when a wheel is not to be had, or is another one.
        RequirementError: this Python is not the image's.
    """
    _require_python(LOCAL)
    folder.mkdir(parents=True, exist_ok=True)
    if hashes(listing.read_text(encoding="utf-8")) <= {sha256(wheel) for wheel in folder.glob("*.whl")}:
        return
    _pip(
        "--no-deps",
        "--require-hashes",
        "--find-links",
        str(folder),
        "--requirement",
        str(listing),
        into=folder,
    )


def base_of(version: tuple[int, int]) -> str:
    """The base whose Python this is.

    Raises:
        RequirementError: none has it.
    """
    found = [base for base, python in PYTHONS.items() if python == version]
    if not found:
        known = ", ".join(f"{'.'.join(map(str, python))} of {base}" for base, python in PYTHONS.items())
        raise RequirementError(f"Python {'.'.join(map(str, version))}: wheels are made for one; use {known}")
    return found[0]


def lock(base: str, listing: Path | None = None, lockfile: Path = LOCKFILE) -> str:
    """Resolve the requirements, write the list and its SHA-256 into the lockfile; returns that hash.

    Raises:
        LockError: pip's words when there is no solution.
        RequirementError: this Python is not the base's.
    """
    listing = listing or list_of(base)
    _require_python(base)
    with tempfile.TemporaryDirectory() as folder:
        options = [word for file in requirement_files() for word in ("--requirement", str(file))]
        _pip(*options, into=Path(folder))
        text = HEADER + TORCH[base] + "".join(sorted(_line(wheel) for wheel in Path(folder).glob("*.whl")))
    listing.parent.mkdir(exist_ok=True)
    listing.write_text(text, encoding="utf-8")
    found = hashlib.sha256(text.encode()).hexdigest()
    lockfile.write_text(with_hash(lockfile.read_text(encoding="utf-8"), base, found), encoding="utf-8")
    return found


def with_hash(lockfile: str, base: str, found: str) -> str:
    """The lockfile's text with another hash for a base's list.

    Raises:
        LockError: the lockfile has no table for it.
    """
    table = f'[python-wheels."{base}"]'
    changed, count = re.subn(
        rf'(?s)({re.escape(table)}\n.*?\nsha256 = )"[^"]*"', rf'\1"{found}"', lockfile, count=1
    )
    if count == 0:
        raise LockError(f"versions.toml: {table} with a sha256 is missing")
    return changed


def hashes(text: str) -> set[str]:
    """The hashes of a list of wheels."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def sha256(wheel: Path) -> str:
    """Of a wheel's content, in hexadecimal."""
    with wheel.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(wheel: Path) -> str:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return f"{name}=={version} --hash=sha256:{sha256(wheel)}\n"


def _require_python(base: str) -> None:
    if base_of(sys.version_info[:2]) != base:
        wanted, have = (".".join(map(str, version)) for version in (PYTHONS[base], sys.version_info[:2]))
        raise RequirementError(f"Python {have}: {base} has {wanted}, and wheels are made for one")


def _pip(*options: str, into: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary",
        ":all:",
        "--dest",
        str(into),
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise LockError(f"pip download failed: {' '.join(lines[-6:])}")


def main() -> int:
    """Lock the wheels of the base whose Python runs this; exit status 1 and one line when that cannot be."""
    try:
        base = base_of(sys.version_info[:2])
        found = lock(base)
    except ImageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{list_of(base)}: sha256 {found}, written to {LOCKFILE.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
