"""What a machine is made from: the recipe, the lists it reads, the Python that runs on it. One tarball.

Its name is its hash, so that a bake on a cloud runs exactly what was baked here, and an instance that boots
an image which is not ours exactly what its stack was made of.
"""

import hashlib
import io
import re
import tarfile
import tomllib
import zlib
from pathlib import Path

from image import lock, vendored
from image.errors import PayloadError

PROJECT = Path(__file__).resolve().parents[1]
SCRIPTS = ("provision.sh", "bootstrap.py", "lib.sh", "sbom.py")
FOLDERS = ("steps", "rootfs", "wheels")
# Modules of the project that run on the machine; the rest of image/ is for the builder.
PYTHON = ("training/gpu_fleet", "image/console", "image/instance", "image/reaper", "image/readiness")
MODULES = ("image/__init__.py", "image/trainer_wheels.py", "image/wheel_store.py")
DIGEST = "payload.sha256"
PROGRAMS = re.compile(r".*\.sh|rootfs/.*/(libexec|bin)/.*")
# RFC 1952: deflate, no name, no time, no operating system: the content alone decides
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

Files = dict[str, bytes]


def assemble(project: Path = PROJECT, target: str = "qemu") -> Files:
    """Every file of the payload: path -> content, its own digest among them.

    Args:
        project: the checkout.
        target: whose packages go along, see ``vendored.packages``.

    Raises:
        PayloadError: a step that steps/ORDER names is missing, or one is there that it does not name.
        LockError: the lockfile is wrong, or a wheel is not to be had.
    """
    image = project / "image"
    check_steps(image / "steps")
    files = {name: (image / name).read_bytes() for name in SCRIPTS}
    for folder in FOLDERS:
        files |= _below(image / folder, folder)
    files |= {f"python/{name}": (project / name).read_bytes() for name in MODULES}
    files |= {f"vendor/{name}": content for name, content in vendored.packages(target).items()}
    for folder in PYTHON:
        files |= _below(project / folder, f"python/{folder.removeprefix('training/')}")
    files |= _below(project / "training/examples", "examples")
    artefacts = lock.load(image / "versions.toml")
    for base in lock.BASES:
        files[f"versions/{base}.tsv"] = lock.tsv(artefacts, base).encode()
        files[f"packages/{base}.tsv"] = packages_tsv(image / "packages.toml", base).encode()
    files[DIGEST] = f"{digest(files)}\n".encode()
    return dict(sorted(files.items()))


def check_steps(folder: Path) -> tuple[str, ...]:
    """The names of the steps in their order.

    Raises:
        PayloadError: naming the file or the line that has no counterpart.
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
    found = re.match(r"\d+", step)
    if found is None:
        raise PayloadError(f"steps/ORDER: {step!r} must begin with its number")
    return int(found.group())


def packages_tsv(file: Path, base: str) -> str:
    """``group<tab>package`` lines of one base, as the steps read them."""
    groups = tomllib.loads(file.read_text(encoding="utf-8"))
    return "".join(f"{group}\t{name}\n" for group, bases in groups.items() for name in bases.get(base, ()))


def _below(folder: Path, prefix: str) -> Files:
    if not folder.is_dir():
        raise PayloadError(f"{folder}: missing; the image needs it")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{prefix}/{path.relative_to(folder)}": path.read_bytes() for path in paths}


def digest(files: Files) -> str:
    """SHA-256 over names and contents, in the order of names; of everything but the digest itself."""
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        if name != DIGEST:
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def tarball(files: Files) -> bytes:
    """A gzip-less tar that is the same byte for byte whenever the files are: no times, no owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if PROGRAMS.fullmatch(name) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def compressed(files: Files) -> bytes:
    """The tarball through gzip, with nothing in it but the content: no name, no time, no operating system."""
    content = tarball(files)
    deflate = zlib.compressobj(level=6, wbits=-zlib.MAX_WBITS)
    body = deflate.compress(content) + deflate.flush()
    trailer = zlib.crc32(content).to_bytes(4, "little") + (len(content) % 2**32).to_bytes(4, "little")
    return GZIP_HEADER + body + trailer


def write(files: Files, folder: Path) -> None:
    """Lay the files under a folder."""
    with tarfile.open(fileobj=io.BytesIO(tarball(files))) as archive:
        archive.extractall(folder, filter="data")
