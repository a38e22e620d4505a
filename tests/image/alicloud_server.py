"""A small HTTP server that speaks Alibaba Cloud's RPC protocol: signatures, parameters, errors.

An object with a method for each action, such as ``describe_instances(parameters)``, implements them; it
returns the answer, or raises ``RefusedError``. The real SDK signs; a wrong signature is refused. So is a
parameter that the action does not take, and an answer with a field that it does not have.
"""

import base64
import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.providers.alicloud.session import Clients, Product
from tests.answering import Answer, Asked, answering
from tests.image.alicloud_api import refused

SECRET = "made-up"
ENVIRON = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "made-up", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": SECRET}
REGION = "cn-wulanchabu"


class RefusedError(Exception):
    """An answer with an error code."""

    def __init__(self, code: str, status: int = 400) -> None:
        self.code, self.status = code, status
        super().__init__(code)


def nested(flat: dict[str, str]) -> dict[str, Any]:
    """Convert ``Tag.1.Key`` and the like to lists of objects."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return {name: _listed(value) for name, value in tree.items()}


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(each_value) for key, each_value in value.items()}
    return [inner[key] for key in sorted(inner, key=int)] if all(key.isdecimal() for key in inner) else inner


def signature(method: str, parameters: dict[str, str]) -> str:
    """Sign by RPC, version 1.0 (www.alibabacloud.com/help/en/sdk/product-overview/rpc-mechanism)."""
    pairs = (f"{_encoded(key)}={_encoded(value)}" for key, value in sorted(parameters.items()))
    text = f"{method}&%2F&{_encoded('&'.join(pairs))}"
    digest = hmac.new(f"{SECRET}&".encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def _encoded(text: str) -> str:
    return quote(text, safe="~")


@dataclass
class Server:
    """The server, and the object that answers."""

    actions: Any = None
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)  # action -> number of requests

    def answer(self, request: Asked) -> Answer:
        sent = f"{urlsplit(request.path).query}&{request.body.decode()}"
        asked = dict(parse_qsl(sent, keep_blank_values=True))
        given, action = asked.pop("Signature", ""), asked.get("Action", "")
        self.asked[action] += 1
        try:
            if given != signature("POST", asked):
                raise RefusedError("SignatureDoesNotMatch")
            method = re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()
            act = getattr(self.actions, method, None)
            if act is None:
                raise RefusedError("InvalidAction.NotFound", 404)
            answer = act(nested(asked))
            if odd := refused(action, asked, answer):
                raise RefusedError(f"Undocumented: {odd}")
            status, said = 200, {"RequestId": "made-up", **answer}
        except RefusedError as error:
            said = {"Code": error.code, "Message": f"no: {action}", "RequestId": "made-up"}
            status = error.status
        return status, {"Content-Type": "application/json"}, json.dumps(said).encode()


@contextmanager
def serving(actions: Any = None) -> Iterator[Server]:
    server = Server(actions)
    with answering(server.answer, "HTTP/1.1") as server.url:
        yield server


def clients(server: Server, s3: Any = None) -> Clients:
    """Return the real SDK's clients for the server; they never sleep."""
    credentials = Credentials(ENVIRON)
    made = {
        known.name: Product(
            known.name.capitalize(), REGION, credentials, endpoint=server.url, wait=lambda _: None
        )
        for known in fields(Clients)
        if known.name != "s3"
    }
    return Clients(**made, s3=s3)
