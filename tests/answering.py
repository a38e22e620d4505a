"""A server on the loopback that answers as a test says."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# the body whole, or piece by piece, for as long as a generator of them lasts
Answer = tuple[int, Mapping[str, str], bytes | Iterable[bytes]]


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def answering(answer: Callable[[Asked], Answer], protocol: str = "HTTP/1.0") -> Iterator[str]:
    """Serve on a free port until the block ends; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol
        disable_nagle_algorithm = True  # a client that keeps its connection would wait for each second write

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = answer(Asked(self.command, self.path, self.headers, body))
            whole = isinstance(content, bytes)
            self.send_response(status)
            for name, value in (({"Content-Length": str(len(content))} if whole else {}) | headers).items():
                self.send_header(name, value)
            self.end_headers()
            for piece in [content] if whole else content:
                self.wfile.write(piece)

        do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler serve on a free port until the block ends; gives the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        # a daemon: Python joins all others before it runs what is registered for the exit
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
