"""The lockfile of outside artefacts, image/gpu_fleet_image/recipe/versions.toml.

Read it, check it, compare files and keys with it.

``gpu-fleet image lock`` lists it, see ``gpu_fleet_image.recipe.lock_command``.
"""

import base64
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpu_fleet_image.recipe.errors import LockError

FOLDER = Path(__file__).parent
FILE = FOLDER / "versions.toml"
SCHEMA = 2
BASES = ("debian-12", "ubuntu-24.04")
# Keys that a kind needs beside kind, version and source; versions.toml explains how each kind is verified.
KEY = ("key_fingerprint", "key_sources")
_HOLDS = {
    "archive": ("uri", "suites", *KEY),
    "packages": ("version",),
    "signed": ("version", "url", "key_url", *KEY),
    "hashed": ("version", "url", "page", "sha256"),
    "wheels": ("version", "file", "sha256"),
}
SHAPES = {
    "day": re.compile(r"[0-9]{8}T[0-9]{6}Z"),
    "key_fingerprint": re.compile(r"[0-9A-F]{40}"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
}
# RFC 4880: the packet of a primary key, and the prefix of the data in its fingerprint
PUBLIC_KEY = 6
_FINGERPRINT_PREFIX = b"\x99"
# section 4.2.2: from this value on a length takes two octets
_TWO_OCTETS = 192


@dataclass(frozen=True)
class Artefact:
    """One outside artefact on one base; ``_HOLDS`` lists what its kind needs, the rest is empty.

    Attributes:
        name: as in versions.toml; of an archive also the name of its key, ``keys/<name>.asc``.
        base: the distribution, say ``debian-12``.
        kind: a key of ``_HOLDS``.
        source: where it comes from, in words.
        version: exact, or of packages a series, such as ``580.*``.
        archive: of packages, the archive that has them; empty for the base's own.
        uri: of an archive; ``{day}`` stands for its day.
        suites: of an archive, separated by spaces.
        components: of an archive, separated by spaces; empty for one without.
        day: the snapshot of an archive, ``YYYYMMDDTHHMMSSZ``.
        url: of a file; ``{version}`` stands for its version.
        page: where the maker publishes the file's hash; with ``{version}``, each version has its own page.
        file: of kind ``wheels``, the list.
        sha256: of the file or list, 64 hexadecimal digits.
        key_url: the address of a signed file's key.
        key_fingerprint: 40 hexadecimal digits.
        key_sources: two public places that publish this fingerprint.
    """

    name: str
    base: str
    kind: str
    source: str
    version: str = ""
    archive: str = ""
    uri: str = ""
    suites: str = ""
    components: str = ""
    day: str = ""
    url: str = ""
    page: str = ""
    file: str = ""
    sha256: str = ""
    key_url: str = ""
    key_fingerprint: str = ""
    key_sources: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """Address to fetch it from: of an archive on its day, or of a file in its version."""
        return self.uri.replace("{day}", self.day) or self.url.replace("{version}", self.version)

    @property
    def proof(self) -> str:
        """Address of what its maker publishes with each version: a signature, or a hash."""
        return (
            f"{self.location}.sig" if self.kind == "signed" else self.page.replace("{version}", self.version)
        )


def load(file: Path = FILE) -> tuple[Artefact, ...]:
    """Read and check the lockfile, with the keys beside it. Raises LockError, which names every wrong key."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LockError(f"{file}: cannot be read: {error}") from error
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    problems = [] if content.get("schema_version") == SCHEMA else [f"schema_version: must be {SCHEMA}"]
    artefacts: list[Artefact] = []
    for name, table in tables.items():
        for base, row in table.items():
            if base == "purpose":
                continue
            wrong = _problems(f"{name}.{base}", base, row)
            problems += wrong
            if not wrong:
                artefacts.append(Artefact(name=name, base=base, **row))
    problems += _strangers(artefacts)
    if problems:
        raise LockError(f"{file}: " + "; ".join(problems))
    for artefact in artefacts:
        if artefact.kind == "archive":
            check_key(file.parent / "keys" / f"{artefact.name}.asc", artefact)
    return tuple(artefacts)


def _problems(key: str, base: str, row: Any) -> list[str]:
    """Return what is wrong with one table of the lockfile."""
    if base not in BASES:
        return [f"{key}: base {base!r} must be one of {', '.join(BASES)}"]
    known = {field.name for field in fields(Artefact)} - {"name", "base"}
    unknown = [name for name in row if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(sorted(known))}"
        return [f"{key}.{unknown[0]}: unknown key; {hint}"]
    if row.get("kind") not in _HOLDS:
        return [f"{key}.kind = {row.get('kind')!r}: must be one of {', '.join(_HOLDS)}"]
    needed = ("source", *_HOLDS[row["kind"]], *(("day",) if "{day}" in row.get("uri", "") else ()))
    wrong = [f"{key}.{name}: required, and missing" for name in needed if not row.get(name)]
    if "key_sources" in row and len(set(row["key_sources"])) == 1:
        wrong.append(f"{key}.key_sources = {row['key_sources']!r}: needs two public places")
    return wrong + [
        f"{key}.{name} = {row[name]!r}: must be {shape.pattern}"
        for name, shape in SHAPES.items()
        if name in row and not shape.fullmatch(row[name])
    ]


def _strangers(artefacts: list[Artefact]) -> list[str]:
    """Return packages whose archive is not in the lockfile."""
    known = {(artefact.name, artefact.base) for artefact in artefacts if artefact.kind == "archive"}
    return [
        f"{artefact.name}.{artefact.base}.archive = {artefact.archive!r}: no such archive of this base"
        for artefact in artefacts
        if artefact.archive and (artefact.archive, artefact.base) not in known
    ]


def check_key(file: Path, artefact: Artefact) -> None:
    """Check a public key against the locked fingerprint. Raises LockError."""
    try:
        actual = fingerprints(file.read_text(encoding="ascii"))
    except OSError as error:
        raise LockError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LockError(f"{file}: no public key in armour: {error}") from error
    if actual != [artefact.key_fingerprint]:
        raise LockError(
            f"{file}: fingerprint is {' '.join(actual) or 'none'}, versions.toml has "
            f"{artefact.name}.{artefact.base}.key_fingerprint = {artefact.key_fingerprint!r}"
        )


def fingerprints(armour: str) -> list[str]:
    """Return the fingerprints of the primary keys in an armoured file, as RFC 4880 computes them. Pure.

    Raises ValueError if the text is no such file.
    """
    blocks = re.findall(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?:[^\n]*:[^\n]*\n)*\s*\n(.*?)\n(?:=\S{4}\s*\n)?-----END",
        armour.replace("\r\n", "\n"),
        flags=re.DOTALL,
    )
    if not blocks:
        raise ValueError("no such block")
    return [
        hashlib.sha1(  # noqa: S324 - RFC 4880 defines a fingerprint by it
            _FINGERPRINT_PREFIX + len(body).to_bytes(2, "big") + body
        )
        .hexdigest()
        .upper()
        for block in blocks
        for tag, body in _packets(base64.b64decode("".join(block.split()), validate=True))
        if tag == PUBLIC_KEY
    ]


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and body of each packet: RFC 4880, section 4.2, without partial lengths, which no key has."""
    place = 0
    while place < len(data):
        head, first = data[place], data[place + 1 : place + 2]
        if not head & 0x80 or not first:
            raise ValueError("no OpenPGP packets")
        if head & 0x40:
            tag, octets = head & 0x3F, {255: 5}.get(first[0], 1 if first[0] < _TWO_OCTETS else 2)
            size = data[place + 1 : place + 1 + octets]
            length = {1: first[0], 2: int.from_bytes(size, "big") - (_TWO_OCTETS << 8) + _TWO_OCTETS}.get(
                octets, int.from_bytes(size[1:], "big")
            )
        else:
            tag, octets = head >> 2 & 0xF, 1 << (head & 3)
            length = int.from_bytes(data[place + 1 : place + 1 + octets], "big")
        place += 1 + octets
        if place + length > len(data):
            raise ValueError("cut off")
        yield tag, data[place : place + length]
        place += length


def with_values(text: str, artefact: str, base: str, values: Mapping[str, str]) -> str:
    """Return the lockfile's text with new values in one table; everything else stays, comments too. Pure.

    Raises:
        LockError: the lockfile has no such table, or the table no such key.
    """
    table = f'[{artefact}."{base}"]'
    for key, value in values.items():
        pattern = rf'(?m)(^{re.escape(table)}\n(?:(?!\[).*\n)*?{key} = )"[^"]*"'
        text, count = re.subn(pattern, rf'\g<1>"{value}"', text, count=1)
        if count == 0:
            raise LockError(f"versions.toml: {table} with a {key} is missing")
    return text


def tsv(artefacts: tuple[Artefact, ...], base: str) -> str:
    """Return ``name<tab>field<tab>value`` lines, as the steps read them."""
    keys = [field.name for field in fields(Artefact)]
    columns = [key for key in keys if key not in ("name", "base", "source", "archive", "page", "key_sources")]
    rows = [
        (artefact.name, key, artefact.location if key == "url" else getattr(artefact, key))
        for artefact in artefacts
        if artefact.base == base
        for key in columns
        if getattr(artefact, key)
    ]
    return "".join("\t".join(row) + "\n" for row in rows)


def verify(file: Path, expected: str) -> None:
    """Check a file against its hash.

    Raises:
        LockError: the file cannot be read, or has another hash; the message names it and both hashes.
    """
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise LockError(f"{file}: cannot be read: {error.strerror}") from error
    if digest != expected:
        raise LockError(f"{file}: sha256 is {digest}, versions.toml has {expected}: not the locked file")
