"""A notice is seen where users look: on terminals that no list of log-ins has, and in Jupyter."""

import json
import os
import pty
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from image.reaper.agent.sensors.jupyter import NOTICE, Server, put_notice, remove_notice
from image.reaper.agent.show import _logged_in, _write, show_all
from image.reaper.errors import SensorError

TOKEN = "0123456789abcdef"


@pytest.fixture
def terminal():
    """A terminal as JupyterLab opens one: (what its user sees, where it lies)."""
    seen, shell = pty.openpty()
    os.set_blocking(seen, False)
    yield seen, Path(os.ttyname(shell))
    os.close(seen)
    os.close(shell)


def test_a_terminal_shows_the_notice_once_however_many_ways_lead_to_it(terminal):
    seen, path = terminal
    known = set()

    _write(path, b"idle", known)
    _write(path, b"idle", known)

    assert os.read(seen, 100) == b"idle"


def test_nothing_but_a_terminal_is_written_to(terminal, tmp_path):
    seen, path = terminal
    file, link, pipe = tmp_path / "0", tmp_path / "1", tmp_path / "2"
    file.write_text("a job's results")
    link.symlink_to(path)
    os.mkfifo(pipe)

    for item in (file, link, pipe):
        _write(item, b"idle", set())

    assert file.read_text() == "a job's results"
    with pytest.raises(BlockingIOError):
        os.read(seen, 100)


def test_whatever_a_host_that_a_user_logs_in_from_is_called_its_terminal_is_known(monkeypatch, tmp_path):
    (tmp_path / "who").write_text("#!/bin/sh\nprintf 'ada pts/3 2026-11-22 12:00 (\\377\\350)\\n'\n")
    (tmp_path / "who").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert _logged_in() == {"pts/3"}


def test_a_message_reaches_the_log_also_where_nothing_can_be_shown(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")

    show_all("going", tmp_path)

    assert "event=notice message='going'" in caplog.text
    assert caplog.text.count("event=notice-not-shown") == 3


class Handler(BaseHTTPRequestHandler):
    """Answers as Jupyter Server's contents and sessions API does, to those with the token."""

    def _handle(self):
        path = unquote(urlsplit(self.path).path).removeprefix("/lab/api/")
        files, method = self.server.files, self.command
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"token {TOKEN}":
            return self._answer(403)
        if path == "sessions":
            return self._answer(
                200, [{"path": "nets/a.ipynb"}, {"path": "nets/b.ipynb"}, {"path": "c.ipynb"}]
            )
        name = path.removeprefix("contents").removeprefix("/")
        if method == "PUT":
            files[name] = json.loads(body)["content"]
            return self._answer(201, {})
        if method == "DELETE":
            return self._answer(204 if files.pop(name, None) is not None else 404)
        inside = [key.rpartition("/")[2] for key in files if key.rpartition("/")[0] == name]
        return self._answer(200, {"content": [{"name": item} for item in inside]})

    def _answer(self, status, content=None):
        self.send_response(status)
        self.end_headers()
        if content is not None:
            self.wfile.write(json.dumps(content).encode())

    do_GET = do_PUT = do_DELETE = _handle  # noqa: N815 - http.server's names

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def notebooks():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.files = {}
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_a_notice_lies_beside_every_open_notebook_until_it_is_withdrawn(notebooks):
    server = Server(os.getpid(), notebooks.server_port, "/lab/", secure=False, token=TOKEN)

    put_notice(server, "idle")
    laid = dict(notebooks.files)
    remove_notice(server)
    remove_notice(server)

    assert laid == {NOTICE: "idle", f"nets/{NOTICE}": "idle"}
    assert notebooks.files == {}


def test_a_server_that_refuses_is_named_without_its_token(notebooks):
    server = Server(os.getpid(), notebooks.server_port, "/lab/", secure=False, token="another" + TOKEN)

    with pytest.raises(SensorError, match="its API answers 403") as caught:
        put_notice(server, "idle")

    assert TOKEN not in str(caught.value)
