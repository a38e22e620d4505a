"""HTTP service on loopback: credentials in both clouds' formats, and metadata of the instance.

https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
https://www.alibabacloud.com/help/en/sdk/developer-reference/v2-manage-python-access-credentials ("URI")
"""

import json
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.credentials.callers import End, account_of
from gpu_fleet_image.instance.credentials.errors import NoSessionError, NotServedError
from gpu_fleet_image.instance.credentials.facts import ALLOWED
from gpu_fleet_image.instance.credentials.sessions import SessionKeys, Sessions

PORT = 823  # below 1024: users cannot bind it even while the service is down
ADDRESS = "127.0.0.1"
CREDENTIALS = "/credentials"
META_DATA, _TOKEN_PATH = "/latest/meta-data/", "/latest/api/token"
TOKEN = "of-no-use"  # noqa: S105 - clients ask for one; here the connection identifies the caller
SILENT_S = 5.0  # limit for a caller that sends nothing
LONGEST_S = 30.0  # limit of a connection, with a slow caller and the cloud's answer
# Headers of proxies (RFC 9110 and 7239); the metadata service of AWS refuses the first likewise.
PROXIED = ("X-Forwarded-For", "Forwarded", "Via")
MOST_AT_ONCE = 64  # connections of one account

log = logging.getLogger(__name__)


class CredentialsServer(ThreadingHTTPServer):
    """Server of the instance's users.

    Args:
        listening: the socket, possibly from systemd.
        cloud: ``aws`` or ``alicloud``.
        account_of: returns the account of the other end; raises NotServedError.
    """

    daemon_threads = True

    def __init__(
        self,
        listening: socket.socket,
        cloud: str,
        sessions: Sessions,
        metadata: Metadata,
        account_of: Callable[[End, End], str] = account_of,
    ) -> None:
        super().__init__((ADDRESS, 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()
        self.facts = ALLOWED[cloud]
        self.sessions, self.metadata, self.account_of = sessions, metadata, account_of
        # by connection: the next one may have the same address before the first is forgotten
        self.callers: dict[Any, str | NotServedError] = {}
        self._open: dict[Any, float] = {}
        self._asking: Counter[str] = Counter()
        self._counting = threading.Lock()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Identify the caller before anything is read: an idle connection counts too."""
        try:
            caller: str | NotServedError = self.account_of(client_address, request.getsockname())
        except NotServedError as error:
            caller = error
        with self._counting:
            if self._asking[_name(caller)] >= MOST_AT_ONCE:
                log.warning("event=too-many-at-once account=%r most=%d", _name(caller), MOST_AT_ONCE)
                return False
            self._asking[_name(caller)] += 1
            self.callers[request] = caller
            self._open[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """End connections that take too long, whatever they send; called between two requests."""
        began_before = time.monotonic() - LONGEST_S
        with self._counting:
            late = [request for request, began in self._open.items() if began < began_before]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one can be started."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and release the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._counting:
            self._asking[_name(self.callers.pop(request))] -= 1
            del self._open[request]

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base class's
        """Log an error of a connection; a caller that hangs up is no error."""
        hung_up = isinstance(sys.exc_info()[1], OSError)
        log.info("event=connection-ended client=%s", client_address, exc_info=not hung_up)


class Handler(BaseHTTPRequestHandler):
    """Handler of one request for each connection."""

    server: CredentialsServer
    timeout = SILENT_S
    server_version, sys_version = "gpu-fleet", ""

    def do_PUT(self) -> None:
        """Answer with a session token, as the metadata service does."""
        self._answer_to_a_user(self._token)

    def do_GET(self) -> None:
        """Answer with credentials, or with metadata."""
        self._answer_to_a_user(self._credentials if self.path == CREDENTIALS else self._fact)

    def _answer_to_a_user(self, answer: Callable[[str], tuple[HTTPStatus, str]]) -> None:
        try:
            self._check_headers()
            caller = self.server.callers[self.request]
            if isinstance(caller, NotServedError):
                raise caller
        except NotServedError as error:
            log.warning("event=not-served path=%r reason=%r", self.path, str(error))
            self._send(HTTPStatus.FORBIDDEN, _refusal("NotServed", str(error)))
        else:
            self._send(*answer(caller))

    def _check_headers(self) -> None:
        """Refuse a page in a user's browser, and a user's proxy for others; raises NotServedError."""
        name = self.headers.get("Host", ADDRESS).partition(":")[0]
        if name not in (ADDRESS, "localhost"):
            raise NotServedError(f"asked as {name!r}; allowed: {ADDRESS}, localhost")
        if proxied := [header for header in PROXIED if header in self.headers]:
            raise NotServedError(f"asked with {proxied[0]}, through a proxy: it would be the proxy's user")

    def _credentials(self, account: str) -> tuple[HTTPStatus, str]:
        try:
            keys = self.server.sessions.keys_of(account)
        except NoSessionError as error:
            log.error("event=no-session account=%s reason=%r", account, str(error))
            why = f"no credentials of this pool's user role for account {account!r}: {error}"
            return HTTPStatus.SERVICE_UNAVAILABLE, _refusal("NoSession", why)
        return HTTPStatus.OK, json.dumps(both_clouds(keys))

    def _fact(self, _account: str) -> tuple[HTTPStatus, str]:
        path = self.path.removeprefix(META_DATA).rstrip("/")
        if not self.path.startswith(META_DATA) or path not in self.server.facts:
            return HTTPStatus.NOT_FOUND, _refusal("NotFound", f"{self.path} is not for users")
        try:
            said = self.server.metadata.get(path)
        except CloudError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, _refusal("NoMetadata", str(error))
        return (HTTPStatus.NOT_FOUND, "") if said is None else (HTTPStatus.OK, said)

    def _token(self, _account: str) -> tuple[HTTPStatus, str]:
        known = self.path == _TOKEN_PATH
        return (HTTPStatus.OK, TOKEN) if known else (HTTPStatus.NOT_FOUND, "")

    def _send(self, status: HTTPStatus, body: str) -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
        """Log nothing for a request that succeeded."""


def _name(caller: str | NotServedError) -> str:
    """Return the name under which a caller's connections are counted; all refused ones share one."""
    return caller if isinstance(caller, str) else ""


def both_clouds(keys: SessionKeys) -> dict[str, str]:
    """Return one answer that the SDKs of both clouds read. Pure."""
    return {
        "Code": "Success",
        "AccessKeyId": keys.key_id,
        "SecretAccessKey": keys.secret,
        "Token": keys.token,
        "AccessKeySecret": keys.secret,
        "SecurityToken": keys.token,
        "Expiration": keys.ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _refusal(code: str, message: str) -> str:
    return json.dumps({"Code": code, "Message": message})
