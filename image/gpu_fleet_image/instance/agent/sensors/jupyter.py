"""Last activity of notebooks' kernels, from their own servers.

A kernel has a connection file, and its server writes its address and token beside that. Server and files
belong to a user: so only the loopback is asked, no redirect is followed, the file must belong to the server's
user, and neither token nor answer appears in a message.
"""

import contextlib
import ctypes
import http.client
import json
import os
import socket
import ssl
import stat
import struct
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.instance.agent.sensors.commands import CONNECTION_FILE
from gpu_fleet_image.instance.agent.sensors.processes import Process
from gpu_fleet_image.instance.agent.sensors.reading import Session

TIMEOUT_S = 2.0
_LARGEST_FILE, LARGEST_ANSWER = 64 * 1024, 1024 * 1024
# Without it the request itself would count as use, and an idle server would never stop itself
# (jupyter_server, base/handlers.py, update_api_activity).
_NO_USE = "?no_track_activity=1"
KERNELS = f"api/kernels{_NO_USE}"
SESSIONS = f"api/sessions{_NO_USE}"
ANSWERED = frozenset({http.client.OK, http.client.CREATED, http.client.NO_CONTENT})
# A server's pages show no message from outside; a new file appears in the browser beside the notebook.
NOTICE = "GPU-FLEET-NOTICE-read-me.txt"
_MOST_FOLDERS = 20
_CLONE_NEWNET = 0x40000000  # setns(2)
_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10  # openat2(2): the same number on every architecture
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Server:
    """A Jupyter server.

    Attributes:
        port: on the loopback.
        base_url: first part of its paths.
    """

    pid: int
    port: int
    base_url: str
    secure: bool
    token: str


def kernel_sessions(
    kernels: Sequence[Process], table: Mapping[int, Process], root: Path = Path("/")
) -> tuple[list[Session], list[str]]:
    """Return (a session for each kernel with its last activity, errors).

    A kernel without a server (an editor's own, papermill's) is in neither: only the process table has it.

    Args:
        table: process id -> process, for the kernels' parents.
    """
    sessions, unknown = list[Session](), list[str]()
    for server in servers_of(kernels, table, root):
        owner = table[server.pid]
        try:
            sessions += _sessions(ask(server, root), owner)
        except SensorError as error:
            unknown.append(f"jupyter server of {owner.user} ({server.pid}): {error}")
    return sessions, unknown


def servers_of(
    kernels: Sequence[Process], table: Mapping[int, Process], root: Path = Path("/")
) -> list[Server]:
    """Return every server that one of the kernels belongs to; arguments as of ``kernel_sessions``."""
    servers = (server_of(kernel, table, root) for kernel in kernels)
    return list({server.pid: server for server in servers if server is not None}.values())


def put_notice(server: Server, text: str, root: Path = Path("/")) -> None:
    """Write a notice where the server's user sees it: in the top folder, and beside every open notebook.

    Raises:
        SensorError: the server does not answer, or refuses.
    """
    content = {"type": "file", "format": "text", "content": text}
    for folder in _open_folders(server, root):
        ask(server, root, _notice_in(folder), method="PUT", body=content)


def remove_notice(server: Server, root: Path = Path("/")) -> None:
    """Remove the notice again, if it is there. Raises SensorError."""
    for folder in _open_folders(server, root):
        parent = f"api/contents/{urllib.parse.quote(folder)}".rstrip("/")
        try:
            answer = ask(server, root, f"{parent}{_NO_USE}&content=1&type=directory")
            there = {str(entry["name"]) for entry in answer["content"]}
        except (TypeError, KeyError) as error:
            raise SensorError("its list of files cannot be read") from error
        if NOTICE in there:
            ask(server, root, _notice_in(folder), method="DELETE")


def _open_folders(server: Server, root: Path) -> list[str]:
    try:
        notebooks = [str(session["path"]) for session in ask(server, root, SESSIONS)]
    except (TypeError, KeyError) as error:
        raise SensorError("its list of sessions cannot be read") from error
    # the server belongs to its user: the drain cannot wait for any number of sessions
    return sorted({"", *(path.rpartition("/")[0] for path in notebooks[:_MOST_FOLDERS])})


def _notice_in(folder: str) -> str:
    return f"api/contents/{urllib.parse.quote(f'{folder}/{NOTICE}'.lstrip('/'))}{_NO_USE}"


def _sessions(answer: Any, owner: Process) -> Iterator[Session]:
    """Yield a session for each kernel; raises SensorError if the answer is not Jupyter's."""
    try:
        for kernel in answer:
            unused_s = max(0.0, (datetime.now(UTC) - parse_time(kernel["last_activity"])).total_seconds())
            busy = kernel["execution_state"] == "busy"
            who = f"kernel {str(kernel['id'])[:8]} of {owner.user}{', busy' if busy else ''}"
            yield Session("jupyter", who, 0.0 if busy else unused_s, owner.user)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise SensorError("its list of kernels cannot be read") from error


def server_of(kernel: Process, table: Mapping[int, Process], root: Path = Path("/")) -> Server | None:
    """Return the server that started a kernel, by the file beside the kernel's; None if there is none."""
    word = next(word for word in kernel.command if CONNECTION_FILE.fullmatch(word))
    folder = Path(word).parent
    parent = table.get(kernel.parent)
    while parent is not None and parent.pid > 1:
        inner = _inner_pid(parent.pid, root)
        for name in (f"jpserver-{inner}.json", f"nbserver-{inner}.json"):
            if (content := _read(parent, folder / name, root)) is not None:
                return _server(parent.pid, content)
        parent = table.get(parent.parent)
    return None


def _server(pid: int, content: dict[str, Any]) -> Server | None:
    port, base_url = content.get("port"), content.get("base_url", "/")
    if not isinstance(port, int) or not isinstance(base_url, str):
        return None
    return Server(pid, port, base_url, bool(content.get("secure")), str(content.get("token", "")))


def _inner_pid(pid: int, root: Path) -> int:
    """Return a process's id inside its own namespace, which differs in a container."""
    try:
        # bytes: the kernel truncates a program's name after 15 of them, maybe within a character
        lines = (root / f"proc/{pid}/status").read_bytes().split(b"\n")
    except OSError:
        return pid
    namespaces = next((line.split() for line in lines if line.startswith(b"NSpid:")), None)
    return int(namespaces[-1]) if namespaces else pid


def _read(owner: Process, path: Path, root: Path) -> dict[str, Any] | None:
    """Read a JSON file that belongs to a process, as that process sees it; None for any other file."""
    try:
        handle = _open_within(root / f"proc/{owner.pid}/root", path)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner.uid or status.st_size > _LARGEST_FILE:
            return None
        try:
            content = json.loads(file.read(_LARGEST_FILE))
        except (ValueError, RecursionError):  # RecursionError: brackets within brackets
            return None
    return content if isinstance(content, dict) else None


def _open_within(top: Path, path: Path) -> int:
    """Open a file for reading below a folder, with no link leading out of it (openat2(2)); raises OSError."""
    folder = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        how = struct.pack("QQQ", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        handle: int = LIBC.syscall(_OPENAT2, folder, os.fsencode(path), how, len(how))
    finally:
        os.close(folder)
    if handle < 0:
        raise OSError(ctypes.get_errno(), "openat2")
    return handle


def ask(
    server: Server,
    root: Path = Path("/"),
    path: str = KERNELS,
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
) -> Any:
    """Return a server's answer, within four seconds. Raises SensorError if it does not answer, or refuses."""
    own, its = (root / f"proc/{pid}/ns/net" for pid in ("self", server.pid))
    try:
        asking = _Asking(server, path, None if own.readlink() == its.readlink() else its)
        asking.method, asking.body = method, json.dumps(body) if body else None
    except OSError as error:
        raise SensorError(f"its network is not known: {error.strerror}") from error
    asking.start()
    asking.join(2 * TIMEOUT_S)
    if asking.is_alive():
        asking.give_up()
        raise SensorError("its API does not answer: TimeoutError")
    if asking.refused is not None:
        raise SensorError(f"its API does not answer: {type(asking.refused).__name__}")
    if asking.status not in ANSWERED:
        raise SensorError(f"its API answers {asking.status}, so the state of its kernels is unknown")
    return asking.answer


class _Asking(threading.Thread):
    """One request in a thread of its own, which can enter a container's network, and be abandoned.

    Attributes:
        method: GET, or a method that changes something.
        body: its JSON.
        status: of the answer; None without one.
        answer: its JSON.
        refused: the error, if there is no answer.
    """

    def __init__(self, server: Server, path: str, namespace: Path | None) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._path = f"/{server.base_url.strip('/')}/".replace("//", "/") + path
        self._namespace = namespace
        self._connection = _connection(server)
        # http.client drops its own before an answer that ends with the connection
        self._socket: socket.socket | None = None
        self._is_given_up = False
        self.method = "GET"
        self.body: str | None = None
        self.status: int | None = None
        self.answer: Any = None
        self.refused: Exception | None = None

    def run(self) -> None:
        """Send the request."""
        try:
            if self._namespace is not None:
                self._move(self._namespace)
            headers = {"Authorization": f"token {self._server.token}"} if self._server.token else {}
            self._connection.connect()
            self._socket = self._connection.sock
            if self._is_given_up:
                raise TimeoutError
            self._connection.request(self.method, self._path, self.body, headers)
            with self._connection.getresponse() as answer:
                self.answer = (
                    json.loads(answer.read(LARGEST_ANSWER)) if answer.status == http.client.OK else None
                )
                self.status = answer.status
        except (OSError, http.client.HTTPException, ValueError, RecursionError, OverflowError) as error:
            self.refused = error
        finally:
            self._connection.close()

    @staticmethod
    def _move(namespace: Path) -> None:
        with namespace.open("rb") as file:
            if LIBC.setns(file.fileno(), _CLONE_NEWNET) != 0:  # only for this thread
                raise OSError(ctypes.get_errno(), "setns")

    def give_up(self) -> None:
        """Abort a request that is answered slowly; one that was not sent yet is never sent."""
        self._is_given_up = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the connection closed by itself
                self._socket.shutdown(socket.SHUT_RDWR)


def _connection(server: Server) -> http.client.HTTPConnection:
    if not server.secure:
        return http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    # its certificate is self-signed, and nobody can listen on the loopback
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=TIMEOUT_S, context=context)
