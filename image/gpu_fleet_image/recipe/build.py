"""Bake locally: ``gpu-fleet image bake rootfs|qemu|oci``. A result is kept under the hash of its inputs."""

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpu_fleet_image.recipe import bake, build_requirements, disk, lock, oci, payload, places, wheels
from gpu_fleet_image.recipe.errors import ImageError

OUTPUT = places.build_folder() / "image"
KEY_DIGITS = 16
REPORT = "report.json"
_CLOUD_BASES = {"aws": "ubuntu-24.04", "alicloud": "ubuntu-24.04"}


@dataclass(frozen=True)
class BakeReport:
    """Result of a bake.

    Attributes:
        seconds: part -> seconds, in their order; of the bake that made the result, however long ago.
    """

    folder: Path
    key: str
    size_bytes: int
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


Make = Callable[[Path, bake.Listener], tuple[int, dict[str, float]]]


def rootfs(files: payload.Files, output: Path, listener: bake.Listener) -> BakeReport:
    """Make the root file system of a virtual machine, in ``rootfs/``; errors as in ``bake.bake``."""

    def make(folder: Path, listener: bake.Listener) -> tuple[int, dict[str, float]]:
        made = bake.bake("qemu", files, folder / "rootfs", output / "cache", listener)
        return made.size_bytes, made.seconds

    return kept("rootfs", files, output, make, listener)


def qemu(files: payload.Files, output: Path, listener: bake.Listener, disk_format: str = "raw") -> BakeReport:
    """Make a disk, with kernel and initrd beside it; errors as in ``bake.bake``."""
    base = rootfs(files, output, listener)

    def make(folder: Path, listener: bake.Listener) -> tuple[int, dict[str, float]]:
        listener("disk")
        started = time.perf_counter()
        disk.make(base.folder / "rootfs", folder, base.size_bytes, disk_format)
        return base.size_bytes, base.seconds | {"disk": time.perf_counter() - started}

    return kept(f"qemu-{disk_format}", files, output, make, listener)


def oci_archive(files: payload.Files, output: Path, listener: bake.Listener) -> BakeReport:
    """Make the trainer's container, ``trainer.tar``; errors as in ``bake.bake``."""

    def make(folder: Path, listener: bake.Listener) -> tuple[int, dict[str, float]]:
        made = bake.bake("oci", files, folder / "rootfs", output / "cache", listener)
        listener("archive")
        started = time.perf_counter()
        labels = {"org.gpu-fleet.payload": payload.digest(files)}
        archive = oci.make(made.root, folder / "trainer.tar", labels, bake.SOURCE_DATE_EPOCH)
        shutil.rmtree(made.root)
        return archive.stat().st_size, made.seconds | {"archive": time.perf_counter() - started}

    return kept("oci", files, output, make, listener)


def cloud_payload(output: Path, target: str) -> Path:
    """Write the payload for a cloud.

    Raises:
        LockError: the wheels of the cloud's base were made from other requirements.
        PayloadError: the recipe is incomplete.
    """
    _check_wheels(_CLOUD_BASES[target])
    content = payload.tarball(payload.assemble(target=target))
    output.mkdir(parents=True, exist_ok=True)
    file = output / f"payload-{hashlib.sha256(content).hexdigest()}.tar"
    file.write_bytes(content)
    return file


def inputs() -> payload.Files:
    """Return the payload, with its lists checked against the lockfile and their requirements.

    Raises:
        ImageError: something is missing, or was made from something else.
    """
    files = payload.assemble()
    _check_wheels(bake.BASE)
    return files


def _check_wheels(base: str) -> None:
    """Check a base's list of wheels against the lockfile, and against its requirements.

    Raises LockError if it is another list, or was made from other requirements.
    """
    locked = next(artefact for artefact in lock.load() if (artefact.kind, artefact.base) == ("wheels", base))
    lock.verify(lock.FOLDER / locked.file, locked.sha256)
    requirements = [file.read_text(encoding="utf-8") for file in wheels.requirement_files()]
    wheels.check_fresh(wheels.list_of(base), requirements)


def kept(kind: str, files: payload.Files, output: Path, make: Make, listener: bake.Listener) -> BakeReport:
    """Return the result of the same inputs, or make it; the final name never holds an unfinished result.

    Bakes into one folder run one after another: they share a cache and the folder of unfinished results.
    """
    key = payload.digest(files)[:KEY_DIGITS]
    final = output / f"{kind}-{key}"
    if not (final / REPORT).is_file():
        output.mkdir(parents=True, exist_ok=True)
        with build_requirements.alone(output):
            if not (final / REPORT).is_file():
                _make_kept(kind, final, make, listener)
    content = json.loads((final / REPORT).read_text(encoding="utf-8"))
    return BakeReport(**content | {"folder": final})


def _make_kept(kind: str, final: Path, make: Make, listener: bake.Listener) -> None:
    output = final.parent
    bake.check_computer(output)
    build_requirements.install((*build_requirements.BAKE, *build_requirements.BOOT))
    with unfinished(output, kind) as folder:
        size_bytes, seconds = make(folder, listener)
        report = BakeReport(final, final.name.removeprefix(f"{kind}-"), size_bytes, seconds)
        (folder / REPORT).write_text(json.dumps(asdict(report), default=str, indent=1) + "\n")
        for older in output.glob(f"{kind}-*"):
            shutil.rmtree(older)
        folder.rename(final)


@contextmanager
def unfinished(output: Path, kind: str) -> Iterator[Path]:
    """Yield a folder for an unfinished result; it is removed unless it was renamed."""
    folder = output / f".unfinished-{kind}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        log = next(folder.glob("*.log"), None) if folder.is_dir() else None
        if log is not None:
            log.replace(output / log.name)
        shutil.rmtree(folder, ignore_errors=True)


def table(report: BakeReport) -> Table:
    """Return a table with the seconds of each part, and the size."""
    made = Table("part", "seconds", title=str(report.folder))
    for part, seconds in report.seconds.items():
        made.add_row(part, f"{seconds:.1f}")
    made.add_section()
    made.add_row("all", f"{report.total_s:.1f}")
    made.caption = f"{report.size_bytes / 2**30:.2f} GiB"
    return made


@click.group(epilog="\b\nExample:\n  gpu-fleet image bake qemu")
def main() -> None:
    """Bake the image on this computer: Debian 12, root, about four minutes."""


def _output_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--output", type=click.Path(path_type=Path, file_okay=False), default=OUTPUT, show_default=True
    )(command)


@main.command("rootfs", epilog="\b\nExample:\n  gpu-fleet image bake rootfs")
@_output_option
def rootfs_command(output: Path) -> None:
    """Make the root file system as a folder."""
    _show(lambda listener: rootfs(inputs(), output, listener))


@main.command("qemu", epilog="\b\nExample:\n  gpu-fleet image bake qemu --format raw")
@_output_option
@click.option("--format", "disk_format", type=click.Choice(disk.FORMATS), default="raw", show_default=True)
def qemu_command(output: Path, disk_format: str) -> None:
    """Make a disk to boot under QEMU, with kernel and initrd."""
    _show(lambda listener: qemu(inputs(), output, listener, disk_format))


@main.command("oci", epilog="\b\nExample:\n  gpu-fleet image bake oci")
@_output_option
def oci_command(output: Path) -> None:
    """Make the trainer's container as an OCI archive."""
    _show(lambda listener: oci_archive(inputs(), output, listener))


@click.command("payload", epilog="\b\nExample:\n  gpu-fleet image payload --target aws")
@_output_option
@click.option("--target", type=click.Choice(tuple(_CLOUD_BASES)), required=True)
def payload_command(output: Path, target: str) -> None:
    """Write the tarball that a cloud's builder fetches, checks and runs; its name holds its hash."""
    try:
        click.echo(cloud_payload(output, target))
    except (ImageError, OSError) as error:
        sys.exit(f"error: {_reason(error)}")


def _show(make: Callable[[bake.Listener], BakeReport]) -> None:
    """Make a result with its progress on the screen; print one message where it fails."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        running: list[int] = []

        def listener(part: str) -> None:
            for task in running:
                progress.stop_task(task)  # type: ignore[arg-type] # rich's own NewType of int
            running.append(progress.add_task(part, total=None))

        try:
            report = make(listener)
        except (ImageError, OSError) as error:
            progress.stop()
            sys.exit(f"error: {_reason(error)}")
    Console().print(table(report))


def _reason(error: ImageError | OSError) -> str:
    """Return the message; an error of the file system also names the path."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; use --output"
    return str(error)


if __name__ == "__main__":
    main()
