"""Messages to all users of the instance: on every terminal, and in Jupyter's file browser."""

import logging
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.core.shared_options import inert
from gpu_fleet_image.instance.agent.sensors import jupyter
from gpu_fleet_image.instance.agent.sensors.commands import kernel_id
from gpu_fleet_image.instance.agent.sensors.processes import Process, processes, terminal_path

# A server belongs to its user and may be slow on purpose; a spot notice leaves two minutes to save
# everything.
_JUPYTER_MAY_TAKE_S = 8.0
# Major numbers of pseudo terminals: admin-guide/devices.txt of the Linux kernel.
PSEUDO_TERMINALS = range(136, 144)

LOG = logging.getLogger(__name__)


def show_all(message: str, root: Path = Path("/")) -> None:
    """Show a message wherever a user may look; log a failure and go on."""
    LOG.warning("event=notice message=%r", message)
    text = _plain(message)
    for failure in (*_by_wall(text), *_by_terminals(text, root), *_by_jupyter(text, root)):
        LOG.warning("event=notice-not-shown reason=%r", failure)


def show_in(file: Path, message: str) -> None:
    """Show a message only in a file: for an agent that plays an instance on another computer."""
    LOG.warning("event=notice message=%r", message)
    with file.open("a", encoding="utf-8") as shown:
        shown.write(f"{_plain(message)}\n")


def _plain(message: str) -> str:
    """Return a message without what a terminal would obey: the name of a user's file may be in it."""
    return inert(message, kept="").encode(errors="backslashreplace").decode()


def withdraw(root: Path = Path("/")) -> None:
    """Remove notices that no longer hold; those on terminals have scrolled by."""
    try:
        table = _table(root)
    except OSError as error:
        LOG.warning("event=notice-not-withdrawn reason=%r", str(error))
        return
    for failure in _each_server(table, root, lambda server: jupyter.remove_notice(server, root)):
        LOG.warning("event=notice-not-withdrawn reason=%r", failure)


def _by_wall(message: str) -> Iterator[str]:
    try:
        subprocess.run(["wall", message], check=True, timeout=10, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"wall: {error}"


def _by_terminals(message: str, root: Path) -> Iterator[str]:
    """Write to terminals that `wall` does not know, of JupyterLab, VS Code and tmux; yield failures."""
    text = f"\r\n*** gpu-fleet: {message}\r\n".encode()
    known, seen = _logged_in(), set[tuple[int, int]]()
    try:
        paths = [path for process in processes(root) if (path := terminal_path(process, root))]
    except OSError as error:
        yield f"process table: {error.strerror}"
        return
    for path in dict.fromkeys([*(root / "dev/pts").glob("[0-9]*"), *paths]):
        in_container = "proc" in path.parts
        try:
            if in_container or f"pts/{path.name}" not in known:
                _write(path, text, seen)
        except OSError as error:
            yield f"terminal {path}: {error.strerror}"


def _write(path: Path, text: bytes, seen: set[tuple[int, int]]) -> None:
    """Write to a terminal once.

    A user decides what a container's path leads to: only a terminal is opened or written to.
    """
    if not _is_terminal(path.lstat()):
        return
    handle = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        if _is_terminal(status) and (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            os.write(handle, text)
    finally:
        os.close(handle)


def _is_terminal(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in PSEUDO_TERMINALS


def _logged_in() -> set[str]:
    """Return the terminals in the list of log-ins, which `wall` writes to; empty without `who`."""
    try:
        answer = subprocess.run(["who"], check=True, timeout=10, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return set()
    listed = answer.stdout.decode(errors="replace")  # users choose the host names that they log in from
    return {words[1] for line in listed.splitlines() if len(words := line.split()) > 1}


def _by_jupyter(message: str, root: Path) -> Iterator[str]:
    try:
        table = _table(root)
    except OSError as error:
        yield f"process table: {error.strerror}"
        return
    yield from _each_server(table, root, lambda server: jupyter.put_notice(server, f"{message}\n", root))


def _each_server(
    table: dict[int, Process], root: Path, act: Callable[[jupyter.Server], None]
) -> Iterator[str]:
    """Do something with all Jupyter servers in parallel; yield failures, also of those that answer late."""
    kernels = [process for process in table.values() if kernel_id(process.command)]
    servers = jupyter.servers_of(kernels, table, root)
    failed = {server.pid: "no answer in time" for server in servers}

    def ask(server: jupyter.Server) -> None:
        try:
            act(server)
        except SensorError as error:
            failed[server.pid] = str(error)
        else:
            failed.pop(server.pid, None)

    asked = [threading.Thread(target=ask, args=(server,), daemon=True) for server in servers]
    for thread in asked:
        thread.start()
    until = time.monotonic() + _JUPYTER_MAY_TAKE_S
    for thread in asked:
        thread.join(max(0.0, until - time.monotonic()))
    for pid, why in tuple(failed.items()):
        yield f"jupyter server ({pid}): {why}"


def _table(root: Path) -> dict[int, Process]:
    return {process.pid: process for process in processes(root)}
