"""A metadata service whose tokens run out, as either cloud has it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HEADERS = {"aws": "X-aws-ec2-metadata-token", "alicloud": "X-aliyun-ecs-metadata-token"}


class Service(BaseHTTPRequestHandler):
    """Answers with the newest token only."""

    def do_PUT(self):
        header = f"{self.server.header}-ttl-seconds"
        self.server.tokens += 1
        known = self.path == "/latest/api/token" and self.headers.get(header) == "21600"
        self._answer(200 if known else 400, f"token-{self.server.tokens}")

    def do_GET(self):
        if not self.server.open and self.headers.get(self.server.header) != f"token-{self.server.tokens}":
            self._answer(401, "")
        elif self.path in self.server.answers:
            self._answer(*self.server.answers[self.path])
        else:
            self._answer(404, "")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_arguments):
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """The service; ``answers`` has (status, body) by path."""

    header = ""
    tokens = 0
    open = False  # answers without a token too
    answers: dict[str, tuple[int, str]]

    @property
    def base(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def says(self, path: str, body: str) -> None:
        """From now on answer so, below ``/latest/meta-data/``."""
        self.answers[f"/latest/meta-data/{path}"] = (200, body)


@contextmanager
def metadata_server(cloud: str) -> Iterator[Server]:
    """Serve on a free port; it knows an instance id."""
    server = Server(("127.0.0.1", 0), Service)
    server.header, server.answers = HEADERS[cloud], {}
    server.says("instance-id", "i-1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
