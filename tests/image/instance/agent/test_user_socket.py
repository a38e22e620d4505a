"""The agent's socket for users: the kernel identifies the caller, and no caller blocks another."""

import json
import os
import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core import paths
from gpu_fleet_image.core.holds import KeepTarget
from gpu_fleet_image.core.instance_file import load
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_MANAGED, TAG_OWNER, TAG_REAP_AFTER
from gpu_fleet_image.instance.agent import activity_file, user_socket
from gpu_fleet_image.instance.agent.idle_detection import Minute
from gpu_fleet_image.instance.agent.listening import Target
from gpu_fleet_image.instance.agent.notices import FromMetadata
from gpu_fleet_image.instance.agent.requests import BUSY, COMMANDS, Requests, line
from gpu_fleet_image.instance.agent.user_socket import (
    LONGEST_REQUEST,
    MOST_CONNECTIONS,
    MOST_OF_AN_ACCOUNT,
    UserSocket,
)
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.programs import until
from tests.image.samples import NOON, judgement
from tests.ran import ran

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes somebody else")
# Sends its words to the socket, and prints what it hears.
CHILD = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode() + b"\\n")
sys.stdout.write(connection.makefile().readline())
"""


class OwnTags:
    def __init__(self, **tags):
        self.of = {TAG_MANAGED: "true", **tags}

    def tags(self, _):
        return dict(self.of)

    def tag(self, _, tags):
        self.of |= tags

    def get(self, path):
        return self.of.get(path.removeprefix("tags/instance/"))


@pytest.fixture
def tags(tmp_path, monkeypatch):
    """Serve the agent's socket of an instance; yield the instance's tags."""
    tmp_path.chmod(0o755)
    (tmp_path / "run").mkdir()
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GPU_FLEET_POLICY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "run")  # the socket's whole path may be too long for an address
    own = OwnTags()
    with closing(speaking(requests(own).answer)):
        yield own


def requests(own):
    target = Target(load(paths.instance_file()), "i-9")
    return Requests(
        target, lambda: KeepTarget("i-9", own, None), FromMetadata(own, lambda: NOON), lambda: "the rule"
    )


def speaking(answer, request_within_s=5.0):
    made = UserSocket(paths.agent_socket(), answer, line(error=BUSY), request_within_s)
    made.open()
    return made


@contextmanager
def connected():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect("agent.sock")
        yield connection


def ask(content):
    with connected() as connection:
        connection.sendall(content + b"\n")
        return json.loads(connection.makefile().readline())


def run(*words):
    return CliRunner().invoke(main, list(words))


# what users type


def test_a_user_keeps_and_releases_the_instance_with_no_right_of_their_own(tags):
    tags.of[TAG_KEEP_UNTIL] = "next week"

    kept = run("keep", "8h", "--reason", "paper deadline")

    assert kept.exit_code == 0, kept.output
    assert "i-9 is kept until " in kept.output
    assert "warning: gpu-fleet:keep-until = 'next week'" in kept.output, "it could not be read"
    assert tags.of[TAG_KEEP_REASON] == "paper deadline"
    assert run("release").output == "i-9 is kept no longer\n"
    assert run("release").output == "i-9 was not kept\n"


@pytest.mark.parametrize(
    "command", [{"command": "keep", "duration": "1h", "reason": "y"}, {"command": "release"}]
)
@pytest.mark.parametrize(("account", "may"), [("bob", False), ("ada", True), ("eve", True), ("root", True)])
def test_a_hold_is_changed_by_its_holder_the_instances_owner_and_root_alone(tags, command, account, may):
    tags.of[TAG_OWNER] = "eve@lab.example.com"
    answer = requests(tags).answer
    answer(json.dumps({"command": "keep", "duration": "8h", "reason": "deadline"}).encode(), "ada")
    before = dict(tags.of)

    error = json.loads(answer(json.dumps(command).encode(), account))["error"]

    assert (error == "") is may
    assert (tags.of != before) is may
    assert may or f"i-9 is kept until {before[TAG_KEEP_UNTIL]} by ada (deadline). They, its owner" in error


def test_status_and_explain_show_what_the_agent_saw_and_the_cloud_says_without_moving_the_cursor(tags):
    outcome = judgement(Minute.ACTIVE, idle_s=0.0, reasons=("process: \x1b[2J (7, ada)",))
    activity_file.write(paths.activity_file(), outcome, "i-9", "the whole instance")
    explained = run("explain").output.splitlines()
    tags.of |= {TAG_REAP_AFTER: "2026-11-21T13:00:00+00:00", TAG_KEEP_UNTIL: "2026-11-21T15:00:00+00:00"}

    said = run("status").output.splitlines()

    assert [row.split() for row in said[1:2]] == [["state", "active"]]
    assert "reasons     process: \\x1b[2J (7, ada)" in said
    assert "marked      due after 2026-11-21T13:00:00+00:00, unless it is used or kept" in said
    assert "kept until  2026-11-21T15:00:00+00:00" in said
    assert said[-1].endswith("gpu-fleet status --stack aws-dev")
    assert "the rule" in explained
    assert [line for line in explained if line.startswith(("marked", "kept"))] == [], "it is neither yet"
    assert explained[-1].endswith("on a laptop, gpu-fleet explain i-9 --stack aws-dev")


def test_before_the_first_minute_is_judged_that_is_said(tags):
    said = [run(command) for command in ("status", "explain")]

    assert [each.exit_code for each in said] == [1, 1]
    why = "activity.json: not there or damaged; an agent that has just started"
    assert all(why in each.output for each in said)


@pytest.mark.parametrize("words", [("keep", "1h", "--reason", "x"), ("release",)])
def test_another_instance_or_stack_is_refused_to_who_has_no_credentials_of_their_own(tags, words):
    result = run(*words, "--instance", "i-other")

    assert result.exit_code == 1
    assert "'i-other' is not this instance, i-9: from here you cannot change others" in result.output
    assert f"gpu-fleet {words[0]} ... --instance ID --stack aws-dev" in result.output
    other_stack = run(*words, "--stack", "aws-prod").output
    assert "--stack 'aws-prod': this instance is of stack 'aws-dev'" in other_stack
    assert run(*words, "--instance", "i-9").exit_code == 0


@pytest.mark.parametrize("words", [("keep", "1h", "--reason", "x"), ("release",), ("status",), ("explain",)])
def test_without_an_agent_the_unit_and_the_remedy_are_named(tags, words):
    paths.agent_socket().unlink()

    result = run(*words)

    assert result.exit_code == 1
    assert result.output == (
        f"error: the agent of this instance does not answer at {paths.agent_socket()} (No such file or "
        "directory): `systemctl status gpu-reaper` shows why, and `sudo systemctl restart gpu-reaper` "
        "restarts it\n"
    )


def test_an_agent_that_died_leaves_a_socket_that_the_next_one_replaces(tags):
    with socket.socket(socket.AF_UNIX) as dead:
        paths.agent_socket().unlink()
        dead.bind("agent.sock")
    assert "(Connection refused)" in run("release").output

    with closing(speaking(requests(tags).answer)):
        assert run("release").exit_code == 0


# who asks


@ROOT
@pytest.mark.parametrize(("user", "name"), [(1, "daemon"), (4242, "uid-4242"), (0, "root")])
def test_the_caller_is_known_by_the_kernel_s_word_and_not_by_their_own(tags, caplog, user, name):
    caplog.set_level("INFO")
    words = json.dumps({"command": "keep", "duration": "2d", "reason": "account=root"})

    command = ["/usr/bin/python3", "-I", "-c", CHILD, "agent.sock", words]
    somebody = {"user": user, "group": 60, "extra_groups": (), "env": {"USER": "root", "LOGNAME": "root"}}
    said = ran(command, check=True, **somebody)

    assert json.loads(said.stdout)["error"] == ""
    (logged,) = [row for row in caplog.messages if row.startswith("event=kept")]
    assert logged.startswith(f"event=kept account={name} until=")


def test_all_may_ask_and_a_folder_in_which_others_could_put_another_socket_in_its_place_gets_none(tags):
    assert paths.agent_socket().stat().st_mode & 0o777 == 0o666
    paths.run_dir().chmod(0o777)

    with pytest.raises(PermissionError, match="everybody may write"):
        speaking(requests(tags).answer)


# who means no good


REFUSED = {
    "not JSON": (b"keep 2d", "request: no JSON"),
    "nested": (b"[" * LONGEST_REQUEST, "request: no JSON"),
    "a list": (b'["keep"]', "request: allowed: an object of"),
    "nothing": (b"", "request: no JSON"),
    "no command": (b"{}", "request: allowed: an object of"),
    "a command that is none": (b'{"command": "agent"}', "request: command 'agent'; allowed: keep, release"),
    "more words": (b'{"command": "status", "argv": "x"}', "request: allowed: an object of"),
    "a number": (b'{"command": "keep", "duration": 2}', "request: allowed: texts"),
    "too long": (b" " * (LONGEST_REQUEST + 1), "request of more than 4096 bytes"),
}


@pytest.mark.parametrize(("content", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_malformed_request_is_one_sentence_and_is_logged_once(tags, caplog, content, says):
    answers = [ask(content) for _ in range(3)]

    assert {answer["error"].startswith(says) for answer in answers} == {True}
    assert [row.partition(" ")[0] for row in caplog.messages] == ["event=malformed-request"]
    assert caplog.records[0].exc_info is None
    assert run("release").exit_code == 0


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.sampled_from(["command", "duration", "reason"]), st.text(max_size=20)).map(
        lambda each: json.dumps(each).encode()
    )
)
def test_whatever_is_sent_is_answered_by_one_object(content):
    own = OwnTags()

    answer = Requests(Target(None, "i-9"), lambda: KeepTarget("i-9", own, None), None, str).answer(
        content, "ada"
    )

    assert answer.count(b"\n") == 1
    assert json.loads(answer).keys() == {"lines", "warnings", "error"}
    assert TAG_KEEP_UNTIL not in own.of or json.loads(content)["command"] == "keep"


def test_a_defect_is_logged_and_the_next_request_answered(tags, caplog, monkeypatch):
    monkeypatch.setitem(COMMANDS, "status", lambda *_: 1 / 0)

    assert ask(b'{"command": "status"}')["error"].startswith("a defect of gpu-fleet: ZeroDivisionError")
    assert "event=request-failed account=root command=status" in caplog.text
    assert run("release").exit_code == 0


def threads():
    return [each for each in threading.enumerate() if each.name != "users" and "_talk" in each.name]


def flood(connection):
    for _ in range(1 << 14):  # a GiB
        connection.sendall(b"x" * (1 << 16))


def test_who_says_nothing_or_sends_without_end_or_leaves_holds_no_thread_for_long(tags, monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with closing(speaking(requests(tags).answer, request_within_s=0.2)):
        with connected() as silent, connected() as endless:
            with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
                flood(endless)
            assert silent.recv(1) == b""
        for _ in range(5):
            with connected() as leaving:
                leaving.sendall(b'{"command": "stat')
        until(lambda: not threads(), "the end of every thread that talks")

        assert failed == []
        assert run("release").exit_code == 0


def test_who_sends_a_byte_now_and_then_is_left_at_the_deadline_all_the_same(monkeypatch):
    slow = Mock(recv=Mock(return_value=b"x"))
    monkeypatch.setattr(user_socket.time, "monotonic", lambda: slow.recv.call_count)  # a byte a second

    with pytest.raises(TimeoutError):
        user_socket.line_of(slow, 5)
    assert [asked.args for asked in slow.settimeout.call_args_list] == [(5,), (4,), (3,), (2,), (1,)]


def test_one_account_has_few_connections_and_the_others_are_answered(tags, monkeypatch):
    """Open connections block no other account; one too many gets an answer at once."""
    with connected(), connected():
        until(lambda: len(threads()) == MOST_OF_AN_ACCOUNT, "the agent's threads")
        assert run("release").output == f"error: {BUSY}\n"

        monkeypatch.setattr(user_socket, "caller_of", lambda _: ("ada", "ada"))
        assert run("release").output == "i-9 was not kept\n"


def test_all_accounts_together_have_a_bound(tags, monkeypatch):
    names = iter(range(1000))
    monkeypatch.setattr(user_socket, "caller_of", lambda _: (name := f"user{next(names)}", name))
    with ExitStack() as held:
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(connected())
        until(lambda: len(threads()) == MOST_CONNECTIONS, "the agent's threads")
        assert run("release").output == f"error: {BUSY}\n"


def test_numbers_without_an_account_are_counted_as_one(monkeypatch):
    monkeypatch.setattr(user_socket.pwd, "getpwuid", lambda uid: {}[uid])
    one, other = socket.socketpair(socket.AF_UNIX)

    with one, other:
        assert user_socket.caller_of(one) == (f"uid-{os.geteuid()}", "")


def test_two_who_keep_at_once_are_served_one_after_the_other(tags, monkeypatch):
    one, inside, most = requests(tags), [], []
    lock, waited_for = threading.Lock(), threading.Event()

    def acquire(timeout):
        if lock.acquire(blocking=False):
            return True
        waited_for.set()
        return lock.acquire(timeout=timeout)

    def slow(_, new):
        inside.append(new)
        most.append(len(inside))
        assert waited_for.wait(10)
        inside.pop()

    monkeypatch.setattr(one, "_alone", Mock(acquire=acquire, release=lock.release))
    tags.tag = slow
    content = b'{"command": "keep", "duration": "1h", "reason": "x"}'
    users = [threading.Thread(target=one.answer, args=(content, "ada")) for _ in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join(60)

    assert most == [1, 1]
