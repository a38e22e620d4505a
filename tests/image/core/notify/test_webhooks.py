"""A chat room gets the message in its own format, and its address stays secret."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from gpu_fleet_image.core.notify import webhooks
from gpu_fleet_image.core.notify.webhooks import Webhook
from tests.answering import answering

LONGEST_S = 60.0  # of what is not about time: a busy computer may stand still for seconds


@pytest.fixture
def room(monkeypatch):
    """Run a room on the loopback, without a certificate: it takes a message, and answers as the test sets."""
    monkeypatch.setattr(webhooks, "SCHEME", "http://")
    for name in ("SILENCE_S", "TOTAL_S"):
        monkeypatch.setattr(webhooks, name, LONGEST_S)
    made = SimpleNamespace(answer=(200, {}, b"ok"), heard=[], begun=threading.Event(), hold=threading.Event())
    made.hold.set()

    def answer(asked):
        made.heard.append(json.loads(asked.body))
        made.begun.set()
        made.hold.wait(LONGEST_S)
        return made.answer

    with answering(answer) as base:
        made.address = f"{base}/SECRET"
        yield made
        made.hold.set()


def post(room, kind="slack", message="message"):
    """Post a message; return the reason of a refusal, None if the room took it."""
    webhook = Webhook(kind, "team")
    return webhooks.post({webhook: f" {room.address}\n"}, "subject", message).get(webhook)


def test_each_service_gets_the_text_where_it_looks_for_it_and_none_calls_everybody_or_is_markdown(room):
    message = "<!channel> & [gpu-fleet explain](https://evil.example.com)"

    assert [post(room, kind, message) for kind in webhooks.BODIES] == [None] * 3

    slack, teams, dingtalk = room.heard
    ((block,),) = [card["content"]["body"] for card in teams["attachments"]]
    assert slack == {"text": f"subject\n\n&lt;!channel&gt; &amp; {message[13:]}"}
    assert block["type"] == "RichTextBlock"  # a TextRun has no Markdown: "Text features" of Adaptive Cards
    assert [text["text"] for text in block["inlines"]] == [f"subject\n\n{message}"]
    assert dingtalk == {"msgtype": "text", "text": {"content": f"gpu-fleet: subject\n\n{message}"}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {}, b"no_service"), "HTTP 404"),
        ((429, {"Retry-After": "1"}, b""), "HTTP 429"),
        ((500, {}, b"SECRET"), "HTTP 500"),
        ((302, {"Location": "http://127.0.0.1:9/SECRET"}, b""), "HTTP 302"),
        ((200, {}, b'{"errcode": 310000, "errmsg": "SECRET"}'), "error code 310000"),
        ((200, {}, b'{"errcode": "SECRET"}'), "an unknown error"),
    ],
)
def test_a_room_that_does_not_take_the_message_is_reported_without_a_word_of_its_own(room, answer, said):
    room.answer = answer

    assert post(room, "dingtalk") == said
    assert len(room.heard) == 1


@pytest.mark.parametrize("dribbles", [False, True])
def test_a_room_that_hangs_or_dribbles_is_left_behind_and_keeps_no_other_waiting(room, monkeypatch, dribbles):
    """In the test its time is up once it has begun to answer; the second room has time."""
    begun, ended = threading.Event(), threading.Event()

    def bytes_without_end():
        begun.set()
        while not ended.wait(0.1):
            yield b"."

    def moments():
        yield 0.0
        assert (begun if dribbles else room.begun).wait(LONGEST_S)
        yield LONGEST_S
        yield 0.0

    room.answer = (200, {"Content-Length": "60000"}, bytes_without_end())
    if not dribbles:
        room.hold.clear()
    hangs, refuses = Webhook("slack", "hangs"), Webhook("slack", "refuses")
    monkeypatch.setattr(webhooks, "time", SimpleNamespace(monotonic=moments().__next__))

    why = webhooks.post({hangs: room.address, refuses: "http:/"}, "subject", "message")

    ended.set()
    assert list(why) == [hangs, refuses]
    assert [text.startswith("no answer within") for text in why.values()] == [True, False]


def test_no_error_shows_the_address_of_a_webhook(monkeypatch, caplog, capfd):
    def refuse(*_, **__):
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    addresses = ["http://127.0.0.1/T0/SECRET", "SECRET", "https://[SECRET", "https://127.0.0.1:9/SECRET"]

    said = [
        webhooks.post({Webhook(kind, "team"): address}, "subject", "message")
        for kind in webhooks.BODIES
        for address in addresses
    ]

    assert all(any(why.values()) for why in said)
    assert "SECRET" not in f"{said}{caplog.text}{capfd.readouterr()}"
