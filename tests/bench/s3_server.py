"""A server on the loopback that takes objects as S3 does, at a stated bandwidth; large contents are not kept.

    python -m tests.bench.s3_server BYTES_PER_S

It prints its port, and then a line for each object that is whole: the time, its size, its key.
"""

import hashlib
import itertools
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PIECE_BYTES = 1 << 20
KEPT_BYTES = 1 << 16  # leases and manifests are read again
ISO = "%Y-%m-%dT%H:%M:%S.000Z"


@dataclass(frozen=True)
class Stored:
    """One object."""

    size: int
    content: bytes  # of a small one
    changed_at_s: float


class Bandwidth:
    """A line that all connections share."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._lock = bytes_per_s, threading.Lock()
        self._free_at_s = 0.0

    def take(self, size: int) -> None:
        """Wait until so many bytes have passed."""
        with self._lock:
            self._free_at_s = max(time.monotonic(), self._free_at_s) + size / self._bytes_per_s
            wait_s = self._free_at_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)


class Bucket:
    """All objects, by path."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.parts: defaultdict[str, dict[int, int]] = defaultdict(dict)  # upload -> part -> size
        self.uploads = itertools.count(1)
        self.lock = threading.Lock()

    def put(self, path: str, size: int, content: bytes) -> None:
        """Store an object, and say so."""
        now_s = time.time()
        self.objects[path] = Stored(size, content, now_s)
        print(f"{now_s} {size} {path}", flush=True)  # noqa: T201 - read by the bench

    def listing(self, bucket: str, prefix: str) -> str:
        """The answer to a list request; there are never more objects than fit one page."""
        inside = f"/{bucket}/{prefix}"
        items = "".join(
            f"<Contents><Key>{escape(path.removeprefix(f'/{bucket}/'))}</Key><Size>{stored.size}</Size>"
            f"<LastModified>{time.strftime(ISO, time.gmtime(stored.changed_at_s))}</LastModified></Contents>"
            for path, stored in sorted(self.objects.items())
            if path.startswith(inside)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"


class Handler(BaseHTTPRequestHandler):
    """One connection, which stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bucket: Bucket
    line: Bandwidth

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        words = parse_qs(parts.query, keep_blank_values=True)
        return unquote(parts.path), {name: values[0] for name, values in words.items()}

    def _body(self) -> tuple[int, bytes, str]:
        """Size, content of a small body, and MD5 of it."""
        left = size = int(self.headers.get("Content-Length") or 0)
        kept = b""
        while left:
            piece = self.rfile.read(min(PIECE_BYTES, left))
            left -= len(piece)
            self.line.take(len(piece))
            kept = piece if size <= KEPT_BYTES else b""
        return size, kept, hashlib.md5(kept, usedforsecurity=False).hexdigest()

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_PUT(self) -> None:
        path, words = self._asked()
        size, content, digest = self._body()
        with self.bucket.lock:
            if "partNumber" in words:
                self.bucket.parts[words["uploadId"]][int(words["partNumber"])] = size
            elif self.headers.get("If-None-Match") == "*" and path in self.bucket.objects:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            else:
                self.bucket.put(path, size, content)
        self._answer(200, ETag=f'"{digest}"')

    def do_POST(self) -> None:
        path, words = self._asked()
        self._body()
        with self.bucket.lock:
            if "uploads" in words:
                upload = str(next(self.bucket.uploads))
                text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                self._answer(200, f"{text}</InitiateMultipartUploadResult>".encode())
                return
            self.bucket.put(path, sum(self.bucket.parts.pop(words["uploadId"]).values()), b"")
        self._answer(
            200, b"<CompleteMultipartUploadResult><ETag>whole</ETag></CompleteMultipartUploadResult>"
        )

    def do_GET(self) -> None:
        path, words = self._asked()
        with self.bucket.lock:
            if "list-type" in words:
                listing = self.bucket.listing(path.strip("/"), words.get("prefix", ""))
                self._answer(200, listing.encode(), Content_Type="application/xml")
                return
            stored = self.bucket.objects.get(path)
        if stored is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        changed = formatdate(stored.changed_at_s, usegmt=True)
        self._answer(200, stored.content, Last_Modified=changed, ETag='"whole"')

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        with self.bucket.lock:
            self.bucket.objects.pop(path, None)
        self._answer(204)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """It takes as many connections at once as a client opens."""

    request_queue_size = 64


def main(bytes_per_s: float) -> None:
    Handler.bucket, Handler.line = Bucket(), Bandwidth(bytes_per_s)
    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)  # noqa: T201 - read by the bench
        server.serve_forever()


if __name__ == "__main__":
    main(float(sys.argv[1]))
