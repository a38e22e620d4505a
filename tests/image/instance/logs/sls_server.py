"""A stand-in for Simple Log Service: it takes PutLogs alone, and only what is signed as its page says.

Written from www.alibabacloud.com/help/en/sls/developer-reference/request-signatures and from the official
SDK's ``log_logs.proto``, not from what it is to hold: messages are read with protobuf's own library.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.answering import Answer, Asked, answering
from tests.image.alicloud_server import ENVIRON

SECRET = ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_SECRET"]
KEY_ID = ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_ID"]
SIGNED_ALWAYS = ("x-log-apiversion", "x-log-bodyrawsize", "x-log-signaturemethod")
REQUIRED, OPTIONAL, REPEATED = 2, 1, 3
UINT32, FIXED32, STRING, MESSAGE = 13, 7, 9, 11


def log_group_class():
    """``LogGroup`` as the official SDK describes it."""
    file = descriptor_pb2.FileDescriptorProto(name="sls.proto", package="sls", syntax="proto2")
    messages = {
        "Content": [("Key", 1, REQUIRED, STRING, ""), ("Value", 2, REQUIRED, STRING, "")],
        "Log": [
            ("Time", 1, REQUIRED, UINT32, ""),
            ("Contents", 2, REPEATED, MESSAGE, ".sls.Content"),
            ("Time_ns", 4, OPTIONAL, FIXED32, ""),
        ],
        "LogGroup": [
            ("Logs", 1, REPEATED, MESSAGE, ".sls.Log"),
            ("Topic", 3, OPTIONAL, STRING, ""),
            ("Source", 4, OPTIONAL, STRING, ""),
        ],
    }
    for name, fields in messages.items():
        made = file.message_type.add(name=name)
        for label, number, kind, type_of, other in fields:
            made.field.add(name=label, number=number, label=kind, type=type_of, type_name=other or None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sls.LogGroup"))


LOG_GROUP = log_group_class()


@dataclass
class SlsServer:
    """What it was sent.

    Attributes:
        lines: fields of each line, with ``time_us``.
        refused: why a request was not taken.
        answers: codes that the next requests are refused with, in order.
    """

    url: str
    lines: list[dict[str, str]] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)

    def take(self, path: str, headers, body: bytes) -> str:
        """The error code of a request; empty where it is taken."""
        if expected_authorization("POST", path, headers) != headers["Authorization"]:
            return "SignatureNotMatch"
        if hashlib.md5(body, usedforsecurity=False).hexdigest().upper() != headers["Content-MD5"]:
            return "InvalidContentMD5"
        if int(headers["x-log-bodyrawsize"]) != len(body) or len(body) > 3 * 2**20:
            return "PostBodyTooLarge"
        group = LOG_GROUP.FromString(body)
        self.places.append(path)
        self.topics.append(group.Topic)
        self.lines += [
            {entry.Key: entry.Value for entry in log.Contents}
            | {"time_us": str(log.Time * 10**6 + log.Time_ns // 1000)}
            for log in group.Logs
        ]
        return ""


def expected_authorization(method: str, path: str, headers) -> str:
    """By the page: method, MD5, type and date, then the service's headers by name, then the resource."""
    own = {name.lower(): value for name, value in headers.items()}
    if any(name not in own for name in SIGNED_ALWAYS):
        return "a header is missing"
    named = [name for name in sorted(own) if name.startswith(("x-log-", "x-acs-"))]
    text = "\n".join(
        [method, own["content-md5"], own["content-type"], own["date"]]
        + [f"{name}:{own[name]}" for name in named]
        + [path]
    )
    made = hmac.new(SECRET.encode(), text.encode(), hashlib.sha1).digest()
    return f"LOG {KEY_ID}:{base64.b64encode(made).decode()}"


@contextmanager
def sls_server() -> Iterator[SlsServer]:
    def answer(asked: Asked) -> Answer:
        status, code = found.answers.pop(0) if found.answers else (0, "")
        if not code and (code := found.take(asked.path, asked.headers, asked.body)):
            found.refused.append(code)
        said = f'{{"errorCode": "{code}", "errorMessage": "stand-in"}}'.encode() if code else b""
        return status or (401 if code else 200), {}, said

    with answering(answer) as url:
        found = SlsServer(url)
        yield found
