"""Apt archives as their makers publish them, small and signed, in folders; and keys to sign them."""

import gzip
import hashlib
import io
import re
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.answering import served
from tests.ran import ran


@dataclass(frozen=True)
class Key:
    """A signing key; its secret half lies in ``home``, a short path since gpg's agent listens in it."""

    home: Path
    fingerprint: str
    armour: str

    def sign(self, *arguments):
        ran(["gpg", "--homedir", self.home, "--batch", "--yes", *map(str, arguments)], check=True)


def new_key(person):
    """A key of its own; call ``forget`` when it is done with."""
    if shutil.which("gpg") is None:
        pytest.skip("no gpg on this computer")
    home = Path(tempfile.mkdtemp(prefix="gpg-"))
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", ""]

    def said(*arguments):
        return ran([*gpg, *arguments], check=True).stdout

    said("--quick-generate-key", person, "ed25519", "sign")
    fingerprint = re.search(r"^fpr:+(\w+):", said("--list-keys", "--with-colons"), flags=re.MULTILINE)
    return Key(home, fingerprint.group(1), said("--armor", "--export"))


def forget(key):
    subprocess.run(["gpgconf", "--homedir", str(key.home), "--kill", "all"], check=False)
    shutil.rmtree(key.home, onerror=_but_gone)


def _but_gone(_remove, path, error):
    """An agent that was told to end removes its sockets a moment later, by itself."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def publish(folder, packages, key, suites=("/",), components=("",)):
    """An archive with packages, name -> versions; signed by a key, or by nobody where that is None.

    A suite ``/`` lies flat in the folder; of others each lists everything in its first component.
    """
    for suite in suites:
        root = folder if suite == "/" else folder / "dists" / suite
        listings = {}
        for component in components:
            place = f"{component}/binary-amd64/Packages" if component else "Packages"
            listed = packages if component == components[0] else {}
            listings[place] = _listing(listed)
            listings[f"{place}.gz"] = gzip.compress(listings[place], mtime=0)
        for place, content in listings.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_bytes(content)
        rows = [f" {hashlib.sha256(text).hexdigest()} {len(text)} {name}" for name, text in listings.items()]
        head = ["Origin: test", f"Suite: {suite}", f"Codename: {suite}", "Architectures: amd64"]
        head += [f"Components: {' '.join(components)}", "Date: Sat, 21 Nov 2026 00:00:00 UTC", "SHA256:"]
        (root / "Release").write_text("\n".join([*head, *rows]) + "\n")
        if key is not None:
            key.sign("--clearsign", "--output", root / "InRelease", root / "Release")


def _listing(packages):
    return "\n".join(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: test\n"
        f"Filename: pool/{name}_{version}.deb\nSize: 1\nSHA256: {'0' * 64}\nDescription: test\n"
        for name, versions in packages.items()
        for version in versions
    ).encode()


def wheel(name, version, files=()):
    """File name and content of a wheel with these files, name -> text."""
    info, buffer = f"{name}-{version}.dist-info", io.BytesIO()
    own = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in (own | dict(files)).items():
            archive.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl", buffer.getvalue()


def serving(folder):
    """A block with the address of a web server for the files of a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Says nothing."""

    return served(partial(Quiet, directory=str(folder)))
