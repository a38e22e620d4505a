"""Programs: those that a test runs to their end, and its own in the place of others."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(
    command: Sequence[str | Path] | str, *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command with subprocess's options, and return its status and texts."""
    return subprocess.run(command, check=check, **{"capture_output": True, "text": True} | options)


def executable(path: Path, text: str) -> None:
    """Write a program, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
