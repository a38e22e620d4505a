"""``gpu-fleet image lock``: list the lockfile; ``--update``: refresh it online.

apt itself reads each archive, in a folder of its own and with the committed key alone, so that a version only
comes from lists with a valid signature. A source that does not answer is reported and left; the others are
written.
"""

import html
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gpu_fleet_image.recipe import build_requirements, lock
from gpu_fleet_image.recipe.errors import LockError

TIMEOUT_S = 30
SOURCE = """\
Types: deb
URIs: {uri}
Suites: {suites}
{components}Architectures: amd64
Check-Valid-Until: no
Signed-By: {key}
"""
Values = dict[str, str]


def refresh(lockfile: Path, now: datetime) -> tuple[list[str], list[str]]:
    """Write the newest day, versions and published hashes into the lockfile.

    Args:
        lockfile: the file; keys/ and packages.toml lie beside it.
        now: UTC; archives are read as of the start of its day.

    Returns:
        the changes, and the failed refreshes, one a line each.

    Raises:
        LockError: the lockfile is wrong.
    """
    text = lockfile.read_text(encoding="utf-8")
    artefacts = lock.load(lockfile)
    changes, failed = [], []
    for artefact in artefacts:
        try:
            for name, values in _refreshed(artefact, artefacts, lockfile.parent, now):
                before = next(
                    earlier for earlier in artefacts if (earlier.name, earlier.base) == (name, artefact.base)
                )
                text = lock.with_values(text, name, artefact.base, values)
                changes += [
                    f"{name}: {key} {getattr(before, key)} -> {value}"
                    for key, value in values.items()
                    if getattr(before, key) != value
                ]
        except LockError as error:
            failed.append(str(error))
    lockfile.write_text(text, encoding="utf-8")
    return changes, failed


def _refreshed(
    artefact: lock.Artefact, artefacts: Iterable[lock.Artefact], folder: Path, now: datetime
) -> Iterator[tuple[str, Values]]:
    """Yield name and new values of one artefact; for an archive also of its packages."""
    if artefact.kind == "archive":
        dated = replace(artefact, day=f"{now:%Y%m%d}T000000Z" if artefact.day else "")
        packages = [
            package
            for package in artefacts
            if (package.archive, package.base) == (artefact.name, artefact.base)
        ]
        groups = tomllib.loads((folder / "packages.toml").read_text(encoding="utf-8"))
        firsts = {package.name: groups[package.name][package.base][0] for package in packages}
        offered = versions(dated, folder / "keys" / f"{artefact.name}.asc", firsts.values())
        chosen = {package.name: newest(package, firsts[package.name], offered, dated) for package in packages}
        if artefact.day:
            # on a given day a series has one newest version, on every later build too
            yield artefact.name, {"day": dated.day}
            return
        yield from ((name, {"version": version}) for name, version in chosen.items())
    elif artefact.kind == "signed":
        with tempfile.TemporaryDirectory() as place:
            key = Path(place) / artefact.key_url.rsplit("/", 1)[-1]
            key.write_text(_read(artefact.key_url), encoding="ascii")
            lock.check_key(key, artefact)
        yield artefact.name, {"version": _newest_proven(artefact).version}
    elif artefact.kind == "hashed" and "{version}" in artefact.page:
        latest = _newest_proven(artefact)
        yield artefact.name, {"version": latest.version, "sha256": _bare_hash(_read(latest.proof), latest)}
    elif artefact.kind == "hashed":
        version, sha256 = published(_read(artefact.page), artefact)
        yield artefact.name, {"version": version, "sha256": sha256}


def versions(archive: lock.Artefact, key: Path, packages: Iterable[str]) -> dict[str, list[str]]:
    """Return package -> its versions in an archive, the newest first. Raises LockError."""
    if (reason := build_requirements.no_apt()) is not None:
        raise LockError(f"{archive.name}: {reason}")
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-apt-") as name:
        root = Path(name)
        for place in ("etc/apt/sources.list.d", "state/lists/partial", "cache/archives/partial"):
            (root / place).mkdir(parents=True)
        (root / "status").touch()
        components = archive.components and f"Components: {archive.components}\n"
        text = SOURCE.format(
            uri=archive.location, suites=archive.suites, components=components, key=key.resolve()
        )
        (root / f"etc/apt/sources.list.d/{archive.name}.sources").write_text(text)
        _apt(root, archive, "apt-get", "update", "--quiet")
        listing = _apt(root, archive, "apt-cache", "madison", *packages)
    offered: dict[str, list[str]] = {package: [] for package in packages}
    for line in listing.splitlines():
        package, version, _ = (cell.strip() for cell in line.split("|", 2))
        offered[package].append(version)
    return offered


def _apt(root: Path, archive: lock.Artefact, program: str, *arguments: str) -> str:
    """Run a program of apt without this computer's archives, packages and caches."""
    options = {
        "Dir::Etc": root / "etc/apt",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": root / "etc/apt/sources.list.d",
        "Dir::State": root / "state",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": 2,
    }
    command = [
        program,
        *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=build_requirements.quiet()
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        raise LockError(f"{archive.name}: {archive.location}: {said[0] if said else done.stderr.strip()}")
    return done.stdout


def newest(
    artefact: lock.Artefact, package: str, offered: Mapping[str, list[str]], archive: lock.Artefact
) -> str:
    """Return the version to lock: the newest of a series, else the newest of all. Raises LockError."""
    series = artefact.version if "*" in artefact.version else "*"
    fitting = [version for version in offered[package] if fnmatchcase(version, series)]
    if not fitting:
        has = ", ".join(offered[package]) or "no version"
        raise LockError(
            f"{artefact.name}.{artefact.base}.version = {artefact.version!r}: {archive.location} has for "
            f"{package} {has}"
        )
    return fitting[0]


def _newest_proven(artefact: lock.Artefact) -> lock.Artefact:
    """Return the newest version from the locked one on that its maker has signed, or published a hash of.

    Raises:
        LockError: the locked version is gone.
    """
    if not _exists(artefact.proof):
        raise LockError(
            f"{artefact.name}.{artefact.base}.version = {artefact.version!r}: {artefact.proof} is gone"
        )
    while (later := next(filter(None, map(_proven, successors(artefact))), None)) is not None:
        artefact = later
    return artefact


def _proven(artefact: lock.Artefact) -> lock.Artefact | None:
    return artefact if _exists(artefact.proof) else None


def successors(artefact: lock.Artefact) -> list[lock.Artefact]:
    """Return the versions that may follow one: 1.50.1 -> 2.0.0, 1.51.0, 1.50.2.

    2.9.0-1 -> 3.0.0-0, ... Pure.
    """
    parts = re.split(r"([.-])", artefact.version)
    places = range(0, len(parts), 2)
    later = [
        [
            *parts[:place],
            str(int(parts[place]) + 1),
            *(re.sub(r"[0-9]+", "0", part) for part in parts[place + 1 :]),
        ]
        for place in places
    ]
    return [replace(artefact, version="".join(version)) for version in later]


def _bare_hash(text: str, artefact: lock.Artefact) -> str:
    """Return the SHA-256 in a file that ``sha256sum`` wrote, or that has only the hash. Pure.

    Raises LockError if there is none.
    """
    if (named := re.match(r"([0-9a-f]{64})(\s|$)", text)) is None:
        raise LockError(f"{artefact.name}: {artefact.proof} begins with no SHA-256")
    return named[1]


def published(page: str, artefact: lock.Artefact) -> tuple[str, str]:
    """Return version and SHA-256 of the newest file on its maker's page. Pure. Raises LockError."""
    text = html.unescape(re.sub(r"<[^>]*>", " ", page))
    name = re.escape(artefact.url.rsplit("/", 1)[-1]).replace(
        re.escape("{version}"), r"([0-9]+(?:\.[0-9]+)+)"
    )
    releases = re.findall(rf"{name}(?:(?!{name}).)*?SHA256:\s*([0-9a-f]{{64}})", text, flags=re.DOTALL)
    if not releases:
        raise LockError(
            f"{artefact.name}: {artefact.page} lists no {artefact.url.rsplit('/', 1)[-1]} with SHA256"
        )
    version, *_, sha256 = max(releases, key=lambda row: [int(part) for part in row[0].split(".")])
    return version, sha256


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - of the lockfile, or of a test
            return str(answer.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise LockError(f"{url}: {error}") from error


def _exists(url: str) -> bool:
    """Return whether a file exists; a server that does not answer is an error."""
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - as above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
            return True
    except urllib.error.HTTPError as error:
        # a bucket without list permission answers "forbidden" for a missing object
        if error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            return False
        raise LockError(f"{url}: {error}") from error
    except OSError as error:
        raise LockError(f"{url}: {error}") from error


@click.command(epilog="\b\nExample:\n  gpu-fleet image lock --update")
@click.option(
    "--update", is_flag=True, help="First read archives and makers' pages, and lock the newest versions."
)
@click.option(
    "--lockfile",
    type=click.Path(path_type=Path, dir_okay=False),
    default=lock.FILE,
    help="Another versions.toml.",
)
def main(update: bool, lockfile: Path) -> None:
    """List the locked downloads; exit status 1 if a key or a list differs from its lock."""
    changes: list[str] = []
    failed: list[str] = []
    try:
        if update:
            changes, failed = refresh(lockfile, datetime.now(UTC))
        artefacts = lock.load(lockfile)
        for artefact in artefacts:
            if artefact.kind == "wheels":
                lock.verify(lockfile.parent / artefact.file, artefact.sha256)
    except LockError as error:
        sys.exit(f"error: {error}")
    Console().print(_table(artefacts))
    click.echo("".join(f"{change}\n" for change in changes), nl=False)
    if failed:
        sys.exit("\n".join(f"error: {reason}" for reason in failed))


def _table(artefacts: tuple[lock.Artefact, ...]) -> Table:
    table = Table("artefact", "base", "version", "locked by")
    for artefact in artefacts:
        key, digest = artefact.key_fingerprint[-16:], artefact.sha256[:16]
        held = (key and f"key {key}") or (digest and f"sha256 {digest}") or artefact.archive or "its archive"
        table.add_row(artefact.name, artefact.base, artefact.version or artefact.day, held)
    return table


if __name__ == "__main__":
    main()
