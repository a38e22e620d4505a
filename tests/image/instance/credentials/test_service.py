"""The service that gives users credentials, through real sockets of real accounts."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.credentials import callers, service
from gpu_fleet_image.instance.credentials.aws import AwsUserRole
from gpu_fleet_image.instance.credentials.service import CredentialsServer
from gpu_fleet_image.instance.credentials.sessions import SessionKeys, Sessions
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.ran import ran

ADA, EVE, LEAVER, TRAINER, DAEMON, SLURM, ODD, NOBODY = 5001, 5002, 5003, 990, 991, 64030, 5004, 5999
NAMES = {ADA: "ada", EVE: "eve", LEAVER: "lee", TRAINER: "gpu-fleet", DAEMON: "gpu-fleet-probe"}
NAMES |= {SLURM: "slurm", ODD: "ada."}
ROLE = "arn:aws:iam::123456789012:role/dev-user"

ASK = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
connection.request(sys.argv[2], sys.argv[3], headers=dict(line.split(": ") for line in sys.argv[4:]))
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def entry_of(uid):
    """As in passwd; who left has no shell any more."""
    shell = "/bin/bash" if uid in (ADA, EVE, ODD) else "/usr/sbin/nologin"
    return SimpleNamespace(pw_name=NAMES[uid], pw_shell=shell)


@pytest.fixture(autouse=True)
def accounts(monkeypatch):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("processes of several accounts need root and setpriv")
    monkeypatch.setattr(callers.pwd, "getpwuid", entry_of)


def role(error=None):
    """A role that gives each account keys with its name, or what is to be raised."""

    def keys(account):
        return SessionKeys(f"id-{account}", "secret", "token", datetime.now(UTC) + timedelta(hours=1))

    return Mock(assume=Mock(side_effect=error or keys))


@contextmanager
def serving(user_role=None, metadata=None):
    """The service on a free port; gives its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    with CredentialsServer(listening, "aws", Sessions(user_role or role()), metadata) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


def command_of(uid, script, *words):
    """Runs a script as an account; it may read this computer's Python, wherever that lies."""
    own = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=+dac_read_search"]
    command = ["setpriv", *own, "--ambient-caps=+dac_read_search", sys.executable, "-c", script]
    return [*command, *map(str, words)]


def as_account(uid, script, *words, **environ):
    """Run a script as an account, with an environment of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return ran(
        command_of(uid, script, *words),
        timeout=60,
        env=kept | {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"} | environ,
    )


def asked(uid, port, path="/credentials", method="GET", headers=()):
    done = as_account(uid, ASK, port, method, path, *headers)
    assert done.returncode == 0, done.stderr
    status, _, body = done.stdout.rstrip("\n").partition(" ")
    return int(status), body


def test_each_user_gets_their_own_session_and_both_clouds_names_for_it():
    with serving() as port:
        said = [json.loads(asked(uid, port)[1]) for uid in (ADA, EVE, TRAINER)]

    assert [answer["AccessKeyId"] for answer in said] == ["id-ada", "id-eve", "id-gpu-fleet"]
    names = ("Code", "SecretAccessKey", "Token", "AccessKeySecret", "SecurityToken")
    assert [said[0][name] for name in names] == ["Success", "secret", "token", "secret", "token"]


NO_USERS = {
    0: "root uses the instance's role",
    DAEMON: "account 'gpu-fleet-probe' is a service's, not a user's",
    SLURM: "account 'slurm' is a service's, not a user's",
    LEAVER: "account 'lee' is locked",
    ODD: "account 'ada.' is not served; allowed: [a-z]",
    NOBODY: "user 5999 has no account on this instance",
}
ROUNDABOUT = [
    "Host: rebound.example",
    "X-Forwarded-For: 10.0.0.7",
    "Forwarded: for=10.0.0.7",
    "Via: 1.1 squid",
]


def test_who_is_no_user_is_refused_with_a_reason_as_are_pages_in_browsers_and_proxies_of_users():
    nobodys = role()
    with serving(nobodys) as port:
        refused = {uid: asked(uid, port) for uid in NO_USERS}
        roundabout = [asked(ADA, port, headers=[header])[0] for header in ROUNDABOUT]

    assert {status for status, _ in refused.values()} == set(roundabout) == {403}
    said = {uid: json.loads(body)["Message"] for uid, (_, body) in refused.items()}
    assert [(uid, said[uid]) for uid, why in NO_USERS.items() if why not in said[uid]] == []
    assert not nobodys.assume.called


IDLE = """
import socket, sys
idle = [socket.socket() for _ in range(3)]
for connection in idle:
    connection.connect(("127.0.0.1", int(sys.argv[1])))
idle[2].settimeout(5)
print(idle[2].recv(1), flush=True)
sys.stdin.read()
"""


def test_idle_connections_of_one_user_keep_no_other_from_an_answer(monkeypatch):
    monkeypatch.setattr(service, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(service.Handler, "timeout", 60)
    with serving() as port:
        with subprocess.Popen(
            command_of(EVE, IDLE, port), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as eve:
            third = eve.stdout.readline()
            status, _ = asked(ADA, port)
            eve.stdin.close()
        after = asked(EVE, port)[0]

    assert (third, status, after) == ("b''\n", 200, 200)


def test_a_connection_at_the_address_of_an_earlier_one_is_counted_and_answered_by_itself():
    address, named = ("127.0.0.1", 40000), iter(["ada", "eve"])
    listening = socket.create_server(("127.0.0.1", 0))
    pairs = [socket.socketpair() for _ in range(2)]
    with CredentialsServer(listening, "aws", Sessions(role()), None, lambda *_: next(named)) as server:
        for own, _ in pairs:
            assert server.verify_request(own, address)
        for own, other in pairs:
            other.sendall(b"GET /credentials HTTP/1.0\r\n\r\n")
            server.process_request_thread(own, address)

    assert [b"id-ada" in pairs[0][1].recv(4096), b"id-eve" in pairs[1][1].recv(4096)] == [True, True]


DRIP = """
import socket, sys
slow = socket.socket()
slow.connect(("127.0.0.1", int(sys.argv[1])))
slow.settimeout(0.05)
for _ in range(100):
    slow.sendall(b"G")
    try:
        print(slow.recv(1))
        break
    except TimeoutError:
        pass
"""


def test_a_caller_that_drips_is_ended_in_time(monkeypatch):
    monkeypatch.setattr(service, "LONGEST_S", 0.2)
    with serving() as port:
        done = as_account(EVE, DRIP, port)

    assert done.stdout == "b''\n" or "BrokenPipe" in done.stderr or "Reset" in done.stderr, done.stderr


def test_a_caller_who_hangs_up_writes_one_line_and_a_defect_its_traceback(caplog):
    caplog.set_level("INFO")
    listening = socket.create_server(("127.0.0.1", 0))
    with CredentialsServer(listening, "aws", Sessions(role()), None) as server:
        for error in (BrokenPipeError, ValueError):
            try:
                raise error
            except error:
                server.handle_error(None, ("127.0.0.1", 1))

    assert [bool(record.exc_info) for record in caplog.records] == [False, True]


MAKER_AND_HOLDER = """
import os, socket, sys
port, maker, holder = map(int, sys.argv[1:])
os.seteuid(maker)
connection = socket.socket()
connection.connect(("127.0.0.1", port))
os.seteuid(0)
os.setresuid(holder, holder, holder)
connection.sendall(b"GET /credentials HTTP/1.0\\r\\n\\r\\n")
print(connection.makefile().read())
"""


def test_a_connection_that_was_passed_on_is_of_who_made_it():
    with serving() as port:
        for maker, holder, said in ((ADA, EVE, "id-ada"), (EVE, ADA, "id-eve"), (0, EVE, "403")):
            done = as_account(0, MAKER_AND_HOLDER, port, maker, holder)

            assert said in done.stdout, done.stderr


ROOT_OF_ITS_OWN_USERS = (
    """
import ctypes, http.client, sys, encodings.idna
ctypes.CDLL(None).unshare(0x10000000)  # CLONE_NEWUSER
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {sys.argv.pop()} 1")
"""
    + ASK
)


def test_root_of_a_namespace_of_users_is_the_user_who_made_it():
    with serving() as port:
        done = as_account(ADA, ROOT_OF_ITS_OWN_USERS, port, "GET", "/credentials", ADA)

    if "Operation not permitted" in done.stderr:
        pytest.skip("no namespaces of users here")
    assert "id-ada" in done.stdout, done.stderr


MAPPED = """
import socket, sys
for address in ("::1", "::ffff:127.0.0.1"):
    try:
        connection = socket.socket(socket.AF_INET6)
        connection.connect((address, int(sys.argv[1])))
    except ConnectionRefusedError:
        print("refused")
        continue
    connection.sendall(b"GET /credentials HTTP/1.0\\r\\n\\r\\n")
    print(connection.makefile().read())
"""


def test_a_socket_of_ipv6_has_an_owner_too_and_the_service_listens_on_ipv4_alone():
    with serving() as port:
        done = as_account(EVE, MAPPED, port)

    assert done.stdout.startswith("refused"), done.stderr
    assert "id-eve" in done.stdout


def row(local, remote, state, uid, inode):
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid}  0 {inode} 1 0"


CLIENT, SERVER = "0100007F:C350", "0100007F:0337"


NOT_KNOWN = {
    "none": [],
    "the server's own end": [row(SERVER, CLIENT, "01", ADA, 7)],
    "closed": [row(CLIENT, SERVER, "01", ADA, 0)],
    "over": [row(CLIENT, SERVER, "06", ADA, 7)],
    "not open yet": [row(CLIENT, SERVER, "02", ADA, 7)],
    "two": [row(CLIENT, SERVER, "01", ADA, 7), row(CLIENT, SERVER, "01", EVE, 8)],
}


def test_a_connection_without_one_known_owner_is_refused(tmp_path):
    table = tmp_path / "tcp"
    for rows in NOT_KNOWN.values():
        table.write_text("\n".join(["  sl  local_address", *rows]) + "\n")

        with pytest.raises(callers.NotServedError, match="owner of this connection is not known"):
            callers.account_of(("127.0.0.1", 50000), ("127.0.0.1", 823), [table, tmp_path / "absent"])


NOT_HANDED_ON = [
    "/latest/meta-data/iam/security-credentials/",
    "/latest/meta-data/identity-credentials/ec2/security-credentials/ec2-instance",
    "/latest/meta-data/ram/security-credentials/",
    "/latest/meta-data/instance-id/../iam/security-credentials/",
    "/latest/meta-data//iam/security-credentials/",
    "/latest/meta-data/tags/instance/",
    "/latest/meta-data/",
    "/latest/dynamic/instance-identity/document",
    "/latest/user-data",
    "/2021-07-15/meta-data/instance-id",
    "/",
]


def test_users_read_listed_facts_of_their_instance_as_from_the_metadata_service_and_nothing_else(monkeypatch):
    with metadata_service() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        metadata.answers = dict.fromkeys(NOT_HANDED_ON, "secret")
        with serving(metadata=Metadata("aws")) as port:
            refused = {path: asked(ADA, port, path)[0] for path in NOT_HANDED_ON}
            before = list(metadata.asked)
            metadata.answers = {"/latest/meta-data/instance-id": "i-1"}
            token = asked(ADA, port, "/latest/api/token", "PUT")
            facts = ("instance-id", "spot/instance-action")
            said = [asked(ADA, port, f"/latest/meta-data/{path}") for path in facts]

    assert (refused, before) == (dict.fromkeys(NOT_HANDED_ON, 404), [])
    assert token[0] == 200
    assert said == [(200, "i-1"), (404, "")]


CALLER = """
import boto3, botocore.utils
botocore.utils.ContainerMetadataFetcher.SLEEP_TIME = 0
print(boto3.client("sts", region_name="us-east-1").get_caller_identity()["Arn"])
"""


def test_boto3_needs_no_setting_but_the_environment_and_the_cloud_hears_whose_session_it_is(monkeypatch):
    with moto_server("us-east-1") as endpoint, metadata_service() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        metadata.answers = {"/latest/meta-data/instance-id": "i-0abc"}
        with serving(AwsUserRole(ROLE, "us-east-1", Metadata("aws"))) as port:
            where = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/credentials"}
            done = as_account(ADA, CALLER, **where, AWS_ENDPOINT_URL=endpoint)

    assert done.stdout.strip().endswith("assumed-role/dev-user/ada@i-0abc"), done.stderr


def test_boto3_says_why_the_cloud_gave_no_credentials_and_names_a_service_that_is_down():
    denied = CloudError("assume_role: AccessDenied: not authorized to perform: sts:AssumeRole")
    with serving(role(denied)) as port:
        where = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/credentials"}
        refused = as_account(ADA, CALLER, **where)
    down = as_account(ADA, CALLER, **where)

    why = "no credentials of this pool's user role for account 'ada': assume_role: AccessDenied"
    assert why in refused.stderr
    assert f'Could not connect to the endpoint URL: "http://127.0.0.1:{port}/credentials"' in down.stderr


def test_on_alibaba_cloud_users_programs_read_the_keys_that_the_environment_leads_to():
    """As rclone does it, whose SDK asks a program of ours."""
    with serving() as port:
        where = {"ALIBABA_CLOUD_CREDENTIALS_URI": f"http://127.0.0.1:{port}/credentials"}
        program = "from gpu_fleet_image.core.alicloud_credentials import main; main()"
        done, refused = (as_account(uid, program, **where) for uid in (ADA, 0))

    assert json.loads(done.stdout)["AccessKeyId"] == "id-ada", done.stderr
    assert "root uses the instance's role" in refused.stderr
