"""A room gets the message in its own words, and nobody else learns the room's address."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from image.reaper.notify import webhooks
from image.reaper.notify.webhooks import Webhook

LONGEST_S = 60.0  # of what is not about time: a busy computer may stand still for seconds


class Handler(BaseHTTPRequestHandler):
    """Takes a message, and answers as the test says: (status, headers, body)."""

    def do_POST(self):
        self.server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.begun.set()
        self.server.hold.wait(LONGEST_S)
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def room(monkeypatch):
    """A room on the loopback, which has no certificate."""
    monkeypatch.setattr(webhooks, "SCHEME", "http://")
    for name in ("SILENCE_S", "TOTAL_S"):
        monkeypatch.setattr(webhooks, name, LONGEST_S)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.answer, made.heard, made.hold = (200, {}, b"ok"), [], threading.Event()
        made.hold.set()
        made.begun = threading.Event()
        made.address = f"http://127.0.0.1:{made.server_port}/SECRET"
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.hold.set()
        made.shutdown()


def post(room, kind="slack", message="message"):
    """Why the room did not take it; None where it did."""
    webhook = Webhook(kind, "team")
    return webhooks.post({webhook: f" {room.address}\n"}, "subject", message).get(webhook)


def test_each_service_gets_the_text_where_it_looks_for_it(room):
    for kind in webhooks.BODIES:
        assert post(room, kind) is None

    slack, teams, dingtalk = room.heard
    (card,) = teams["attachments"]
    assert slack == {"text": "subject\n\nmessage"}
    assert card["content"]["body"][0]["text"] == "subject\n\n\n\nmessage"
    assert dingtalk == {"msgtype": "text", "text": {"content": "gpu-fleet: subject\n\nmessage"}}


def test_no_text_calls_everybody_of_a_slack_channel(room):
    post(room, message="owner: <!channel> & <https://evil.example.com|click>")

    assert "<" not in room.heard[0]["text"]


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


def time_is_over_once(begun, monkeypatch):
    """Let the time of the first room be over as soon as something has begun; the second one has time."""

    def moments():
        yield 0.0
        assert begun.wait(LONGEST_S)
        yield LONGEST_S
        yield 0.0

    monkeypatch.setattr(webhooks, "time", SimpleNamespace(monotonic=moments().__next__))


def test_a_room_that_hangs_is_left_behind_and_keeps_no_other_room_waiting(room, monkeypatch):
    room.hold.clear()
    hangs, refuses = Webhook("slack", "hangs"), Webhook("slack", "refuses")
    time_is_over_once(room.begun, monkeypatch)

    why = webhooks.post({hangs: room.address, refuses: "http:/"}, "subject", "message")

    assert list(why) == [hangs, refuses]
    assert why[hangs].startswith("no answer within")
    assert not why[refuses].startswith("no answer within")


def test_a_room_that_dribbles_its_answer_is_left_behind_too(monkeypatch):
    monkeypatch.setattr(webhooks, "SCHEME", "http://")
    begun, ended = threading.Event(), threading.Event()
    time_is_over_once(begun, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_dribble, args=(server, begun, ended), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"

        (why,) = webhooks.post({Webhook("slack", "team"): address}, "subject", "message").values()

        ended.set()
        assert why.startswith("no answer within")


def _dribble(server, begun, ended):
    """A byte every tenth of a second: never silent for long, and never at an end."""
    talk, _ = server.accept()
    with talk:
        talk.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        begun.set()
        while not ended.wait(0.1):
            talk.sendall(b".")


@pytest.mark.parametrize("kind", webhooks.BODIES)
@pytest.mark.parametrize(
    "address", ["http://127.0.0.1/T0/SECRET", "SECRET", "https://[SECRET", "https://127.0.0.1:9/SECRET"]
)
def test_no_error_shows_the_address_of_a_webhook(kind, address, monkeypatch, caplog, capfd):
    monkeypatch.setattr(socket, "create_connection", _refuse)

    (why,) = webhooks.post({Webhook(kind, "team"): address}, "subject", "message").values()

    assert why
    assert "SECRET" not in why + caplog.text + "".join(capfd.readouterr())


def _refuse(*_, **__):
    raise ConnectionRefusedError
