"""Reasons to stop a run, and their sources."""

import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.metadata import ask
from gpu_fleet.preemption import interrupt
from gpu_fleet.preemption.interrupt import (
    AlicloudNotice,
    AwsNotice,
    Interruption,
    Reason,
    nothing_to_save,
    sources,
    stop_file,
)
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from tests.image.metadata_server import metadata_server

REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


def test_a_spot_notice_is_read_with_a_token_and_counts_however_it_is_worded():
    with metadata_service() as metadata:
        notice = AwsNotice(metadata.endpoint)
        before = notice()
        metadata.send_spot_notice()
        reason, detail = notice() or (None, "")
        metadata.answers["/latest/meta-data/spot/instance-action"] = "soon"
        worded = notice()

    assert before is AwsNotice("http://127.0.0.1:1")() is None  # nor is silence a reason
    assert reason is Reason.SPOT_NOTICE
    assert detail.startswith("spot terminate at 20")
    assert worded == (Reason.SPOT_NOTICE, "spot 'soon' at 'soon'")


def test_a_token_that_has_run_out_is_renewed():
    with metadata_service() as metadata:
        notice = AwsNotice(metadata.endpoint)
        assert notice() is None
        metadata.token = "another"
        metadata.send_spot_notice()

        assert (notice() or (None,))[0] is Reason.SPOT_NOTICE


def test_a_new_rebalance_recommendation_is_a_reason_where_it_is_asked_for():
    with metadata_service() as metadata:
        ignoring, asking = AwsNotice(metadata.endpoint), AwsNotice(metadata.endpoint, rebalance=True)
        before = asking() or ignoring()
        metadata.answers[REBALANCE] = json.dumps({"noticeTime": "2026-11-21T08:00:00Z"})

        notice = asking()
        passed_over = ignoring()

    assert (before, passed_over) == (None, None)
    assert notice == (Reason.REBALANCE, "rebalance recommended at 2026-11-21T08:00:00Z")


def test_a_recommendation_that_stood_before_the_run_ends_no_run():
    with metadata_service() as metadata:
        metadata.answers[REBALANCE] = json.dumps({"noticeTime": "2026-11-21T08:00:00Z"})
        notice = AwsNotice(metadata.endpoint, rebalance=True)

        assert [notice(), notice()] == [None, None]
        metadata.answers[REBALANCE] = json.dumps({"noticeTime": "2026-11-21T09:00:00Z"})
        assert (notice() or (None,))[0] is Reason.REBALANCE


def test_a_preemptible_instance_of_alibaba_cloud_is_notified_too():
    with metadata_server("alicloud") as metadata:
        assert AlicloudNotice(metadata.base)() is None
        metadata.says("instance/spot/termination-time", "2026-11-21T08:05:00Z")

        found = AlicloudNotice(metadata.base)()

    assert found == (Reason.SPOT_NOTICE, "spot release at 2026-11-21T08:05:00Z")


def test_the_line_in_the_stop_file_is_the_detail_however_it_is_written(tmp_path):
    (tmp_path / "stop").write_text("idle for 24 h\n")
    (tmp_path / "odd").write_bytes("für immer".encode("latin-1"))

    assert stop_file(tmp_path / "stop") == (Reason.STOP_FILE, "idle for 24 h")
    assert (stop_file(tmp_path / "odd") or (None,))[0] is Reason.STOP_FILE
    assert stop_file(tmp_path / "none") is None


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"no HTTP\r\n\r\n"])
def test_an_answer_that_breaks_off_is_no_answer(answer):
    def reply(listener: socket.socket) -> None:
        with listener.accept()[0] as line:
            line.recv(4096)
            line.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=reply, args=(listener,))
        thread.start()
        status, _ = ask(f"http://127.0.0.1:{listener.getsockname()[1]}/", {})
        thread.join()

    assert status == 0


def test_an_instance_of_no_fleet_is_asked_for_its_stop_file_only(no_fleet):
    asked = sources()

    (no_fleet / "stop").write_text("enough")

    assert [source() for source in asked] == [(Reason.STOP_FILE, "enough")]


@pytest.mark.parametrize(("cloud", "kind"), [("aws", AwsNotice), ("alicloud", AlicloudNotice)])
def test_an_instance_of_the_fleet_asks_the_metadata_of_its_cloud(cloud, kind, no_fleet, monkeypatch):
    """The environment of its users may name both clouds."""
    for variable in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT"):
        monkeypatch.setenv(variable, "http://127.0.0.1:823")
    Path(os.environ["GPU_FLEET_INSTANCE_FILE"]).write_text(f'cloud = "{cloud}"\n')

    assert [type(source) for source in sources()[1:]] == [kind]


def test_a_broken_instance_file_is_named(no_fleet):
    Path(os.environ["GPU_FLEET_INSTANCE_FILE"]).write_text("cloud = ")

    with pytest.raises(ConfigError, match=r"no-instance\.toml: cannot be read"):
        sources()


def test_the_first_reason_stays():
    notices = iter([None, (Reason.REBALANCE, "first"), (Reason.SPOT_NOTICE, "second")])
    interruption = Interruption([lambda: next(notices)], poll_s=1.0)

    for _ in range(3):
        interruption.poll()

    assert (interruption.reason, interruption.detail) == (Reason.REBALANCE, "first")


def test_a_signal_is_noted_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)

    with Interruption([], poll_s=1.0) as interruption:
        os.kill(os.getpid(), signal.SIGTERM)

    assert interruption.reason is Reason.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("first", "then", "after_s"),
    [
        (signal.SIGTERM, signal.SIGTERM, 30.0),
        (signal.SIGINT, signal.SIGTERM, 30.0),
        (signal.SIGINT, signal.SIGINT, 0.0),  # the same key press, delivered twice
    ],
)
def test_a_second_signal_does_not_cut_the_last_save_off(first, then, after_s):
    """Schedulers send SIGTERM twice: once as a notice, and once at the time limit."""
    now = [100.0]
    with Interruption([], poll_s=1.0, clock=lambda: now[0]) as interruption:
        os.kill(os.getpid(), first)
        for _ in range(2):
            now[0] += after_s
            os.kill(os.getpid(), then)

        assert interruption.reason is Reason[first.name]


def test_before_there_is_anything_to_save_a_notice_ends_the_process():
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, nothing_to_save():
        os.kill(os.getpid(), signal.SIGTERM)

    assert ended.value.code == 85
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_presses_the_key_again_does_not_wait(monkeypatch):
    now, ended = [100.0], []
    with Interruption([], poll_s=1.0, clock=lambda: now[0]):
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += interrupt.SAME_SIGNAL_S
        monkeypatch.setattr(interrupt.os, "kill", lambda *_: ended.append(signal.getsignal(signal.SIGINT)))
        signal.raise_signal(signal.SIGINT)

    assert ended == [signal.SIG_DFL]  # sent again with nobody to catch it
