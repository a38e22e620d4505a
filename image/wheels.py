"""The wheels of trainer, agent and gate: ``python -m image.wheels`` resolves and locks them by hash."""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from image.errors import LockError, RequirementError

PROJECT = Path(__file__).resolve().parents[1]
LOCKFILE = PROJECT / "image" / "versions.toml"
TABLE = '[python-wheels."debian-12"]'
LIST = PROJECT / "image" / "wheels" / "debian-12.txt"
REQUIREMENTS = ("training/requirements.txt", "image/reaper/requirements.txt")
PYTHON = (3, 11)  # of Debian 12
HEADER = (
    "# Every wheel of the image's virtual environment; `python -m image.wheels` writes this from\n"
    f"# {' and '.join(REQUIREMENTS)}. torch is the CPU build: this list is for local bakes.\n"
)


def requirement_files(project: Path = PROJECT) -> list[Path]:
    """What the image's Python needs, as its rooms pin it."""
    return [project / name for name in REQUIREMENTS if (project / name).is_file()]


def pins(text: str) -> dict[str, str]:
    """Name -> version of the ``name==version`` lines of a requirements file or a list of wheels."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def check_fresh(locked: str, requirements: Iterable[str]) -> None:
    """Hold the list of wheels against the requirements it was made from.

    Raises:
        LockError: naming every requirement that the list lacks or has in another version.
    """
    have = pins(locked)
    odd = [
        f"{name}=={version} (the list has {have.get(name, 'none')})"
        for text in requirements
        for name, version in pins(text).items()
        if have.get(name, "").split("+")[0] != version
    ]
    if odd:
        raise LockError(
            f"{LIST.name}: made from other requirements: {', '.join(odd)}; run `python -m image.wheels`"
        )


def fetch(folder: Path, listing: Path = LIST) -> None:
    """Download every wheel of the list that is not in the folder yet, each held against its hash by pip.

    Raises:
        LockError: pip's words when a wheel is not to be had, or is another one.
        RequirementError: this Python is not the image's.
    """
    _require_python()
    folder.mkdir(parents=True, exist_ok=True)
    _pip(
        "--no-deps",
        "--require-hashes",
        "--find-links",
        str(folder),
        "--requirement",
        str(listing),
        into=folder,
    )


def lock(listing: Path = LIST, lockfile: Path = LOCKFILE) -> str:
    """Resolve the requirements, write the list and its SHA-256 into the lockfile; returns that hash.

    Raises:
        LockError: pip's words when there is no solution.
    """
    _require_python()
    with tempfile.TemporaryDirectory() as folder:
        options = [word for file in requirement_files() for word in ("--requirement", str(file))]
        _pip(*options, into=Path(folder))
        text = HEADER + "".join(sorted(_line(wheel) for wheel in Path(folder).glob("*.whl")))
    listing.parent.mkdir(exist_ok=True)
    listing.write_text(text, encoding="utf-8")
    found = hashlib.sha256(text.encode()).hexdigest()
    lockfile.write_text(with_hash(lockfile.read_text(encoding="utf-8"), found), encoding="utf-8")
    return found


def with_hash(lockfile: str, found: str) -> str:
    """The lockfile's text with another hash for this list.

    Raises:
        LockError: the lockfile has no table for it.
    """
    changed, count = re.subn(
        rf'(?s)({re.escape(TABLE)}\n.*?\nsha256 = )"[^"]*"', rf'\1"{found}"', lockfile, count=1
    )
    if count == 0:
        raise LockError(f"versions.toml: {TABLE} with a sha256 is missing")
    return changed


def _line(wheel: Path) -> str:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    return f"{name}=={version} --hash=sha256:{found}\n"


def _require_python() -> None:
    if sys.version_info[:2] != PYTHON:
        wanted, have = (".".join(map(str, version[:2])) for version in (PYTHON, sys.version_info))
        raise RequirementError(
            f"Python {have}: the image has Debian 12's {wanted}, and wheels are made for one"
        )


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


if __name__ == "__main__":
    sys.stdout.write(f"{LIST}: sha256 {lock()}, written to {LOCKFILE.name}\n")
