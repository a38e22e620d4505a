"""Child processes that end with the rehearsal, however it ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_fleet_stacks.core.signals import interruption_after
from gpu_fleet_stacks.rehearsal.errors import RehearsalError

# torchrun needs a moment to end its workers; the rest is killed.
GRACE_S = 10.0


class ChildError(RehearsalError):
    """A child process failed or took too long; the message holds the end of its output."""


@contextmanager
def child(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    inherit: bool = True,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as the leader of its own process group, and end the whole group with the block.

    Args:
        environment: variables beside the rehearsal's own.
        inherit: False for a process that gets only ``environment``.
        cwd: its working directory; the current one by default.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as output:
        try:
            with interruption_after():
                process = subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**(os.environ if inherit else {}), **(environment or {})},
                    start_new_session=True,
                    cwd=cwd,
                )
            yield process
        finally:
            if process is not None:
                end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, then kill it; do nothing when it has ended already."""
    signal_group(process, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # the leader may have ended before its children: the group keeps its number
        signal_group(process, signal.SIGKILL)
        process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal every process of the child's group, if any is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def run(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    *,
    inherit: bool = True,
    cwd: Path | None = None,
) -> None:
    """Run a command to its end; arguments as in ``child``.

    Raises:
        ChildError: its exit code is not 0 or it takes too long; the message holds the end of its output.
    """
    with child(command, log, environment, inherit=inherit, cwd=cwd) as process:
        finish(process, command, log, timeout_s)


def finish(process: subprocess.Popen[bytes], command: Sequence[str], log: Path, timeout_s: float) -> None:
    """Wait for a child.

    Raises:
        ChildError: its exit code is not 0 or it takes too long; the message holds the end of its output.
    """
    try:
        code: int | str = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = f"none after {timeout_s:.0f} s"
    if code != 0:
        raise ChildError(f"{' '.join(command)}\nexit code {code}; the end of {log}:\n{tail(log)}")


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
