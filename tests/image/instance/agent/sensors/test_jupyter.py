"""Kernels' last activity by their server: only the loopback is asked, and no secret is in a message."""

import json
import os
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gpu_fleet_image.instance.agent.sensors import jupyter as sensor
from gpu_fleet_image.instance.agent.sensors.jupyter import kernel_sessions, server_of
from gpu_fleet_image.instance.agent.sensors.processes import Process
from tests.answering import answering

TOKEN = "0123456789abcdef"
LONGEST_S = 60.0  # a busy computer may stand still for seconds


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(sensor, "TIMEOUT_S", LONGEST_S)


@contextmanager
def server(answer, protocol="HTTP/1.0"):
    """Serve (status, headers, body), and then be silent until it may end."""
    made = SimpleNamespace(asked=[], answered=threading.Event(), may_end=threading.Event())
    made.may_end.set()

    def said(asked):
        made.asked.append((asked.path, asked.headers.get("Authorization")))
        status, headers, body = answer
        return status, headers, slowly(body)

    def slowly(body):
        yield body
        made.answered.set()
        made.may_end.wait(LONGEST_S)

    with answering(said, protocol) as base:
        made.server_port = int(base.rpartition(":")[2])
        yield made
        made.may_end.set()


def kernels(*states, ago_s=600.0):
    at = (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat().replace("+00:00", "Z")
    of_all = {"last_activity": at}
    listed = [of_all | {"id": f"{n}abc", "execution_state": state} for n, state in enumerate(states)]
    return 200, {}, json.dumps(listed).encode()


@pytest.fixture
def notebook(tmp_path):
    """Return a function to the sensor's view of a kernel, with this process as its server and parent."""
    own = Process(os.getpid(), ("jupyter-lab",), parent=1, uid=os.getuid())
    file = tmp_path / f"jpserver-{own.pid}.json"
    kernel = Process(4_000_000, ("python", "-f", str(tmp_path / "kernel-0abc.json")), parent=own.pid)

    def seen(port, **values):
        server_file = {"port": port, "base_url": "/lab/", "secure": False, "token": TOKEN} | values
        file.write_text(json.dumps(server_file))
        return kernel_sessions([kernel], {own.pid: own, kernel.pid: kernel})

    seen.file, seen.kernel, seen.own = file, kernel, own
    return seen


@pytest.mark.parametrize("name", ["run_训练笔记本.sh".encode()[:15], b"\xff\xfe", b"a\x0bNSpid:\tx"])
def test_a_program_of_any_name_may_have_started_a_kernel(tmp_path, name):
    """The kernel shows fifteen bytes of the name, which may end within a character."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_bytes(b"Name:\t" + name + b"\nNSpid:\t7\n")
    script = Process(7, ("bash", "run.sh"), parent=1)
    kernel = Process(9, ("python", "-f", "/tmp/kernel-0abc.json"), parent=7)

    assert kernel_sessions([kernel], {9: kernel, 7: script}, tmp_path) == ([], [])


def test_a_server_that_is_not_there_or_at_a_port_that_is_none_is_unknown(notebook):
    with server(kernels()) as jupyter:
        port = jupyter.server_port

    said = [notebook(each)[1][0] for each in (port, 10**30)]

    assert "does not answer: ConnectionRefusedError" in said[0]
    assert "does not answer: OverflowError" in said[1]


def test_a_busy_kernel_is_in_use_however_long_it_is_silent(notebook):
    """Others count from their last activity; one without any connection so far is not in use."""
    with server(kernels("busy", "starting", "idle", ago_s=7200)) as jupyter:
        sessions, unknown = notebook(jupyter.server_port)

    assert unknown == []
    assert {session.kind for session in sessions} == {"jupyter"}
    assert [session.unused_s for session in sessions] == [0, *[pytest.approx(7200, abs=60)] * 2]
    assert jupyter.asked == [("/lab/api/kernels?no_track_activity=1", f"token {TOKEN}")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((403, {}, b"{}"), "its API answers 403"),
        ((302, {"Location": "http://169.254.169.254/latest/meta-data/"}, b""), "its API answers 302"),
        ((200, {}, b"<html>"), "does not answer: JSONDecodeError"),
        ((200, {}, b"[" * 100_000), "does not answer: RecursionError"),
        ((200, {}, b'{"kernels": 1}'), "its list of kernels cannot be read"),
        ((200, {}, b'[{"id": 1, "last_activity": "soon", "execution_state": "idle"}]'), "cannot be read"),
    ],
    ids=["refused", "redirected", "no JSON", "nested", "another shape", "no time"],
)
def test_a_server_whose_answer_says_nothing_is_unknown_without_its_token(notebook, answer, message):
    with server(answer) as jupyter:
        sessions, (unknown,) = notebook(jupyter.server_port)

    assert sessions == []
    assert message in unknown
    assert TOKEN not in unknown


@pytest.mark.parametrize(
    ("protocol", "headers"),
    [
        ("HTTP/1.0", {}),
        ("HTTP/1.1", {"Connection": "close"}),
        ("HTTP/1.1", {"Content-Length": "1000"}),
        ("HTTP/1.1", {"Transfer-Encoding": "chunked"}),
    ],
)
def test_a_question_whose_answer_does_not_end_is_given_up_with_its_thread(
    notebook, monkeypatch, protocol, headers
):
    """The answer may be valid JSON so far."""
    asked, body = [], b"2\r\n[]" if "Transfer-Encoding" in headers else b"[]"
    with server((200, headers, body), protocol) as jupyter:
        jupyter.may_end.clear()
        join = sensor._Asking.join

        def time_is_over(asking, seconds):
            assert seconds == 2 * LONGEST_S
            asked.append(asking)
            assert jupyter.answered.wait(LONGEST_S)

        monkeypatch.setattr(sensor._Asking, "join", time_is_over)
        sessions, (unknown,) = notebook(jupyter.server_port)
        (asking,) = asked
        join(asking, LONGEST_S / 2)

        assert not asking.is_alive()
    assert sessions == []
    assert "does not answer: TimeoutError" in unknown
    assert TOKEN not in unknown


def test_a_question_that_is_given_up_before_it_is_asked_is_never_asked(notebook):
    with server(kernels("idle")) as jupyter:
        notebook(jupyter.server_port)
        asking = sensor._Asking(server_of(notebook.kernel, {notebook.own.pid: notebook.own}), "api", None)

        asking.give_up()
        asking.run()

    assert isinstance(asking.refused, TimeoutError)
    assert len(jupyter.asked) == 1


def test_a_file_that_is_absent_damaged_or_another_users_names_no_server(notebook):
    """Its kernel is left to the process table."""
    own = notebook.own
    stranger = Process(own.pid, ("jupyter-lab",), parent=1, uid=os.getuid() + 1)
    none = kernel_sessions([notebook.kernel], {own.pid: own})
    damaged = ["", "[]", "{}", '{"port": "22"}', '{"port": 1, "base_url": 2}', "[" * 60_000]

    def named(content, owner=own):
        notebook.file.write_text(content)
        return server_of(notebook.kernel, {owner.pid: owner})

    assert none == ([], [])
    assert [content for content in damaged if named(content) is not None] == []
    assert named('{"port": 1}')
    assert named('{"port": 1}', stranger) is None
