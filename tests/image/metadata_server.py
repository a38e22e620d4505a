"""A metadata service of either cloud, whose tokens expire."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.answering import Answer, Asked, answering

HEADERS = {"aws": "X-aws-ec2-metadata-token", "alicloud": "X-aliyun-ecs-metadata-token"}


@dataclass
class Server:
    """The service, which answers with the newest token only, or without one where it is open."""

    header: str
    base: str = ""
    tokens: int = 0
    open: bool = False
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)  # by path

    def says(self, path: str, body: str) -> None:
        """Set an answer below ``/latest/meta-data/`` from now on."""
        self.answers[f"/latest/meta-data/{path}"] = (200, body)

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "PUT":
            self.tokens += 1
            known = asked.headers.get(f"{self.header}-ttl-seconds") == "21600"
            status = 200 if known and asked.path == "/latest/api/token" else 400
            return status, {}, f"token-{self.tokens}".encode()
        if not self.open and asked.headers.get(self.header) != f"token-{self.tokens}":
            return 401, {}, b""
        status, body = self.answers.get(asked.path, (404, ""))
        return status, {}, body.encode()


@contextmanager
def metadata_server(cloud: str) -> Iterator[Server]:
    """Serve on a free port, with an instance id."""
    made = Server(HEADERS[cloud])
    made.says("instance-id", "i-1")
    with answering(made.answer) as made.base:
        yield made
