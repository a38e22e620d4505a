"""Child processes that never outlive the rehearsal, however it ends."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stacks.rehearsal.errors import RehearsalError

# torchrun needs a moment to take its workers along; what is left then is killed.
GRACE_S = 10.0


class ChildError(RehearsalError):
    """A child process ended otherwise than it should; its last words are in the message."""


@contextmanager
def child(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    inherit: bool = True,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as the leader of a process group of its own, and end the whole group on the way out.

    Args:
        environment: variables beside the rehearsal's own.
        inherit: False for a process that gets ``environment`` and nothing of the rehearsal's own.
        cwd: where it runs; here by default.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**(os.environ if inherit else {}), **(environment or {})},
            start_new_session=True,
            cwd=cwd,
        )
        try:
            yield process
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, then make it; quiet when it has ended already."""
    signal_group(process, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # the leader may have gone and left its children: the group still bears its number
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
    """Run a command to its end; arguments as for ``child``.

    Raises:
        ChildError: with the end of its output, when its exit code is not 0 or it takes too long.
    """
    with child(command, log, environment, inherit=inherit, cwd=cwd) as process:
        finish(process, command, log, timeout_s)


def finish(process: subprocess.Popen[bytes], command: Sequence[str], log: Path, timeout_s: float) -> None:
    """Wait for a child.

    Raises:
        ChildError: with the end of its output, when its exit code is not 0 or it takes too long.
    """
    try:
        code: int | str = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = f"none after {timeout_s:.0f} s"
    if code != 0:
        raise ChildError(f"{' '.join(command)}\nexit code {code}; the end of {log}:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def ended_like_by_keyboard() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C for the length of a block, so that every ``finally`` runs.

    SIGINT too is set: a shell that starts a command in the background has it ignored, and Python leaves that
    so. Only the main thread may set signal handlers; elsewhere (tests) this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
