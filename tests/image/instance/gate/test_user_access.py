"""What the gate sees with the eyes of a user: a metadata service that is closed, and credentials."""

import json
import os
import socket
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gpu_fleet_image.instance.gate import user_access
from tests.answering import answering

KEYS = dict.fromkeys(user_access.KEYS, "made-up")


@contextmanager
def port_that_says(status, body):
    """A server that gives one answer to all; gives its port."""
    with answering(lambda _: (status, {}, body.encode())) as url:
        yield int(url.rpartition(":")[2])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_metadata_service_is_closed_that_refuses_a_user_and_neither_answers_nor_is_silent(monkeypatch):
    for status in (200, 401, 404):
        with port_that_says(status, "") as port:
            said = user_access.metadata_problem(["127.0.0.1"], port)
        assert said == f"127.0.0.1 answers users with {status}"
    assert user_access.metadata_problem(["127.0.0.1"], free_port()) == ""

    monkeypatch.setattr(user_access, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = user_access.metadata_problem(["127.0.0.1"], silent.getsockname()[1])
    assert said == "127.0.0.1 does not refuse users: timed out"


def test_homes_that_a_user_reaches_past_the_mount_are_open():
    with socket.create_server(("127.0.0.1", 0)) as tunnel:
        port = tunnel.getsockname()[1]
        assert user_access.homes_problem(port=port) == f"the homes at port {port} are open to users"

    assert user_access.homes_problem(port=port) == ""


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, json.dumps(KEYS), ""),
        (200, json.dumps(KEYS | {"Token": ""}), "Token missing"),
        (200, "<html>", "JSONDecodeError"),
        (503, json.dumps({"Message": "AssumeRole: AccessDenied"}), "503 AssumeRole: AccessDenied"),
    ],
)
def test_credentials_are_those_of_which_no_part_is_missing(status, body, problem):
    with port_that_says(status, body) as port:
        said = user_access.credentials_problem(port=port)

    assert problem in said
    assert bool(said) == bool(problem)
    down = user_access.credentials_problem(port=port)
    assert f"http://127.0.0.1:{port}/credentials: ConnectionRefusedError" in down


def test_a_users_account_looks_where_the_environment_leads_nowhere_else_and_without_it_nothing_is_known(
    monkeypatch,
):
    """While jobs run, it asks whether the service is closed and for no credentials."""
    asked = []

    def run(command, **_):
        asked.append(command[-2:])
        return subprocess.CompletedProcess(command, 0, '{"metadata": "open"}')

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.setattr(user_access.pwd, "getpwnam", {}.__getitem__)
    assert [problem.partition(": ")[0] for problem in user_access.probed("aws")] == ["not known"] * 2

    account = SimpleNamespace(pw_uid=os.getuid(), pw_gid=os.getgid())
    monkeypatch.setattr(user_access.pwd, "getpwnam", lambda _: account)
    assert user_access.opened("aws") == "open"

    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    assert user_access.probed("aws") == ("", "")
    assert asked == [["aws", "metadata"]]


@pytest.mark.parametrize("words", [[], ["aws"], ["azure", "metadata"], ["aws", "homes"]])
def test_words_that_mean_nothing_are_refused_with_what_is_allowed(capsys, words):
    assert user_access.main(words) == 2
    assert capsys.readouterr().err.endswith("allowed: aws, alicloud; metadata, credentials\n")
