"""Files of this computer that a run needs for its start; `pack` and `render` send the same files."""

from collections.abc import Mapping
from pathlib import Path

from gpu_fleet.core import config
from gpu_fleet_jobs.submitted.imports import imported


def of_config(
    file: Path, settings: config.Config, beside: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    """Return path from the folder of the run -> content: the configuration first, then the user's own code.

    Raises UserCodeError, and ConfigError if named code cannot be loaded.

    Args:
        file: the configuration.
        settings: its content, with overrides.
        beside: other files to send; the modules that they import are sent too.
    """
    contents = {inner(file): file.read_bytes(), **(beside or {}), **_named(settings)}
    return contents | imported(contents, Path.cwd().resolve())


def inner(file: Path) -> str:
    """Return a configuration's path from the folder of the run; only its name if it is elsewhere."""
    resolved, here = file.resolve(), Path.cwd().resolve()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else file.name


def _named(settings: config.Config) -> dict[str, bytes]:
    """Return the sources of the user's modules that the configuration names, and of modules they load."""
    if not any(":" in name for name in config.names_of_code(settings)):
        return {}
    from gpu_fleet.core import user_code  # noqa: PLC0415 - torch takes seconds, not needed for --help

    user_code.parts(settings)
    return user_code.files(Path(settings.run.directory))
