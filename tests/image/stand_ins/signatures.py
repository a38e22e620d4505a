"""AWS's request signature (version 4), checked as the service would: moto takes any.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
Written from that page alone, so that it is no mirror of botocore or of the bootstrap's own signing.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


class SignatureError(Exception):
    """The request is not signed, or not by whom it says."""


@dataclass(frozen=True)
class Keys:
    """Keys of a role for a while."""

    id: str
    secret: str
    token: str


@dataclass(frozen=True)
class Signed:
    """Who asked what of whom.

    Attributes:
        key_id: the access key.
        region: where.
        service: ``s3``, ``monitoring``, ...
    """

    key_id: str
    region: str
    service: str


def check(method: str, target: str, headers: Mapping[str, str], body: bytes, keys: Keys) -> Signed:
    """Hold a request against the keys that should have signed it.

    Args:
        method: of the request.
        target: path and query as they stand in the request line.
        headers: of the request, by names in lower case.
        body: of the request.
        keys: the only ones that may ask.

    Raises:
        SignatureError: naming what is wrong.
    """
    found = AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise SignatureError(f"not signed: Authorization = {headers.get('authorization')!r}")
    key_id, day, region, service, names, signature = found.groups()
    if key_id != keys.id or headers.get("x-amz-security-token") != keys.token:
        raise SignatureError(f"signed by {key_id}, not by the role's {keys.id} with its token")
    if not {"host", "x-amz-date", "x-amz-security-token"} <= set(names.split(";")):
        raise SignatureError(f"signed headers {names}: host, date and token must be among them")
    sent_hash = headers.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
    if re.fullmatch(r"[0-9a-f]{64}", sent_hash) and sent_hash != hashlib.sha256(body).hexdigest():
        raise SignatureError("x-amz-content-sha256 is that of another body")
    path, query = _path(target, service), _query(target)
    shown = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names.split(";"))
    request = "\n".join((method, path, query, shown, names, sent_hash))
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest))
    if not hmac.compare_digest(_signature(keys.secret, scope, text), signature):
        raise SignatureError(f"the signature is not that of:\n{request}")
    return Signed(key_id, region, service)


def _path(target: str, service: str) -> str:
    """S3 takes the path as it is written, encoded once; every other service encodes it once more."""
    path = urlsplit(target).path or "/"
    return quote(unquote(path), safe="/-_.~") if service == "s3" else quote(path, safe="/-_.~")


def _query(target: str) -> str:
    pairs = parse_qsl(urlsplit(target).query, keep_blank_values=True)
    return "&".join(
        sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
    )


def _signature(secret: str, scope: str, text: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
