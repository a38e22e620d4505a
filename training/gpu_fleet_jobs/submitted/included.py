"""Files that `--include` packs: a folder without its caches and secrets, and nothing from outside it.

The files go into a bucket that operators can read too. A file that is named by itself is always packed.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from gpu_fleet.core.errors import ConfigError

LIMIT_BYTES = 256 << 20
MOST_ENTRIES = 100_000  # files and folders of one --include: links multiply them
DEEPEST = 100  # levels of nested folders
REPOSITORIES = frozenset({".git", ".hg", ".svn"})
CACHES = frozenset(
    {
        *("__pycache__", ".cache", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
        *(".terraform", "node_modules"),
    }
)
# Files that mark a virtual environment (Python's documentation, module venv) and one of conda.
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
OF_CREDENTIALS = frozenset(
    {
        *(".aliyun", ".aws", ".azure", ".config", ".docker", ".gcloud", ".gnupg", ".huggingface", ".kube"),
        *(".pulumi", ".ssh"),
    }
)
FOLDERS = REPOSITORIES | CACHES | OF_CREDENTIALS
# Words for secrets, with the endings of files that hold one; other endings, such as of a table, are data.
WORDS = (
    *("*api[-_]key", "*api[-_]keys", "*apikey", "*apikeys", "*access[-_]key", "*access[-_]keys"),
    *("*private[-_]key", "*secret[-_]key", "*password", "secret", "secrets", "*[-_.]secret", "*[-_.]secrets"),
    *("token", "*[-_.]token", "*credentials", "credential", "*[-_.]credential"),
)
ENDINGS = ("", ".cfg", ".conf", ".ini", ".json", ".pickle", ".toml", ".txt", ".yaml", ".yml")
SECRETS = (
    *(word + ending for word in WORDS for ending in ENDINGS),
    *(".env", ".env.*", "*.env", "*.env.*", ".envrc", ".renviron", "secret.*", "secrets.*"),
    *("client_secret*.json", "credentials.*", "*credentials*.json", "*credentials*.csv"),
    # Google's service accounts, by the names in its documentation, and downloads of both clouds' consoles
    *("*service-account*.json", "*service_account*.json", "*firebase-adminsdk*.json", "*gcp[-_]key*.json"),
    *("*gcs[-_]key*.json", "sa[-_]key*.json", "*[-_.]sa[-_]key*.json", "rootkey.csv", "rootkey (*).csv"),
    *("*accesskey*.csv", "*access[-_]key*.csv"),
    *("*.jks", "*.kdbx", "*.key", "*.keystore", "*.keytab", "*.ovpn", "*.p12", "*.p8", "*.pem", "*.pfx"),
    *("*.ppk", "*.tfvars"),
    *("*.tfstate", "*.tfstate.*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "id_rsa*", ".*_history"),
    *(".authinfo", ".boto", ".cdsapirc", ".databrickscfg", ".dockercfg", ".git-credentials"),
    *(".htpasswd", ".my.cnf", ".netrc", ".passwd-s3fs"),
    *(".npmrc", ".ossutilconfig", ".pgpass", ".pypirc", ".s3cfg", "_netrc", "kaggle.json"),
    *("access_tokens.db", "kubeconfig", "*.kubeconfig", "rclone.conf"),
)
SECRET = re.compile("|".join(map(translate, SECRETS)))  # one pattern: a folder may hold 100,000 names
CODE = ".py"  # never a secret by its name: a program imports it


@dataclass
class Included:
    """Files to pack, and paths that are left out.

    Attributes:
        contents: path relative to the current folder -> content.
        left_out: paths relative to the current folder; a folder stands for all its files.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def included(paths: Sequence[str]) -> Included:
    """Return all files that these paths name; raises ConfigError."""
    here = Path.cwd().resolve()
    gathered = Included()
    for text in paths:
        try:
            for file in _files(text, here, gathered.left_out):
                gathered.contents[_name(file.relative_to(here))] = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"--include = {text!r}: cannot be read: {error}") from error
    return gathered


def _files(text: str, here: Path, left_out: list[str]) -> Iterator[Path]:
    """Yield the files of one --include; raises ConfigError, OSError."""
    path = here / text
    if not path.exists() or not _real(path).is_relative_to(here):
        raise ConfigError(f"--include = {text!r}: must be a file or folder below {here}")
    if ".." in path.parts or not path.is_relative_to(here):
        path = _real(path)
    return _Walk(text, path, _real(path), here, left_out).files(path)


@dataclass
class _Walk:
    """Walk through the files of one --include.

    Attributes:
        text: value of the flag.
        top: the value as a path.
        real_top: `top` with links resolved.
        left_out: paths left out so far; the walk appends to it.
    """

    text: str
    top: Path
    real_top: Path
    here: Path
    left_out: list[str]
    entries: int = 0
    size: int = 0

    def files(self, path: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
        """Yield all files of a folder; follow links, but not from a folder into itself."""
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise ConfigError(
                f"--include = {self.text!r}: more than {MOST_ENTRIES:,} files and folders, including the "
                f"targets of links; {too_large()}"
            )
        real = _real(path)
        if path != self.top and self._stays(path, real):
            self.left_out.append(path.relative_to(self.here).as_posix())
        elif not real.is_relative_to(self.here):
            raise ConfigError(
                f"--include = {self.text!r}: {path.relative_to(self.here).as_posix()!r} is a link that leads "
                f"out of {self.here}, to {real}; copy here what it names, or remove the link"
            )
        elif path.is_file():
            self._count(path)
            yield path
        elif len(above) > DEEPEST:
            raise ConfigError(f"--include = {self.text!r}: more than {DEEPEST} folders within one another")
        elif real not in above:
            for entry in sorted(path.iterdir()):
                yield from self.files(entry, above | {real})

    def _stays(self, path: Path, real: Path) -> bool:
        """Return whether a path is left out, by its own name or by the target of a link."""
        above = next((top for top in (self.real_top, self.here) if real.is_relative_to(top)), real.parent)
        if not FOLDERS.isdisjoint((path.name, *real.relative_to(above).parts)):
            return True
        if path.is_dir():
            return any((path / name).exists() for name in ENVIRONMENTS)
        return not path.is_file() or is_secret(path.name) or is_secret(real.name)

    def _count(self, file: Path) -> None:
        self.size += file.stat().st_size
        if self.size > LIMIT_BYTES:
            raise ConfigError(f"--include = {self.text!r}: {too_large()}")


def is_secret(name: str) -> bool:
    """Return whether a file looks like a secret, by its name alone. Pure."""
    plain = name.lower()
    return not plain.endswith(CODE) and SECRET.match(plain) is not None


def too_large() -> str:
    """Return the message for files that exceed LIMIT_BYTES, with the alternative."""
    return f"at most {LIMIT_BYTES:,} bytes travel with a run; put data into a bucket or onto shared homes"


def _real(path: Path) -> Path:
    """Resolve the links of a path; `Path.resolve` would raise for a link to itself."""
    return Path(os.path.realpath(path))


def _name(file: Path) -> str:
    """Return the file's name in an archive; raises ConfigError if it is not UTF-8."""
    name = file.as_posix()
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name!r}: its name is not UTF-8, as an archive needs it") from error
    return name
