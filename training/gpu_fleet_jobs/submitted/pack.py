"""`pack`: archive the local files that a run needs; `gpu-fleet submit` sends the archive to the instances."""

import importlib.util
import io
import json
import os
import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.lazy_groups import configured, identity_flags, identity_options
from gpu_fleet_jobs.submitted import command_line, run_files
from gpu_fleet_jobs.submitted.command_line import CommandLine
from gpu_fleet_jobs.submitted.imports import OURS, imported
from gpu_fleet_jobs.submitted.included import LIMIT_BYTES, has_key, included, is_secret, too_large

BUCKETS = ("s3://", "oss://")
CONFIG = ".toml"
STARTED = (".py", "/__main__.py")  # files of a module that `python -m` starts
PACKAGES = frozenset({"site-packages", "dist-packages"})
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the format's earliest time, for all files: equal files, equal archives
READABLE, STARTABLE = 0o644 << 16, 0o755 << 16  # file modes, as in ZipInfo.external_attr


@dataclass(frozen=True)
class Parcel:
    """Files and command line that are sent to the instances.

    Attributes:
        arguments: arguments of `python -m gpu_fleet` on the instances.
        directory: folder for the run's result; empty if a command leaves none.
        title: beginning of the run's name.
        contents: path -> content.
    """

    arguments: tuple[str, ...]
    directory: str
    title: str
    contents: dict[str, bytes]


@click.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train pack digits.toml --out run.zip --include data/digits",
)
@click.argument("words", metavar="CONFIG|COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The archive.")
@click.option(
    "--include", multiple=True, metavar="PATH", help="A file or folder below this one that the run reads."
)
@click.option("--checkpoints", default="", metavar="FOLDER", help="Folder of COMMAND that the bucket keeps.")
@identity_options
def pack(
    *,
    words: tuple[str, ...],
    out: Path,
    include: tuple[str, ...],
    checkpoints: str,
    allow: tuple[str, ...],
    branch: str,
) -> None:
    """Write the local files that a run reads into an archive, and print a list of them.

    For CONFIG, a .toml: the file itself and the code of yours that it names. For COMMAND: the files that it
    starts and names. For both: the modules below this folder that their code imports anywhere, and the
    included files. In an included folder, repositories, virtual environments, caches and files that look like
    secrets are left out, unless they are included by themselves. Refuses paths that an instance cannot read.
    """
    beside = included(include)
    if PurePosixPath(words[0]).suffix == CONFIG:
        if checkpoints:
            raise ConfigError(f"--checkpoints = {checkpoints!r}: is for COMMAND; CONFIG has run.directory")
        settings = _settings(Path(words[0]), words[1:], allow, branch)
        arguments = (*words[1:], *identity_flags(allow, branch))
        parcel = of_config(Path(words[0]), arguments, settings, beside.contents)
    else:
        if allow or branch:
            raise ConfigError("--allow and --branch are for CONFIG; COMMAND resumes by its own rules")
        parcel = of_command(words, checkpoints, beside.contents)
    _check_size(parcel.contents)
    try:
        out.write_bytes(archive(parcel.contents, _startable(parcel.contents)))
    except OSError as error:
        raise ConfigError(f"--out = {str(out)!r}: cannot be written: {error.strerror}") from error
    said = {"arguments": parcel.arguments, "directory": parcel.directory, "title": parcel.title}
    files = {
        "files": sorted(parcel.contents),
        "left_out": [name for name in beside.left_out if not _travels(name, parcel.contents)],
        "secrets": [
            name
            for name, content in sorted(parcel.contents.items())
            if is_secret(PurePosixPath(name).name) or has_key(name, content)
        ],
        "elsewhere": _elsewhere(parcel.contents, Path.cwd().resolve()),
    }
    click.echo(json.dumps({**said, **files}))


def _settings(file: Path, overrides: Sequence[str], allow: Sequence[str], branch: str) -> config.Config:
    if not file.is_file():
        raise ConfigError(f"CONFIG {str(file)!r}: there is no such file")
    _check_one(file)
    return configured(file, overrides, allow, branch)


def of_config(
    file: Path, arguments: Sequence[str], settings: config.Config, included: dict[str, bytes]
) -> Parcel:
    """Return the parcel for a run of the trainer; raises ConfigError that names all unreadable paths.

    Args:
        arguments: overrides of the configuration.
        settings: the configuration with the overrides.
    """
    directory = settings.run.directory
    _refuse([*_unreadable(settings, included), *_misplaced("run.directory", directory)])
    contents = run_files.of_config(file, settings, included)
    return Parcel(("launch", run_files.inner(file), *arguments), directory, directory, contents)


def of_command(words: Sequence[str], checkpoints: str, included: dict[str, bytes]) -> Parcel:
    """Return the parcel for any program, under `gpu_fleet run`; raises ConfigError naming all problems."""
    here = Path.cwd().resolve()
    line = command_line.read(words)
    contents, problems = _named(line, included, here, checkpoints)
    _add_of_scripts(contents, here)
    contents |= imported({**contents, **_starting(line)}, here)
    problems += [*_missing(line, contents, here), *_missing_configs(line, contents, here, checkpoints)]
    _refuse([*problems, *(_misplaced("--checkpoints", checkpoints) if checkpoints else ())])
    kept = ["--checkpoints", checkpoints] if checkpoints else []
    title = line.title or PurePosixPath(words[0]).name
    return Parcel(("run", *kept, "--", *words), checkpoints, checkpoints or title, contents)


def _named(
    line: CommandLine, included: dict[str, bytes], here: Path, made: str = ""
) -> tuple[dict[str, bytes], list[str]]:
    """Return the included files and those that a command names, and a message for each unreadable path.

    Args:
        made: folder that the run creates on the instance; empty for none.
    """
    contents, problems = dict(included), list[str]()
    for place in (PurePosixPath(folder, name) for name in line.names for folder in line.folders):
        path, word = here / place, str(place)
        if place.is_absolute() or not _is_there(path):
            continue
        if ".." in path.parts or not path.resolve().is_relative_to(here):
            problems.append(f"{word!r} of COMMAND: must be below {here}, and written without ..")
        elif path.is_file():
            contents[word] = _content(path)
        elif not (line.by_shell or _travels(word, included) or (made and place.is_relative_to(made))):
            problems.append(_not_there(f"{word!r} of COMMAND", word))
    return contents, list(dict.fromkeys(problems))


def _add_of_scripts(contents: dict[str, bytes], here: Path) -> None:
    """Add the programs below `here` that shell scripts start."""
    waiting = [name for name in contents if name.endswith(".sh")]
    while waiting:
        script = waiting.pop()
        line = command_line.in_script(contents[script].decode(errors="replace"))
        line.folders.append(PurePosixPath(script).parent.as_posix())
        inner, _ = _named(line, {}, here)
        inner |= imported(_starting(line), here)
        waiting += [name for name in inner if name.endswith(".sh") and name not in contents]
        contents |= {name: content for name, content in inner.items() if name not in contents}


def _starting(line: CommandLine) -> dict[str, bytes]:
    """Return a made-up program for each module (-m) and code (-c) of Python, to follow its imports."""
    code = [f"import {module}.__main__" for module in line.modules] + line.code
    return {
        str(PurePosixPath(folder, f"-{number}.py")): text.encode(errors="replace")
        for number, text in enumerate(code)
        for folder in line.folders
    }


def _missing(line: CommandLine, contents: dict[str, bytes], here: Path) -> Iterator[str]:
    """Yield a message for each program or module that is neither packed nor on an instance."""
    if line.makes or any(PurePosixPath(folder).is_absolute() for folder in line.folders):
        return
    for program in line.programs:
        places = [PurePosixPath(folder, program) for folder in line.folders]
        if not any(_is_there(here / place) or _travels(str(place), contents) for place in places):
            yield _no_file(program, here)
    for module in line.modules:
        inner = module.replace(".", "/")
        paths = [f"{PurePosixPath(folder, inner)}{end}" for folder in line.folders for end in STARTED]
        if not any(path in contents for path in paths) and not _is_installed(module):
            yield (
                f"-m {module} of COMMAND: there is neither {inner}.py nor {inner}/__main__.py below {here}, "
                "and no package of an instance has that name; allowed: one of these, or an installed package"
            )


def _missing_configs(line: CommandLine, contents: dict[str, bytes], here: Path, made: str) -> Iterator[str]:
    """Yield a message for each configuration that no instance would have; a program may know its folder."""
    for config_file in dict.fromkeys(line.configs):
        place = PurePosixPath(config_file)
        comes = bool(made) and place.is_relative_to(made)
        if not (
            comes
            or _is_there(here / place)
            or any(PurePosixPath(name).match(str(place)) for name in contents)
        ):
            yield _no_file(config_file, here)


def _no_file(word: str, here: Path) -> str:
    return (
        f"{word!r} of COMMAND: there is no such file below {here}; allowed: one below it, or one "
        f"of the shared homes, such as /home/you/{PurePosixPath(word).name}"
    )


def _is_there(path: Path) -> bool:
    """Return whether a path exists; `Path.exists` raises for a word that is too long for a name."""
    try:
        return path.exists()
    except OSError:
        return False


def _is_installed(module: str) -> bool:
    """Return whether an instance has a module; it has the trainer's packages, as this computer does."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return top == OURS or any(not PACKAGES.isdisjoint(PurePosixPath(place).parts) for place in places)


def archive(contents: dict[str, bytes], startable: Collection[str] = ()) -> bytes:
    """Return a zip of these files; `startable` ones are executable. Equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, ZIP_EPOCH)
            entry.external_attr = STARTABLE if name in startable else READABLE
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, contents[name])
    return packed.getvalue()


def _startable(names: Collection[str]) -> set[str]:
    """Return the files that are executable here; they will be on the instance too."""
    return {name for name in names if os.access(name, os.X_OK)}


def _content(file: Path) -> bytes:
    try:
        _check_one(file)
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{str(file)!r}: cannot be read: {error.strerror}") from error


def _check_one(file: Path) -> None:
    """Refuse a file that is too large by itself, before it fills this computer's memory."""
    if (size := file.stat().st_size) > LIMIT_BYTES:
        raise ConfigError(f"{str(file)!r}: is {size:,} bytes: {too_large()}")


def _elsewhere(contents: Collection[str], here: Path) -> list[str]:
    """Return the modules that lie outside the folder of the run, or that a link in it leads to."""
    paths = {name: Path(os.path.realpath(here / name)) for name in contents}
    return sorted(name for name, path in paths.items() if not (path.is_file() and path.is_relative_to(here)))


def _unreadable(settings: config.Config, included: dict[str, bytes]) -> Iterator[str]:
    """Yield a message for each path that the run reads from a disk and that no instance has."""
    model, data = settings.model, settings.data
    read = {"data.path": data.path, "model.weights": model.weights, "model.config": model.config}
    for key, path in read.items():
        if not path or path.startswith(BUCKETS) or PurePosixPath(path).is_absolute():
            continue
        if not _travels(path, included):
            yield _not_there(f"{key} = {path!r}", path)


def _travels(path: str, included: dict[str, bytes]) -> bool:
    return any(PurePosixPath(name).is_relative_to(PurePosixPath(path)) for name in included)


def _not_there(what: str, path: str) -> str:
    return (
        f"{what}: instances do not have this folder; use s3:// or oss://BUCKET/PREFIX, a folder there such "
        f"as /home/you/{path}, or --include {path} if it is small"
    )


def _misplaced(key: str, folder: str) -> Iterator[str]:
    path = PurePosixPath(folder)
    if ".." in path.parts or path == PurePosixPath("."):
        yield f"{key} = {folder!r}: must be below the folder of the run, or absolute"


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def _check_size(contents: dict[str, bytes]) -> None:
    size = sum(map(len, contents.values()))
    if size > LIMIT_BYTES:
        raise ConfigError(f"the files of the run are {size:,} bytes: {too_large()}")
