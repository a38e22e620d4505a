"""The metadata service, with tokens that run out, on both clouds."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from image.reaper.errors import CloudError
from image.reaper.metadata import Metadata


class Service(BaseHTTPRequestHandler):
    """Answers with the newest token only."""

    def do_PUT(self):
        header = f"{self.server.header}-ttl-seconds"
        self.server.tokens += 1
        known = self.path == "/latest/api/token" and self.headers.get(header) == "21600"
        self._answer(200 if known else 400, f"token-{self.server.tokens}")

    def do_GET(self):
        if self.headers.get(self.server.header) != f"token-{self.server.tokens}":
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


@pytest.fixture(params=["aws", "alicloud"])
def cloud(request):
    return request.param


@pytest.fixture
def service(cloud, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.tokens, server.answers = 0, {"/latest/meta-data/instance-id": (200, "i-1")}
    server.header = {"aws": "X-aws-ec2-metadata-token", "alicloud": "X-aliyun-ecs-metadata-token"}[cloud]
    base = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{base}/" if cloud == "aws" else "http://x")
    monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", base if cloud == "alicloud" else "http://x")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_is_fetched_with_a_token(service, cloud):
    assert Metadata(cloud).get("instance-id") == "i-1"


def test_one_token_serves_many_questions(service, cloud):
    metadata = Metadata(cloud)

    metadata.get("instance-id")
    metadata.get("instance-id")

    assert service.tokens == 1


def test_a_token_that_ran_out_is_renewed(service, cloud):
    metadata = Metadata(cloud)
    metadata.get("instance-id")
    service.tokens += 1

    assert metadata.get("instance-id") == "i-1"


def test_what_is_not_there_is_none(service, cloud):
    assert Metadata(cloud).get("spot/instance-action") is None


def test_a_failing_service_is_named_with_its_answer(service, cloud):
    service.answers["/latest/meta-data/instance-id"] = (503, "")

    with pytest.raises(CloudError, match="metadata instance-id: HTTP 503"):
        Metadata(cloud).get("instance-id")


def test_a_service_that_speaks_no_http_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")
        thread = threading.Thread(target=answer_nonsense, args=(listening,))
        thread.start()

        with pytest.raises(CloudError, match="metadata service"):
            Metadata("aws").get("instance-id")
        thread.join()


def answer_nonsense(listening):
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"nonsense\r\n\r\n")


def test_a_missing_service_is_named(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(CloudError, match=r"metadata service http://127\.0\.0\.1:9: .*refused"):
        Metadata("aws").get("instance-id")
