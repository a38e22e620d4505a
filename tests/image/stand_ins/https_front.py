"""A cloud's HTTPS endpoints under their real names: one server, one certificate, one authority.

It holds each request against the role's keys, notes it, and hands it on to what stands in for the service.
"""

import datetime
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = "127.0.0.1"
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


class RefusedError(Exception):
    """The service would refuse the request; its text says why."""


@dataclass(frozen=True)
class Request:
    """One request as it arrived; header names in lower case."""

    host: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Forward:
    """Where a request goes on to.

    Attributes:
        endpoint: ``http://HOST:PORT``.
        target: path and query there.
    """

    endpoint: str
    target: str


Route = Callable[[Request], Forward]


@dataclass
class Front:
    """The running server.

    Attributes:
        port: on this computer's loopback.
        authority: its certificate authority, PEM.
        handled: requests that were handed on.
        refused: (host, why) of those that were not.
    """

    port: int
    authority: str
    handled: list[Request] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def hosts(self) -> set[str]:
        """The names that were asked for."""
        return {request.host for request in self.handled}


@contextmanager
def https_front(folder: Path, names: Sequence[str], route: Route) -> Iterator[Front]:
    """Serve until the block ends.

    Args:
        folder: for keys and certificates.
        names: host names that the certificate is for.
        route: where a request goes on to; raises ``RefusedError``.
    """
    authority = _certificates(folder, names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")

    class Handler(_Handler):
        """Knows its front."""

    class Server(ThreadingHTTPServer):
        """Says nothing of what goes wrong below HTTP, say a client that does not trust the authority."""

        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing."""

    server = Server((LOOPBACK, 0), Handler)
    # the handshake waits until a thread of its own reads: a slow client must not keep others out
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    front = Front(server.server_port, authority)
    Handler.front, Handler.route = front, staticmethod(route)
    thread = threading.Thread(target=server.serve_forever, name="https-front", args=(0.05,))
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Hands every request on, connections kept open."""

    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True
    front: Front
    route: Route

    def do_any(self) -> None:
        """Hand one request on."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(headers.get("host", ""), self.command, self.path, headers, self._body())
        try:
            forward = type(self).route(request)
        except RefusedError as error:
            self.front.refused.append((request.host, str(error)))
            self._answer(403, {"Content-Type": "text/plain"}, str(error).encode())
            return
        self.front.handled.append(request)
        self._hand_on(request, forward)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any  # noqa: N815 - the base class's names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers: the body's own words follow its end."""
        return body

    def _hand_on(self, request: Request, forward: Forward) -> None:
        place = urlsplit(forward.endpoint)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        headers |= {"host": place.netloc, "content-length": str(len(request.body))}
        headers.pop("expect", None)
        try:
            connection.request(request.method, forward.target, request.body, headers)
            answer = connection.getresponse()
            content = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
            length = answer.getheader("Content-Length") if request.method == "HEAD" else None
            self._answer(answer.status, kept, content, length)
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], content: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: ``handled`` is the log."""


def _certificates(folder: Path, names: Sequence[str]) -> str:
    """Write ``server.pem``; gives the authority's certificate."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-fleet boot test")])
    authority = (
        _draft(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        _draft(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front")]), authority_name, key.public_key()
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.pem").write_bytes(private + server.public_bytes(serialization.Encoding.PEM))
    return authority.public_bytes(serialization.Encoding.PEM).decode()


def _draft(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
