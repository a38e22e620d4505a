"""A small instance metadata service with session tokens, on loopback.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html
https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpu_fleet_stacks.rehearsal.moto_server import LOOPBACK

SPOT_ACTION = "/latest/meta-data/spot/instance-action"
# EC2 gives the notice two minutes ahead:
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
NOTICE = timedelta(minutes=2)
ROLE_KEYS = "/latest/meta-data/iam/security-credentials/"
TOKEN_HEADERS = {"aws": "X-aws-ec2-metadata-token", "alicloud": "X-aliyun-ecs-metadata-token"}


class MetadataService:
    """Metadata service of one instance.

    Attributes:
        endpoint: the base URL, for ``AWS_EC2_METADATA_SERVICE_ENDPOINT``.
        answers: path -> body; any other path is 404, as without a notice.
        asked: paths of requests with a valid token, in order.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self.endpoint = endpoint
        self.token = token
        self.answers: dict[str, str] = {}
        self.asked: list[str] = []

    def give_role(self, name: str) -> None:
        """Serve keys of an instance role, as an instance profile does; moto accepts any."""
        ends = datetime.now(UTC) + timedelta(hours=6)
        self.answers[ROLE_KEYS] = name
        self.answers[ROLE_KEYS + name] = json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": "ASIA" + secrets.token_hex(8).upper(),
                "SecretAccessKey": secrets.token_hex(20),
                "Token": secrets.token_hex(32),
                "LastUpdated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )

    def send_spot_notice(self, now: datetime | None = None) -> None:
        """Announce that the instance will be interrupted in two minutes."""
        taken = (now or datetime.now(UTC)) + NOTICE
        self.answers[SPOT_ACTION] = json.dumps(
            {"action": "terminate", "time": taken.strftime("%Y-%m-%dT%H:%M:%SZ")}
        )


@contextmanager
def metadata_service(cloud: str = "aws") -> Iterator[MetadataService]:
    """Serve on a free port until the block ends."""
    header = TOKEN_HEADERS[cloud]
    service: MetadataService

    class Handler(BaseHTTPRequestHandler):
        """A handler that answers only requests with a token, as with ``http_tokens=required``."""

        def do_PUT(self) -> None:
            known = self.path == "/latest/api/token" and self.headers.get(f"{header}-ttl-seconds")
            self._answer(200 if known else 400, service.token if known else "")

        def do_GET(self) -> None:
            if self.headers.get(header) != service.token:
                self._answer(401, "")
                return
            service.asked.append(self.path)
            body = service.answers.get(self.path)
            self._answer(404 if body is None else 200, body or "")

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
            """Do nothing: the rehearsal's tables are the log."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    service = MetadataService(f"http://{LOOPBACK}:{server.server_port}", secrets.token_hex(16))
    thread = threading.Thread(target=server.serve_forever, name="metadata", kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
