"""Signed requests to Alibaba Cloud: signature method V3, ACS3-HMAC-SHA256.

https://www.alibabacloud.com/help/en/sdk/product-overview/v3-request-structure-and-signature

By hand, because the official SDK is twenty packages more on every training machine for one read call.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

ALGORITHM = "ACS3-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    """Of the RAM role of an instance; they last for hours."""

    key_id: str
    key_secret: str
    session_token: str = ""


@dataclass(frozen=True)
class Call:
    """One read call without a body."""

    host: str
    action: str
    version: str
    parameters: Mapping[str, str]

    @property
    def query(self) -> str:
        """The parameters as they stand in the address, in the order in which they are signed."""
        pairs = sorted(self.parameters.items())
        return "&".join(f"{_encoded(name)}={_encoded(value)}" for name, value in pairs)


def signed_headers(
    call: Call, credentials: Credentials, date: str, nonce: str, method: str = "GET"
) -> dict[str, str]:
    """The headers of `call`, with its signature.

    Args:
        date: now, as 2023-10-26T10:22:32Z.
        nonce: a text that is used once.
    """
    empty = hashlib.sha256(b"").hexdigest()
    headers = {
        "host": call.host,
        "x-acs-action": call.action,
        "x-acs-content-sha256": empty,
        "x-acs-date": date,
        "x-acs-signature-nonce": nonce,
        "x-acs-version": call.version,
    }
    if credentials.session_token:
        headers["x-acs-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, "/", call.query, lines, names, empty])
    text = f"{ALGORITHM}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.new(credentials.key_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    proof = f"{ALGORITHM} Credential={credentials.key_id},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": proof}


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~")
