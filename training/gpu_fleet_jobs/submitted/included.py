"""Files that leave a user's computer: a folder without its caches and secrets, and nothing from outside it.

The files go into a bucket that others can read too. A file that is named by itself is always uploaded.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from gpu_fleet.core.errors import ConfigError

LIMIT_BYTES = 256 << 20
MOST_ENTRIES = (
    100_000  # files and folders of one --include, or behind links in linked folders, which multiply
)
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
    *(
        "*passwords",
        "passwd",
        "*[-_.]passwd",
        "*passphrase",
        "*[-_.]pass",
        "*ssh[-_]key",
        "*sshkey",
        "*deploy[-_]key",
    ),
    *("*[-_]rsa", "*[-_]ed25519", "*[-_]pat", "aksk", "*[-_]aksk", "*accesskey", "cookies", ".cookies"),
    *("token", "*[-_.]token", "*credentials", "credential", "*[-_.]credential"),
    *(f"*{giver}[-_]key" for giver in ("anthropic", "comet", "hf", "huggingface", "ngc", "openai", "wandb")),
)
ENDINGS = ("", ".cfg", ".conf", ".ini", ".json", ".pickle", ".toml", ".txt", ".yaml", ".yml")
SECRETS = (
    *(word + ending for word in WORDS for ending in ENDINGS),
    *(".env", ".env[-_.]*", "*.env", "*.env.*", "env.prod*", ".envrc", ".renviron", "secret.*", "secrets.*"),
    *("client_secret*.json", "credentials.*", "*credentials*.json", "*credentials*.csv"),
    # Google's service accounts, by the names in its documentation, and downloads of both clouds' consoles
    *("*service-account*.json", "*service_account*.json", "*firebase-adminsdk*.json", "*gcp[-_]key*.json"),
    *("*gcs[-_]key*.json", "sa[-_]key*.json", "*[-_.]sa[-_]key*.json", "rootkey.csv", "rootkey (*).csv"),
    *("*accesskey*.csv", "*access[-_]key*.csv"),
    *("*.jks", "*.kdbx", "*.key", "*.keystore", "*.keytab", "*.ovpn", "*.p12", "*.p8", "*.pem", "*.pfx"),
    *("*.bks", "*.ppk", "*.tfvars", "*.tfvars.json", "secring.*", "wallet.dat"),
    *("*.tfstate", "*.tfstate.*", "*id_dsa*", "*id_ecdsa*", "*id_ed25519*", "*id_rsa*", ".*_history"),
    *(".authinfo", ".boto", ".cdsapirc", ".databrickscfg", ".dockercfg", ".git-credentials"),
    *(".htpasswd", "htpasswd", ".my.cnf", "my.cnf", ".mylogin.cnf", ".netrc", ".passwd-s3fs"),
    *(".auth.json", "auth.json", ".comet.config", ".dockerconfigjson", "cookies.sqlite"),
    *(".npmrc", ".ossutilconfig", ".pgpass", ".pypirc", ".s3cfg", "_netrc", "kaggle.json"),
    *(".gitconfig", ".terraformrc", "terraform.rc", ".yarnrc.yml", "pip.conf", "gha-creds-*.json"),
    *(
        "access_tokens.db",
        "kubeconfig",
        "kubeconfig.*",
        "kube.config",
        "*.kubeconfig",
        "rclone.conf",
        ".rclone.conf",
    ),
)
SECRET = re.compile("|".join(map(translate, SECRETS)))  # in one, as a folder may hold 100,000 names
# Behind the name of what it is a copy of, by editors and by desktops, which also write it before the ending;
# Emacs puts one between two "#".
COPY = re.compile(
    r"(?:~|\.(?:bak|copy|old|orig|save|enc|gpg|[0-9]))+$"
    r"|(?:(?: -)? copy(?: [0-9]+)?| ?\([0-9]+\))+(?=$|\.[a-z0-9]+$)"
)
# Keys as those who give them out write them, for files whose names say nothing; manuals write EXAMPLE.
KEYS = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"|\b(?:AKIA|ASIA)(?![0-9A-Z]*EXAMPLE)[0-9A-Z]{16}\b|\bLTAI[0-9A-Za-z]{12,26}\b|\bAIza[\w-]{35}\b"
    rb"|\bhf_[0-9A-Za-z]{30,}\b|\bgh[opsru]_[0-9A-Za-z]{36,}\b|\bgithub_pat_\w{22,}|\bglpat-[\w-]{20,}"
    rb"|\bsk-(?:[a-z0-9]+-)*[0-9A-Za-z]{32,}|\bxox[abprs]-[0-9A-Za-z-]{10,}"
    rb"|\bsk-ant-[\w-]{32,}|\bnvapi-[\w-]{32,}|\bwandb_v1_\w{20,}|\bdckr_pat_[\w-]{20,}|\bnpm_[0-9A-Za-z]{36}"
    rb"|\bpypi-AgEI[\w-]{32,}|\bgl(?:sa|c)_\w{32,}"
)
LOOKED_AT_BYTES = 1 << 16  # of a file for such a key
CODE = ".py"  # no secret by its name: a program imports it


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
                name, content = _name(file.relative_to(here)), file.read_bytes()
                if _real(file) != _real(here / text) and has_key(name, content):
                    gathered.left_out.append(name)
                else:
                    gathered.contents[name] = content
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
    return _Walk(f"--include = {text!r}", path, _real(path), here, left_out).files(path)


def of_data(text: str, left_out: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the name and bytes of each file that `gpu-fleet data put` uploads, of any size.

    Args:
        text: a file or folder; names are relative to the folder.
        left_out: names that stay; this function appends to it.

    Raises:
        ConfigError: there is no such path, or a link leads out of it.
    """
    top = Path(text)
    named, real = f"PATH {text!r}", _real(top)
    if not real.exists():
        raise ConfigError(f"{named}: there is no such file or folder")
    here = real if real.is_dir() else real.parent
    try:
        for file in _Walk(named, real, real, here, left_out, is_limited=False).files(real):
            name = _name(Path(top.name) if file == real else file.relative_to(here))
            with file.open("rb") as content:
                start = content.read(LOOKED_AT_BYTES)
            if file != real and has_key(name, start):
                left_out.append(name)
            else:
                yield name, file.stat().st_size
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read: {error}") from error


@dataclass
class _Walk:
    """Walk through the files of one path that a user names.

    Attributes:
        named: the flag or argument and its value, for messages.
        top: the value as a path.
        real_top: `top` with links resolved.
        left_out: paths left out so far; the walk appends to it.
        is_limited: whether files and bytes are few enough to travel with a run.
    """

    named: str
    top: Path
    real_top: Path
    here: Path
    left_out: list[str]
    is_limited: bool = True
    entries: int = 0
    size: int = 0

    def files(self, path: Path, above: frozenset[Path] = frozenset(), links: int = 0) -> Iterator[Path]:
        """Yield all files of a folder; follow links, but not from a folder into itself.

        Args:
            above: the folders on the way to it.
            links: number of these that are links.
        """
        self._count_entry(links)
        real = _real(path)
        if path != self.top and self._stays(path, real):
            self.left_out.append(path.relative_to(self.here).as_posix())
        elif not real.is_relative_to(self.here):
            raise ConfigError(
                f"{self.named}: {path.relative_to(self.here).as_posix()!r} is a link that leads "
                f"out of {self.here}, to {real}; copy here what it names, or remove the link"
            )
        elif path.is_file():
            self._count(path)
            yield path
        elif len(above) > DEEPEST:
            raise ConfigError(f"{self.named}: more than {DEEPEST} folders within one another")
        elif real not in above:
            for entry in sorted(path.iterdir()):
                yield from self.files(entry, above | {real}, links + path.is_symlink())

    def _count_entry(self, links: int) -> None:
        """Count a path; folders that link to one another have paths without end, in data of any size too."""
        self.entries += self.is_limited or links > 1
        if self.entries > MOST_ENTRIES:
            what, advice = "including the targets of links", too_large()
            if not self.is_limited:
                what, advice = "behind links in linked folders", "remove such links"
            raise ConfigError(f"{self.named}: more than {MOST_ENTRIES:,} files and folders, {what}; {advice}")

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
        if self.is_limited and self.size > LIMIT_BYTES:
            raise ConfigError(f"{self.named}: {too_large()}")


def is_secret(name: str) -> bool:
    """Return whether a file looks like a secret, by its name alone. Pure."""
    names = {name.lower(), COPY.sub("", name.lower().strip("#"))}
    return not any(plain.endswith(CODE) for plain in names) and any(map(SECRET.match, names))


def has_key(name: str, content: bytes) -> bool:
    """Return whether a file that is no code contains a key in the form of its issuer. Pure."""
    return not name.lower().endswith(CODE) and KEYS.search(content[:LOOKED_AT_BYTES]) is not None


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
