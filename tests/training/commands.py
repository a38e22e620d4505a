"""Calls of the commands of `python -m gpu_fleet` inside a test: exit status and messages."""

import os
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import tomli_w

from gpu_fleet.cli import main
from tests.training.ranks import run_ranks


def tried(ranks: int, table: dict[str, Any], folder: Path, *overrides: str) -> list[tuple[int, str]]:
    """Return exit status and standard error of every rank of `train start` with this configuration."""
    file = folder / "config.toml"
    file.write_text(tomli_w.dumps(table))
    return run_ranks(command, ranks, ["start", str(file), *overrides])


def tried_alone(table: dict[str, Any], folder: Path, *overrides: str) -> tuple[int, str]:
    """Run `train start` with `table` in this process, one of several ranks that share the folder or alone.

    Each rank writes the file whole: a rank that read a half-written one ended, and the other waited for it.
    """
    file = folder / "config.toml"
    own = folder / f"config-{os.getpid()}.toml"
    own.write_text(tomli_w.dumps(table))
    own.replace(file)
    return command(["start", str(file), *overrides])


def refused(table: dict[str, Any], folder: Path, *overrides: str) -> str:
    """Run `train start`, which is to end for good with one message; return the message."""
    status, said = tried_alone(table, folder, *overrides)
    assert (status, said.count("error: "), "Traceback" in said) == (65, 1, False), said
    return said


def command(arguments: list[str]) -> tuple[int, str]:
    """Run `python -m gpu_fleet ARGUMENTS` on this rank; return its exit status and stderr."""
    heard = StringIO()
    with redirect_stderr(heard):
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0), heard.getvalue()
    return 0, heard.getvalue()
