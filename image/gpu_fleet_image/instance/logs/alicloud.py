"""Simple Log Service: one store of the stack, written by requests that this module signs.

Its API is no RPC product, and the signing client of the official SDK can call only those. Its own SDK needs
protobuf, requests, jmespath, lz4 and a time zone reader; this module calls one operation. It signs each
request in the first version: www.alibabacloud.com/help/en/sls/developer-reference/request-signatures.
The body is a ``LogGroup`` (aliyun-log-python-sdk, ``aliyun/log/log_logs.proto``), not compressed.
"""

import base64
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from gpu_fleet_image.core.alicloud_credentials import AccessKey, Credentials
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.logs.buffer import BatchLimits
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError, source

ENDPOINT = "GPU_FLEET_ALICLOUD_LOG_ENDPOINT"  # environment variable: the service's address, in tests
# in a VPC, which needs no internet access (www.alibabacloud.com/help/en/sls/developer-reference/endpoints)
INSIDE = "https://{project}.{region}-intranet.log.aliyuncs.com"
# 4,096 lines is the lowest limit that the service has had; one call was limited to 3 MB, and is today to
# 10 MB (www.alibabacloud.com/help/en/sls/developer-reference/api-sls-2020-12-30-putlogs). Time has no limit.
LIMITS = BatchLimits(lines=4096, content_bytes=3 * 10**6, span_us=2**62)
_LOG_BYTES = 32  # the most that a line takes beside its fields: time, tags and lengths
_GROUP_BYTES = 1024  # the most that a group takes beside its lines
_API_VERSION, _SIGNATURE_METHOD = "0.6.0", "hmac-sha1"
_CONTENT_TYPE = "application/x-protobuf"
TIMEOUT_S = 15
_LARGEST_ANSWER_BYTES = 65_536
REFUSED = frozenset({"PostBodyInvalid", "PostBodyTooLarge", "InvalidLogSize"})
_LENGTH_DELIMITED, _FIXED_32 = 2, 5  # wire types of protobuf
_SEVEN_BITS, MORE = 0x7F, 0x80  # bits of a byte of protobuf's numbers


class SimpleLogService:
    """A store of a project.

    Args:
        address: ``https://HOST`` of the project.
        topic: the topic of the lines.
        now: the time, in UTC.
    """

    limits = BatchLimits(LIMITS.lines, LIMITS.content_bytes - _GROUP_BYTES, LIMITS.span_us)

    def __init__(
        self,
        address: str,
        store: str,
        topic: str,
        credentials: Credentials,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._address, self._resource = address, f"/logstores/{store}/shards/lb"
        self._topic, self._credentials, self._now = topic, credentials, now
        # without a proxy: the name is of the region's internal network
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def size(self, line: Line) -> int:
        """Return the bytes that a line takes of a batch."""
        return len(_encoded_line(line)) + _LOG_BYTES

    def send(self, lines: Sequence[Line]) -> int:
        """Write a batch; the service takes lines of any age."""
        body = encoded_group(lines, self._topic)
        try:
            keys = self._credentials.current()
        except InstanceError as error:
            raise LinesNotTakenError(str(error)) from error
        headers = signed_headers("POST", self._resource, body, keys, self._now())
        request = urllib.request.Request(  # noqa: S310 - https, or a test's server
            self._address + self._resource, data=body, method="POST", headers=headers
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(_LARGEST_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            raise _error(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise LinesNotTakenError(f"{self._address}: {error}") from error
        return 0


def _error(answer: urllib.error.HTTPError) -> InstanceError:
    """Return the error for the service's answer, by its code."""
    try:
        said = json.loads(answer.read(_LARGEST_ANSWER_BYTES))
        code, text = str(said["errorCode"]), str(said["errorMessage"])
    except (OSError, ValueError, KeyError, TypeError):
        code, text = "", "no answer of the service's"
    kind = LinesRefusedError if code in REFUSED else LinesNotTakenError
    return kind(f"HTTP {answer.code} {code}: {text}")


def signed_headers(method: str, resource: str, body: bytes, keys: AccessKey, now: datetime) -> dict[str, str]:
    """Return a request's headers, with its signature. Pure.

    Args:
        resource: the path; this program sends no query.
        now: in UTC; the service refuses a time 15 minutes off its own.
    """
    headers = {
        "x-log-apiversion": _API_VERSION,
        "x-log-bodyrawsize": str(len(body)),
        "x-log-signaturemethod": _SIGNATURE_METHOD,
        "Content-Type": _CONTENT_TYPE,
        "Content-MD5": hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
        "Date": email.utils.format_datetime(now, usegmt=True),
    }
    if keys.token:
        headers["x-acs-security-token"] = keys.token
    return headers | {
        "Authorization": f"LOG {keys.key_id}:{signature(method, resource, headers, keys.secret)}"
    }


def signature(method: str, resource: str, headers: Mapping[str, str], secret: str) -> str:
    """Return the signature of a request, in base64. Pure.

    Args:
        headers: the signed headers; they include every header that begins with ``x-log-`` or ``x-acs-``.
    """
    own = sorted((name.lower(), value) for name, value in headers.items())
    lines = [
        method,
        *(headers.get(name, "") for name in ("Content-MD5", "Content-Type", "Date")),
        *(f"{name}:{value}" for name, value in own if name.startswith(("x-log-", "x-acs-"))),
        resource,
    ]
    # the service's own method: a keyed hash, in which SHA-1 is not broken
    made = hmac.new(secret.encode(), "\n".join(lines).encode(), hashlib.sha1)
    return base64.b64encode(made.digest()).decode()


def encoded_group(lines: Sequence[Line], topic: str) -> bytes:
    """Return a ``LogGroup``: its lines, and their topic, which is also their source."""
    logs = b"".join(_delimited(1, _encoded_line(line)) for line in lines)
    return logs + _delimited(3, topic.encode()) + _delimited(4, topic.encode())


def _encoded_line(line: Line) -> bytes:
    """Return a ``Log``: seconds, fields, and the nanoseconds within the second, which keep lines in order."""
    seconds, micros = divmod(line.time_us, 10**6)
    fields = b"".join(
        _delimited(2, _delimited(1, name.encode()) + _delimited(2, text.encode()))
        for name, text in line.content.items()
    )
    nanos = (micros * 1000).to_bytes(4, "little")
    return _varint(1 << 3) + _varint(seconds) + fields + _varint(4 << 3 | _FIXED_32) + nanos


def _delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > _SEVEN_BITS:
        parts.append(value & _SEVEN_BITS | MORE)
        value >>= 7
    return bytes([*parts, value])


def connect(instance: InstanceFile, metadata: Metadata) -> SimpleLogService:
    """Return the stack's store, with the instance's role. Raises CloudError."""
    project, _, store = instance.instance_log.partition("/")
    address = os.environ.get(ENDPOINT) or INSIDE.format(project=project, region=instance.region)
    instance_id = metadata.get("instance-id") or ""
    return SimpleLogService(address, store, source(instance, instance_id), Credentials(metadata=metadata))
