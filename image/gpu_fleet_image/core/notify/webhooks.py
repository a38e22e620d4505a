"""Messages to a team's room in Slack, Microsoft Teams or DingTalk.

Three JSON bodies are written by hand: the libraries for these services bring a hundred others along. A
webhook's address is a secret, because whoever has it can write to the room: no message, log or traceback
contains it.
"""

import html
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError

from gpu_fleet_image.core.document import TEXT, one_of

SCHEME = "https://"
SILENCE_S, TOTAL_S = 5.0, 8.0  # without data; for all rooms together, however slowly one answers
LARGEST_ANSWER = 64 * 1024
# Slack and DingTalk take at most 20,000 bytes, Teams 28 KB (their pages on incoming webhooks).
LONGEST_TEXT = 15_000


def _slack(text: str) -> dict[str, Any]:
    """Return Slack's body: docs.slack.dev/messaging/sending-messages-using-incoming-webhooks.

    See "Formatting".
    """
    return {"text": html.escape(text, quote=False)}


def _teams(text: str) -> dict[str, Any]:
    """Return Teams' body: learn.microsoft.com/en-us/connectors/teams.

    See "When a Teams webhook request is received".
    """
    # a TextBlock would read Markdown, and show a link in a user's text under another name
    block = {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [block],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _dingtalk(text: str) -> dict[str, Any]:
    """Return DingTalk's body: open.dingtalk.com/document/orgapp/custom-robots-send-group-messages.

    Its robots require the keyword ``gpu-fleet``.
    """
    return {"msgtype": "text", "text": {"content": f"gpu-fleet: {text}"}}


BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "slack": _slack,
    "teams": _teams,
    "dingtalk": _dingtalk,
}


@dataclass(frozen=True)
class Webhook:
    """A room's webhook.

    Attributes:
        kind: a key of ``BODIES``.
        secret: name of the secret that holds its address.
    """

    kind: Annotated[str, one_of(*BODIES)]
    secret: Annotated[str, TEXT]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse: the message goes only to the address in the secret."""


def post(rooms: Mapping[Webhook, str], subject: str, message: str) -> dict[Webhook, str]:
    """Write one message to every room in parallel, and wait for ``TOTAL_S`` seconds at most.

    Args:
        rooms: webhook -> its address, from its secret.

    Returns:
        Why a room did not accept it; empty if all did. A later answer counts as none.
    """
    refused = dict.fromkeys(rooms, f"no answer within {TOTAL_S:.0f} s")

    def write(room: Webhook, address: str) -> None:
        refused[room] = _written(room, address, f"{subject}\n\n{message}")

    # a thread that never ends must not keep the process alive
    asked = [threading.Thread(target=write, args=room, daemon=True) for room in rooms.items()]
    for thread in asked:
        thread.start()
    until = time.monotonic() + TOTAL_S
    for thread in asked:
        thread.join(max(0.0, until - time.monotonic()))
    return {room: why for room, why in tuple(refused.items()) if why}


def _written(room: Webhook, address: str, text: str) -> str:
    """Return why a room did not accept a text; empty if it did.

    The reason holds neither address nor reply.
    """
    address = address.strip()
    if not address.startswith(SCHEME):
        return "the secret must hold an https address"
    body = json.dumps(BODIES[room.kind](text[:LONGEST_TEXT])).encode()
    try:
        request = urllib.request.Request(  # noqa: S310 - https alone, checked above
            address, body, {"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SILENCE_S) as answer:
            said = answer.read(LARGEST_ANSWER)
    except HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError, HTTPException) as error:
        return type(error).__name__
    return _error_in(said)


def _error_in(said: bytes) -> str:
    """Return DingTalk's error, which it sends as an ``errcode`` with HTTP 200."""
    try:
        answer = json.loads(said)
    except ValueError:
        return ""
    code = answer.get("errcode", 0) if isinstance(answer, dict) else 0
    if not code:
        return ""
    return f"error code {code}" if isinstance(code, int) else "an unknown error"
