"""Source of an instance as one tarball: the recipe, its lists, and the Python modules of the instance.

Its name is its hash. So a bake on a cloud runs exactly what was baked here, and an instance that boots
another image runs exactly what its stack was made from.
"""

import hashlib
import io
import re
import subprocess
import tarfile
import tomllib
import zlib
from fnmatch import fnmatch
from pathlib import Path

from gpu_fleet_image.recipe import lock, places, vendored
from gpu_fleet_image.recipe.errors import PayloadError

PROJECT = places.PROJECT
SCRIPTS = ("provision.sh", "bootstrap.py", "lib.sh", "sbom.py")
FOLDERS = ("steps", "rootfs", "wheels", "keys")
# Modules of the project that run on the instance; image/gpu_fleet_image/recipe is for the builder.
PYTHON = (
    "training/gpu_fleet",
    "training/gpu_fleet_jobs",
    "image/gpu_fleet_image/console",
    "image/gpu_fleet_image/controllers",
    "image/gpu_fleet_image/core",
    "image/gpu_fleet_image/instance",
    "image/gpu_fleet_image/providers",
    "image/gpu_fleet_image/slurm",
)
MODULES = ("gpu_fleet_image/__init__.py",)
DIGEST = "payload.sha256"
# The project's files where there is no git: nothing else in its folders leaves the computer. A test checks
# every tracked file against them.
PATTERNS = (
    *("*.py", "*.sh", "*.toml", "*.txt", "py.typed", "README.md", "steps/ORDER", "keys/*.asc"),
    *("rootfs/etc/*", "rootfs/opt/gpu-fleet/bin/*", "rootfs/usr/libexec/gpu-fleet/*"),
    *("rootfs/usr/local/bin/*", "rootfs/usr/share/*"),
)
NEVER = (".*", "*~", "*.env", "*.key", "*.pem", "*.orig", "*.swp")  # names, in any folder
PROGRAMS = re.compile(r".*\.sh|rootfs/.*/(libexec|bin)/.*")
# RFC 1952: deflate, no name, no time, no operating system
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

Files = dict[str, bytes]


def assemble(project: Path = PROJECT, target: str = "qemu") -> Files:
    """Return every file of the payload: path -> content, with its own digest.

    Args:
        target: the target whose packages are added, see ``vendored.packages``.

    Raises:
        PayloadError: steps/ORDER and the steps differ, or git does not list the project's files.
        LockError: the lockfile is wrong, or a wheel is not available.
    """
    image = places.folder("image/gpu_fleet_image/recipe", project)
    check_steps(image / "steps")
    files = {name: (image / name).read_bytes() for name in SCRIPTS}
    for folder in FOLDERS:
        files |= _below(project, f"image/gpu_fleet_image/recipe/{folder}", folder)
    files |= {f"python/{name}": (image.parents[1] / name).read_bytes() for name in MODULES}
    files |= {f"vendor/{name}": content for name, content in vendored.packages(target).items()}
    for folder in PYTHON:
        files |= _below(project, folder, f"python/{folder.partition('/')[2]}")
    files |= _below(project, "training/examples", "examples")
    artefacts = lock.load(image / "versions.toml")
    for base in lock.BASES:
        files[f"versions/{base}.tsv"] = lock.tsv(artefacts, base).encode()
        files[f"packages/{base}.tsv"] = packages_tsv(image / "packages.toml", base).encode()
    files[DIGEST] = f"{digest(files)}\n".encode()
    return dict(sorted(files.items()))


def check_steps(folder: Path) -> tuple[str, ...]:
    """Return the names of the steps in their order.

    Raises:
        PayloadError: a file or a line has no counterpart, or the order is wrong; the message names it.
    """
    try:
        order = (folder / "ORDER").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PayloadError(f"{folder / 'ORDER'}: cannot be read: {error.strerror}") from error
    named = [line.split()[0] for line in order if line.strip() and not line.startswith("#")]
    there = {path.stem for path in folder.glob("*.sh")}
    missing = [f"{name}.sh is missing" for name in named if name not in there]
    stray = [f"{name}.sh is not in ORDER" for name in sorted(there - set(named))]
    if missing or stray:
        raise PayloadError(f"{folder}: {'; '.join(missing + stray)}")
    if named != sorted(named, key=_number):
        raise PayloadError(f"{folder / 'ORDER'}: the steps must stand in the order of their numbers")
    return tuple(named)


def _number(step: str) -> int:
    number = re.match(r"[0-9]+", step)
    if number is None:
        raise PayloadError(f"steps/ORDER: {step!r} must begin with its number")
    return int(number.group())


def packages_tsv(file: Path, base: str) -> str:
    """Return ``group<tab>package`` lines of one base, as the steps read them."""
    groups = tomllib.loads(file.read_text(encoding="utf-8"))
    return "".join(f"{group}\t{name}\n" for group, bases in groups.items() for name in bases.get(base, ()))


def _below(project: Path, folder: str, prefix: str) -> Files:
    """Return the project's own files below a folder, under another prefix; other files are left out."""
    place = places.folder(folder, project)
    if not place.is_dir():
        raise PayloadError(f"{place}: missing; the image needs it")
    names = _tracked(project, folder) if (project / ".git").exists() else _by_pattern(place, prefix)
    paths = {name: place / name for name in names}
    return {f"{prefix}/{name}": path.read_bytes() for name, path in sorted(paths.items()) if path.is_file()}


def _tracked(project: Path, folder: str) -> list[str]:
    """Return the files that git tracks below a folder; a new file counts once it is added to the index."""
    # root bakes in a user's checkout, which git would refuse to read; its settings start no program
    trusting = ("-c", f"safe.directory={project.resolve()}", "-c", "core.fsmonitor=false")
    command = ["git", "-C", str(project / folder), *trusting, "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"") or str(error).encode()
        raise PayloadError(f"{project}: git does not list its files: {reason.decode().strip()}") from error
    return [name for name in done.stdout.decode().split("\0") if name]


def _by_pattern(folder: Path, prefix: str) -> list[str]:
    """Return the files of a folder that match ``PATTERNS``."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if is_own(f"{prefix}/{name}")]


def is_own(name: str) -> bool:
    """Return whether a file is the project's, by its name alone. Pure."""
    parts = name.split("/")
    if any(fnmatch(part, pattern) for part in parts for pattern in NEVER):
        return False
    return any(fnmatch(name, pattern) or fnmatch(parts[-1], pattern) for pattern in PATTERNS)


def digest(files: Files) -> str:
    """Return SHA-256 over names and contents, in the order of names, without the digest file itself."""
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        if name != DIGEST:
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def tarball(files: Files) -> bytes:
    """Return an uncompressed tar without times and owners: the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if PROGRAMS.fullmatch(name) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def compressed(tar: bytes) -> bytes:
    """Compress a tarball with gzip, without name, time or operating system.

    Another build of zlib gives other bytes for the same tarball, so name and check the uncompressed content.
    """
    deflate = zlib.compressobj(level=6, wbits=-zlib.MAX_WBITS)
    body = deflate.compress(tar) + deflate.flush()
    trailer = zlib.crc32(tar).to_bytes(4, "little") + (len(tar) % 2**32).to_bytes(4, "little")
    return _GZIP_HEADER + body + trailer


def write(files: Files, folder: Path) -> None:
    """Write the files below a folder."""
    with tarfile.open(fileobj=io.BytesIO(tarball(files))) as archive:
        archive.extractall(folder, filter="data")
