"""The lockfile of outside artefacts, image/versions.toml: read, checked, and held against files.

``gpu-fleet image lock`` lists it; with ``--base ubuntu-24.04`` it also fails on what is unlocked.
"""

import hashlib
import re
import sys
import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from image.errors import LockError

FOLDER = Path(__file__).parent
FILE = FOLDER / "versions.toml"
UNLOCKED = "unlocked"
BASES = ("debian-12", "ubuntu-24.04")
# What holds an artefact of a kind: apt checks a signature, everything else is held by its content.
HOLDS = {"apt": ("key_fingerprint",), "file": ("file", "sha256"), "wheels": ("file", "sha256")}
SHAPES = {"sha256": re.compile(r"[0-9a-f]{64}"), "key_fingerprint": re.compile(r"[0-9A-F]{40}")}


@dataclass(frozen=True)
class Artefact:
    """One outside thing on one base.

    Attributes:
        base: the distribution, say ``debian-12``.
        kind: ``apt``, ``file`` or ``wheels``.
        version: exact; ``unlocked`` where nobody has settled it.
        file: its name, of kinds ``file`` and ``wheels``; of the key, where ``uri`` is given.
        uri: of an archive beside the distribution's own, as a line of apt's sources says it after ``deb``.
        sha256: of that file, 64 hexadecimal digits, or ``unlocked``.
        key_fingerprint: of the key that signs the archive, 40 hexadecimal digits, or ``unlocked``.
    """

    name: str
    base: str
    kind: str
    version: str
    source: str
    file: str = ""
    sha256: str = ""
    key_fingerprint: str = ""
    uri: str = ""

    @property
    def unlocked(self) -> tuple[str, ...]:
        """The fields that nobody has computed."""
        return tuple(
            key for key in ("version", "sha256", "key_fingerprint", "uri") if getattr(self, key) == UNLOCKED
        )


def load(file: Path = FILE) -> tuple[Artefact, ...]:
    """Read and check the lockfile.

    Raises:
        LockError: naming every key that is wrong.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LockError(f"{file}: cannot be read: {error}") from error
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    problems = [] if content.get("schema_version") == 1 else ["schema_version: must be 1"]
    artefacts: list[Artefact] = []
    for name, table in tables.items():
        for base, row in table.items():
            if base == "purpose":
                continue
            wrong = _problems(f"{name}.{base}", base, row)
            problems += wrong
            if not wrong:
                artefacts.append(Artefact(name=name, base=base, **row))
    if problems:
        raise LockError(f"{file}: " + "; ".join(problems))
    return tuple(artefacts)


def _problems(key: str, base: str, row: Any) -> list[str]:
    """What is wrong with one table of the lockfile."""
    if base not in BASES:
        return [f"{key}: base {base!r} must be one of {', '.join(BASES)}"]
    known = {field.name for field in fields(Artefact)} - {"name", "base"}
    unknown = [name for name in row if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(sorted(known))}"
        return [f"{key}.{unknown[0]}: unknown key; {hint}"]
    if row.get("kind") not in HOLDS:
        return [f"{key}.kind = {row.get('kind')!r}: must be one of {', '.join(HOLDS)}"]
    needed = ("version", "source", *HOLDS[row["kind"]], *(("file",) if "uri" in row else ()))
    missing = [f"{key}.{name}: required, and missing" for name in needed if not row.get(name)]
    return missing + [
        f"{key}.{name} = {row[name]!r}: must be {shape.pattern} or {UNLOCKED!r}"
        for name, shape in SHAPES.items()
        if name in row and row[name] != UNLOCKED and not shape.fullmatch(row[name])
    ]


def of_base(artefacts: tuple[Artefact, ...], base: str) -> tuple[Artefact, ...]:
    """The artefacts of one base, every one of them locked.

    Raises:
        LockError: naming each field that is unlocked.
    """
    own = tuple(artefact for artefact in artefacts if artefact.base == base)
    open_fields = [f"{artefact.name}.{artefact.base}.{key}" for artefact in own for key in artefact.unlocked]
    if open_fields:
        raise LockError(
            f"{FILE.name}: {', '.join(open_fields)} = {UNLOCKED!r}: fetch it, check its signature, lock it "
            "(image/README.md), and bake again"
        )
    return own


def tsv(artefacts: tuple[Artefact, ...], base: str) -> str:
    """``name<tab>field<tab>value`` lines, as the steps read them."""
    keys = ("version", "file", "sha256", "key_fingerprint", "uri")
    rows = [
        (artefact.name, key, getattr(artefact, key))
        for artefact in artefacts
        if artefact.base == base
        for key in keys
        if getattr(artefact, key)
    ]
    return "".join("\t".join(row) + "\n" for row in rows)


def verify(file: Path, expected: str) -> None:
    """Hold a file against its hash.

    Raises:
        LockError: naming the file, and both hashes when it is another.
    """
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise LockError(f"{file}: cannot be read: {error.strerror}") from error
    if digest != expected:
        raise LockError(
            f"{file}: sha256 is {digest}, versions.toml has {expected}: another file than was locked"
        )


def _verify_lists(artefacts: tuple[Artefact, ...]) -> None:
    """The lists of wheels that lie beside the lockfile."""
    for artefact in artefacts:
        if artefact.kind == "wheels" and artefact.sha256 != UNLOCKED:
            verify(FOLDER / artefact.file, artefact.sha256)


@click.command(epilog="\b\nExample:\n  gpu-fleet image lock --base ubuntu-24.04")
@click.option("--base", type=click.Choice(BASES), help="Also fail when something of this base is unlocked.")
def main(base: str | None) -> None:
    """List what comes from outside and how it is held."""
    try:
        artefacts = load()
        _verify_lists(artefacts)
        Console().print(_table(artefacts))
        if base is not None:
            of_base(artefacts, base)
    except LockError as error:
        sys.exit(f"error: {error}")


def _table(artefacts: tuple[Artefact, ...]) -> Table:
    table = Table("artefact", "base", "version", "held by")
    for artefact in artefacts:
        holds = {key: getattr(artefact, key) for key in SHAPES if getattr(artefact, key)}
        table.add_row(
            artefact.name,
            artefact.base,
            artefact.version,
            " ".join(f"{key}={value[:16]}" for key, value in holds.items()),
        )
    return table


if __name__ == "__main__":
    main()
