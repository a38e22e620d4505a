"""A moto server on a free loopback port, while a ``with`` block runs."""

import io
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, ClassVar

from moto.core.base_backend import BackendDict
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.exceptions import InternalServerError
from werkzeug.serving import make_server
from werkzeug.test import run_wsgi_app

from gpu_fleet_stacks.rehearsal.errors import RehearsalError

LOOPBACK = "127.0.0.1"
ACCOUNT_ID = DEFAULT_ACCOUNT_ID
IDENTIFIER_SEED = 3  # so that the same calls in the same order give the same ids

# Variables that would lead a client elsewhere: other credentials, a profile's own endpoints, a proxy.
_UNSET = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_ENDPOINT_OF_ONE_SERVICE = "AWS_ENDPOINT_URL_"

_only_one = threading.Lock()


class _Dispatcher(DomainDispatcherApplication):
    """moto's own dispatcher with a cache: moto lists its package's directory at every request."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        self._backends: dict[str | None, Any] = {}

    def get_backend_for_host(self, host: str | None) -> Any:
        """Return the backend of a host name, looked up once."""
        if host not in self._backends:
            self._backends[host] = super().get_backend_for_host(host)
        return self._backends[host]


@cache
def _dispatcher() -> _Dispatcher:
    """Return the dispatcher of this process: its routes take 10 ms a service to make, and hold no state."""
    return _Dispatcher()


class _Handler(MotoRequestHandler):
    """moto's own handler, with connections that stay open and are listed, and without a request log.

    werkzeug's development server closes every connection and then waits 10 ms for late data: longer than most
    answers of moto take.
    """

    protocol_version = "HTTP/1.1"
    # Headers and body leave in one write; Nagle's algorithm would delay a second one until an answer.
    wbufsize = 64 * 1024
    disable_nagle_algorithm = True
    connections: ClassVar[set[socket.socket]]
    closing: ClassVar[threading.Event]

    def setup(self) -> None:
        super().setup()
        self.connections.add(self.connection)
        if self.closing.is_set():  # the connection was opened after the last check of the connections
            _hang_up(self.connection)

    def finish(self) -> None:
        self.connections.discard(self.connection)
        super().finish()

    def handle_expect_100(self) -> bool:
        """Answer at once to a client that waits for permission to send a body."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def run_wsgi(self) -> None:
        """Answer one request: read its whole body and send the whole answer, so that the next can follow."""
        environ = self.make_environ()
        source, length = environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0)
        # a chunked body ends by itself and has no length
        content = source.read() if environ.get("wsgi.input_terminated") else source.read(length)
        environ["wsgi.input"] = io.BytesIO(content)
        try:
            parts, status, headers = run_wsgi_app(self.server.app, environ, buffered=True)
        except Exception as error:  # noqa: BLE001 - report every error of moto to the client
            parts, status, headers = run_wsgi_app(InternalServerError(repr(error)), environ, buffered=True)
        body = b"".join(parts)
        code, _, words = status.partition(" ")
        self.send_response(int(code), words)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        if int(code) not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's own signature
        """Do nothing: the tree on the screen is the log."""


@contextmanager
def moto_server(region: str) -> Iterator[str]:
    """Serve an empty moto, and point every AWS client of this process and its children at it.

    moto keeps its state in this process, so two servers at once would share it.

    Args:
        region: becomes AWS_REGION and AWS_DEFAULT_REGION.

    Yields:
        the endpoint's URL. At the end the environment, the port and the threads are released.

    Raises:
        RehearsalError: another server is open in this process.
    """
    if not _only_one.acquire(blocking=False):
        raise RehearsalError("a moto server is open in this process: a second would empty its state")
    try:
        with _served(region) as endpoint:
            yield endpoint
    finally:
        _only_one.release()


@contextmanager
def _served(region: str) -> Iterator[str]:
    connections: set[socket.socket] = set()
    closing = threading.Event()
    handler = type("_ConnectionHandler", (_Handler,), {"connections": connections, "closing": closing})
    server = make_server(LOOPBACK, 0, _dispatcher(), threaded=True, request_handler=handler)
    # Not daemons: server_close() then waits for the handlers to end.
    server.daemon_threads = False  # type: ignore[attr-defined] # of ThreadingMixIn, which make_server's type omits
    thread = threading.Thread(target=server.serve_forever, name="moto-server", kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://{LOOPBACK}:{server.port}"
    try:
        _list_again()
        _post(f"{endpoint}/moto-api/reset")
        _post(f"{endpoint}/moto-api/seed?a={IDENTIFIER_SEED}")
        with environment(client_environment(endpoint, region)):
            yield endpoint
    finally:
        server.shutdown()
        closing.set()
        for connection in tuple(connections):
            _hang_up(connection)
        thread.join()  # werkzeug waits there for the handlers
        server.server_close()


def _list_again() -> None:
    """List the services that moto's last reset left out, so that its next one empties them.

    moto 5 resets the services of a list, then clears the list. A service that another one makes anew
    meanwhile, as Auto Scaling makes EC2, keeps its state and is in no list.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("moto.") and module]
    listed: list[Any] = BackendDict._instances  # type: ignore[misc] # of a generic class
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, BackendDict) and value and value not in listed:
            listed.append(value)


def client_environment(endpoint: str, region: str) -> dict[str, str | None]:
    """Return variables that lead an AWS client to the endpoint and nowhere else; None means unset."""
    elsewhere = [name for name in os.environ if name.startswith(_ENDPOINT_OF_ONE_SERVICE)]
    return {
        **dict.fromkeys((*_UNSET, *elsewhere)),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "rehearsal",
        "AWS_SECRET_ACCESS_KEY": "rehearsal",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
    }


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set (or, with None, unset) environment variables, and restore them."""
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _post(url: str) -> None:
    request = urllib.request.Request(url, method="POST")  # noqa: S310 - the URL is this server's own
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as response:
        response.read()


def _hang_up(connection: socket.socket) -> None:
    """End a kept-alive connection, so that its handler thread returns."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # the client closed it first
        return
