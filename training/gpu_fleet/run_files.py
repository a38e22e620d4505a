"""What of this computer a run of a configuration reads to begin: `pack` and `render` send the same files."""

from collections.abc import Mapping
from pathlib import Path

from gpu_fleet import config
from gpu_fleet.imports import imported


def of_config(
    file: Path, settings: config.Config, beside: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    """Path from the folder of the run -> content: the configuration first, then the user's own code.

    Raises OwnCodeError, and ConfigError where code that is named cannot be loaded.

    Args:
        file: the configuration.
        settings: what it says, overrides included.
        beside: other files that travel; what they import does too.
    """
    contents = {inner(file): file.read_bytes(), **(beside or {}), **_named(settings)}
    return contents | imported(contents, Path.cwd().resolve())


def inner(file: Path) -> str:
    """Where a configuration lies from the folder of the run; one from elsewhere by its name."""
    resolved, here = file.resolve(), Path.cwd().resolve()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else file.name


def _named(settings: config.Config) -> dict[str, bytes]:
    """The sources of the user's modules that the configuration names, and of what loads with them."""
    if not any(":" in name for name in config.names_of_code(settings)):
        return {}
    from gpu_fleet import own_code  # noqa: PLC0415 - torch: seconds that --help need not pay

    own_code.parts(settings)
    return own_code.files(Path(settings.run.directory))
