"""Files of this computer that a pod needs: the configuration and the user's own code, by their paths here."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet_jobs.submitted import run_files

# https://kubernetes.io/docs/concepts/configuration/configmap/: "cannot exceed 1 MiB"
LIMIT_BYTES = 1 << 20
SHOWN = 3


@dataclass(frozen=True)
class Source:
    """One file: its key in the ConfigMap, its path relative to the folder of the run, and its text."""

    key: str
    path: str
    text: str


def of_run(file: Path, settings: config.Config) -> tuple[Source, ...]:
    """Return the configuration first, then the user's own code; raises ConfigError, UserCodeError."""
    contents = run_files.of_config(file, settings)
    check_size(contents)
    sources: list[Source] = []
    for path, content in contents.items():
        key = key_of(path, {source.key for source in sources})
        sources.append(Source(key, path, _text(path, content)))
    return tuple(sources)


def key_of(path: str, taken: Collection[str]) -> str:
    """Return the key of a file in the ConfigMap, which has no folders."""
    key = re.sub(r"[^-._a-zA-Z0-9]", "_", path)
    return f"{len(taken)}-{key}" if key in taken else key


def check_size(contents: Mapping[str, bytes]) -> None:
    """Raise ConfigError if a ConfigMap cannot hold the files, naming the largest."""
    size = sum(len(content) for content in contents.values())
    if size <= LIMIT_BYTES:
        return
    largest = sorted(contents, key=lambda path: -len(contents[path]))[:SHOWN]
    named = ", ".join(f"{path} {len(contents[path]):,}" for path in largest)
    raise ConfigError(
        f"the configuration and your own code are {size:,} bytes, and a ConfigMap holds {LIMIT_BYTES:,}; "
        f"install your code in an image of your own and name it as package.module:NAME (largest: {named})"
    )


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8, which a ConfigMap needs: {error}") from error
