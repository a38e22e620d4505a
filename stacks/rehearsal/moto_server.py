"""A moto server on a free loopback port, for as long as a ``with`` block lasts."""

import os
import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

LOOPBACK = "127.0.0.1"
ACCOUNT_ID = DEFAULT_ACCOUNT_ID
IDENTIFIER_SEED = 3

# What would lead a client elsewhere: other credentials, a profile's own endpoints, a proxy.
_UNSET = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_ENDPOINT_OF_ONE_SERVICE = "AWS_ENDPOINT_URL_"


class _Handler(MotoRequestHandler):
    """moto's own handler, without a log line per request, and with its open connections known."""

    # Headers and body leave in two writes; Nagle would hold the second back until the first is acknowledged.
    disable_nagle_algorithm = True
    connections: ClassVar[set[socket.socket]]

    def setup(self) -> None:
        super().setup()
        self.connections.add(self.connection)

    def finish(self) -> None:
        self.connections.discard(self.connection)
        super().finish()

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's own signature
        """Say nothing: the tree on the screen is the log."""


@contextmanager
def moto_server(region: str, seed: int = IDENTIFIER_SEED) -> Iterator[str]:
    """Serve an empty moto, and point every AWS client of this process and its children at it.

    moto keeps its state in this process, so two servers at once would share it: nest none.

    Args:
        region: becomes AWS_REGION and AWS_DEFAULT_REGION.
        seed: of moto's identifiers, so that two rehearsals of one program give the same ids.

    Yields:
        the endpoint's URL. The environment, the port and the threads are given back at the end.
    """
    connections: set[socket.socket] = set()
    handler = type("_ConnectionHandler", (_Handler,), {"connections": connections})
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server(LOOPBACK, 0, application, threaded=True, request_handler=handler)
    # Not daemons, so that server_close() waits for the handlers instead of leaving them behind.
    server.daemon_threads = False  # type: ignore[attr-defined] # of ThreadingMixIn, which make_server's type omits
    thread = threading.Thread(target=server.serve_forever, name="moto-server", kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://{LOOPBACK}:{server.port}"
    try:
        _post(f"{endpoint}/moto-api/reset")
        _post(f"{endpoint}/moto-api/seed?a={seed}")
        with environment(client_environment(endpoint, region)):
            yield endpoint
    finally:
        server.shutdown()
        thread.join()
        for connection in tuple(connections):
            _hang_up(connection)
        server.server_close()


def client_environment(endpoint: str, region: str) -> dict[str, str | None]:
    """Variables that lead an AWS client to the endpoint and nowhere else; None means unset."""
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
    """Set (or, with None, unset) environment variables, and put them back."""
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
        # the client was quicker
        return
