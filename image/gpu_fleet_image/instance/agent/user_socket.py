"""The agent's socket for users of its instance: one line in, one line out; the kernel names the caller.

Anyone who can run a program here can connect, send nothing, send without end, or disconnect. So each
connection has one thread, a deadline and a maximum line length; each account has few connections at once, and
all together have a limit. Sensors and heartbeats have threads of their own.
"""

import logging
import os
import pwd
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpu_fleet_image.core.files import FOLDER, unsafe

MOST_CONNECTIONS, MOST_OF_AN_ACCOUNT = 16, 2
LONGEST_REQUEST = 4096  # bytes; a reason has 128 characters
_REQUEST_WITHIN_S = 5.0
PAUSE_S = 0.02  # after each connection: at most fifty a second, so that a flood does not use up a processor
EVERYBODY = 0o666
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid

LOG = logging.getLogger(__name__)


class UserSocket:
    """Server in a thread that ends with the process.

    Args:
        path: of the socket; only root may write to its folder.
        answer: returns the line for a request of an account; a longer request is cut one byte beyond the
            limit. Many threads call it at once.
        busy: the line for a connection above the limit.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[bytes, str], bytes],
        busy: bytes,
        request_within_s: float = _REQUEST_WITHIN_S,
    ) -> None:
        self._path = path
        self._answer = answer
        self._busy = busy
        self._request_within_s = request_within_s
        self._lock = threading.Lock()
        self._talking = Counter[str]()
        self._closed = threading.Event()
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Accept connections from now on, replacing an agent that ended.

        Raises:
            OSError: the socket cannot be made, or others may write to its folder (``PermissionError``).
        """
        self._socket = bound(self._path)
        threading.Thread(target=self._listen, args=(self._socket,), name="users", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed.set()
        if self._socket is not None:
            self._path.unlink(missing_ok=True)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes up the accepting thread
            self._socket.close()

    def _listen(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if self._closed.wait(1.0):
                    return
                LOG.warning("event=no-connection reason=%r", str(error))  # say, too many open files
                continue
            self._admit(connection)
            self._closed.wait(PAUSE_S)

    def _admit(self, connection: socket.socket) -> None:
        """Serve a user in a thread, or refuse a connection above the limit."""
        name, counted = caller_of(connection)
        with self._lock:
            many = self._talking[counted] >= MOST_OF_AN_ACCOUNT or self._talking.total() >= MOST_CONNECTIONS
            if not many:
                self._talking[counted] += 1
        if not many:
            try:
                threading.Thread(target=self._talk, args=(connection, name, counted), daemon=True).start()
                return
            except RuntimeError as error:  # no thread is available
                LOG.warning("event=no-thread reason=%r", str(error))
                self._forget(counted)
        with connection, suppress(OSError):
            connection.setblocking(False)
            connection.send(self._busy)

    def _talk(self, connection: socket.socket, name: str, counted: str) -> None:
        try:
            with connection, suppress(OSError):  # timed out or disconnected: nobody waits for an answer
                answer = self._answer(line_of(connection, self._request_within_s), name)
                connection.settimeout(self._request_within_s)
                connection.sendall(answer)
        finally:
            self._forget(counted)

    def _forget(self, counted: str) -> None:
        with self._lock:
            self._talking[counted] -= 1
            self._talking += Counter()  # drops accounts without connections


def bound(path: Path) -> socket.socket:
    """Return a socket that every user may connect to; errors as for ``UserSocket.open``.

    The address uses the folder's descriptor, since the path may exceed an address's 107 bytes.
    """
    folder = os.open(path.parent, FOLDER)
    made = socket.socket(socket.AF_UNIX)
    try:
        if why := unsafe(os.fstat(folder), os.geteuid()):
            raise PermissionError(why)
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        address = f"/proc/self/fd/{folder}/{path.name}"
        made.bind(address)
        Path(address).chmod(EVERYBODY)
        made.listen(MOST_CONNECTIONS)
    except OSError:
        made.close()
        raise
    finally:
        os.close(folder)
    return made


def caller_of(connection: socket.socket) -> tuple[str, str]:
    """Return the caller by the kernel's credentials: (name, name for the limit).

    Numbers without an account count as one: a user has thousands of them in their own containers.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}", ""
    return name, name


def line_of(connection: socket.socket, within_s: float) -> bytes:
    """Return a user's data up to the end of the first line or of the stream, or one byte above the limit.

    Raises OSError if the user disconnected, or was too slow (``TimeoutError``).
    """
    until = time.monotonic() + within_s
    content = b""
    while b"\n" not in content and len(content) <= LONGEST_REQUEST:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(LONGEST_REQUEST + 1 - len(content))
        if not part:
            break
        content += part
    return content.partition(b"\n")[0]
