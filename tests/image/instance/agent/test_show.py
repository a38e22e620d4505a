"""Notices appear on terminals that are in no list of log-ins, and in Jupyter."""

import json
import os
import pty
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent import show
from gpu_fleet_image.instance.agent.sensors.jupyter import NOTICE, Server, put_notice, remove_notice
from gpu_fleet_image.instance.agent.show import _logged_in, _write, show_all
from tests.answering import answering
from tests.ran import executable

TOKEN = "0123456789abcdef"


@pytest.fixture
def terminal():
    """Open a terminal as JupyterLab does; yield (its output, its path)."""
    seen, shell = pty.openpty()
    os.set_blocking(seen, False)
    yield seen, Path(os.ttyname(shell))
    os.close(seen)
    os.close(shell)


def test_a_terminal_and_nothing_else_shows_the_notice_once_however_many_ways_lead_to_it(terminal, tmp_path):
    seen, path = terminal
    known = set()
    file, link, pipe = tmp_path / "0", tmp_path / "1", tmp_path / "2"
    file.write_text("a job's results")
    link.symlink_to(path)
    os.mkfifo(pipe)

    for item in (file, link, pipe):
        _write(item, b"to no terminal", set())
    for _ in range(2):
        _write(path, b"idle", known)

    assert file.read_text() == "a job's results"
    assert os.read(seen, 100) == b"idle"


def test_whatever_a_host_that_a_user_logs_in_from_is_called_its_terminal_is_known(monkeypatch, tmp_path):
    executable(tmp_path / "who", "#!/bin/sh\nprintf 'ada pts/3 2026-11-22 12:00 (\\377\\350)\\n'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert _logged_in() == {"pts/3"}


def test_a_message_reaches_the_log_also_where_nothing_can_be_shown(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")

    show_all("going", tmp_path)

    assert "event=notice message='going'" in caplog.text
    assert caplog.text.count("event=notice-not-shown") == 3


def test_the_name_of_a_users_file_writes_nothing_else_onto_the_terminals_of_others(monkeypatch, tmp_path):
    """A kept file that cannot be saved is named to all users, root too, whatever bytes its name has."""
    executable(tmp_path / "wall", f'#!/bin/sh\nprintf %s "$1" >{tmp_path}/said\n')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev/pts").mkdir(parents=True)
    (tmp_path / "dev/pts/3").touch()
    written = []
    monkeypatch.setattr(show, "_write", lambda _path, text, _seen: written.append(text))

    show_all(f"{os.fsdecode(b'/scratch/keep/' + bytes([27]) + b']0;x' + bytes([255]))} changed", tmp_path)

    shown = rb"/scratch/keep/\x1b]0;x\udcff changed"
    assert written == [b"\r\n*** gpu-fleet: " + shown + b"\r\n"]
    assert (tmp_path / "said").read_bytes() == shown


@pytest.fixture
def notebooks():
    """Serve Jupyter Server's contents and sessions API with its token; yield (server, its files)."""
    files, opened = {}, [{"path": "nets/a.ipynb"}, {"path": "nets/b.ipynb"}, {"path": "c.ipynb"}]

    def answer(asked):
        path = unquote(urlsplit(asked.path).path).removeprefix("/lab/api/")
        name = path.removeprefix("contents").removeprefix("/")
        if asked.headers.get("Authorization") != f"token {TOKEN}":
            return 403, {}, b""
        if asked.method == "PUT":
            files[name] = json.loads(asked.body)["content"]
            return 201, {}, b"{}"
        if asked.method == "DELETE":
            return 204 if files.pop(name, None) is not None else 404, {}, b""
        inside = [{"name": key.rpartition("/")[2]} for key in files if key.rpartition("/")[0] == name]
        return 200, {}, json.dumps(opened if path == "sessions" else {"content": inside}).encode()

    with answering(answer) as base:
        yield Server(os.getpid(), int(base.rpartition(":")[2]), "/lab/", secure=False, token=TOKEN), files


def test_a_notice_lies_beside_every_open_notebook_until_it_is_withdrawn(notebooks):
    server, files = notebooks

    put_notice(server, "idle")
    assert files == {NOTICE: "idle", f"nets/{NOTICE}": "idle"}
    for _ in range(2):
        remove_notice(server)
        assert files == {}


def test_a_server_that_refuses_is_named_without_its_token(notebooks):
    with pytest.raises(SensorError, match="its API answers 403") as caught:
        put_notice(replace(notebooks[0], token="another" + TOKEN), "idle")

    assert TOKEN not in str(caught.value)
