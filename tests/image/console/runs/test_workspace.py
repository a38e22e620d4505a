"""`gpu-fleet workspace`: whose JupyterLab it is, where its token lies, what Ctrl-C leaves."""

import json
import os
import stat
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import boto3
import psutil
import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.runs import command, workspace
from gpu_fleet_image.console.runs.bucket import RunBucket
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import TAG_TAKEN
from gpu_fleet_image.core.model import TAG_OWNER, TAG_POOL, Instance
from gpu_fleet_image.core.place import Place
from gpu_fleet_image.core.runs import STATE, Phase, node_prefix
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.ran import executable, ran

RECORDS = "gpu-fleet-test-records-123456789012"
# forwards nothing, and answers as JupyterLab does before anybody has logged in
AWS = """#!{python}
import http.server, json, os, pathlib, sys
pathlib.Path({log!r}).write_text(json.dumps([os.getpid(), *sys.argv]))
port = int(json.loads(sys.argv[-1])["localPortNumber"][0])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api" else 403)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def a_desk():
    """A user's desk with one instance that they took."""
    tags = {TAG_POOL: "dev", TAG_OWNER: "ada", TAG_TAKEN: "2026-11-22/users/ada/100000Z-0a"}
    fleet = SimpleNamespace(instances=[Instance("i-1", "g5.xlarge", "running", datetime.now(UTC), tags)])
    return SimpleNamespace(
        cloud=SimpleNamespace(instances=SimpleNamespace(fleet=lambda: fleet), calls=None),
        policy=SimpleNamespace(stack="test", cloud="aws", has_queue=False),
        place=Place("test", "aws", "us-east-1", "123456789012"),
        now=lambda: datetime.now(UTC),
        wait=time.sleep,
        ready=lambda ids: dict.fromkeys(ids, "ready"),
    )


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A laptop with the cloud's program, and an instance that starts what it is sent."""
    desk, opened, jobs = a_desk(), [], []
    with moto_server("us-east-1"):
        s3 = boto3.client("s3", "us-east-1")
        s3.create_bucket(Bucket=RECORDS)
        bucket = RunBucket(s3, Calls(lambda: datetime.now(UTC)), RECORDS)

        def say(job, phase):
            state = json.dumps({"phase": phase, "at": datetime.now(UTC).isoformat()})
            s3.put_object(Bucket=RECORDS, Key=node_prefix(job, "i-1") + STATE, Body=state)

        def send(_region, _calls, job):
            jobs.append(job)
            say(job, Phase.RUNNING)
            return "c-1"

        def browser(address):
            page = Path(address.removeprefix("file://"))
            opened.append((address, stat.S_IMODE(page.stat().st_mode), page.read_text()))
            raise KeyboardInterrupt  # the user looks at it, and presses Ctrl-C

        log = tmp_path / "aws.json"
        executable(tmp_path / "bin/aws", AWS.format(python=sys.executable, log=str(log)))
        executable(tmp_path / "bin/session-manager-plugin", "#!/bin/sh\n")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        cloud = SimpleNamespace(addresses=lambda *_: {"i-1": "10.0.0.1"}, send=send)
        monkeypatch.setattr(command, "module", lambda _: cloud)
        for name, stand_in in {
            "open_desk": lambda _: desk,
            "subject": lambda _: desk,
            "refusal": lambda *_: "",
            "caller_of": lambda _: "users/ada",
            "run_bucket": lambda _: bucket,
        }.items():
            monkeypatch.setattr(workspace, name, stand_in)
        monkeypatch.setattr(workspace.webbrowser, "open", browser)
        yield SimpleNamespace(s3=s3, bucket=bucket, jobs=jobs, opened=opened, log=log, say=say)


def free_port() -> int:
    with workspace.socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*words):
    return CliRunner().invoke(
        main, ["workspace", "--pool", "dev", "--stack", "test", "--port", str(free_port()), *words]
    )


def test_the_browser_opens_jupyter_and_its_token_is_in_no_command_line_log_or_job(world):
    done = run()

    (job,) = world.jobs
    server = workspace.server_of(world.bucket.archive(job))
    ((address, mode, page),) = world.opened
    pid, *argv = json.loads(world.log.read_text())
    assert (done.exit_code, job.account, [member.id for member in job.instances]) == (0, "ada", ["i-1"])
    assert (mode, f"/lab?token={server.token}" in page) == (0o600, True)
    assert [text for text in (address, str(argv), done.output, str(job)) if server.token in text] == []
    assert f'"portNumber": ["{server.port}"]' in argv[-1]
    assert not Path(address.removeprefix("file://")).exists()
    assert not psutil.pid_exists(pid)
    assert "stays: JupyterLab and its kernels on i-1" in done.output
    assert f"gpu-fleet cancel {job.run} --stack test" in done.output


def test_a_workspace_that_runs_is_found_again_and_one_that_is_over_is_not(world):
    run()
    again = run()
    world.say(world.jobs[0], Phase.FINISHED)
    later = run()

    assert f"{world.jobs[0].run} runs on i-1" in again.output
    assert "starts on i-1" in later.output
    assert len(world.jobs) == 2


def test_files_that_were_exchanged_lead_nowhere(world):
    run()
    key = f"runs/jobs/ada/{world.jobs[0].run}/files.zip"
    other = workspace.archive(workspace.JupyterServer(30_001, "another"), 60)
    world.s3.put_object(Bucket=RECORDS, Key=key, Body=other)

    done = run()

    assert done.exit_code == 1
    assert done.output.endswith(
        "error: the workspace does not run; gpu-fleet runs and gpu-fleet logs say why\n"
    )


def test_jupyter_works_in_the_users_home_where_their_environments_are(tmp_path):
    """Kernels lie below the home (~/.local/share/jupyter), which shared homes keep after the instance."""
    folder, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    (tmp_path / "files.zip").write_bytes(workspace.archive(workspace.JupyterServer(30_001, "secret"), 30))
    with workspace.zipfile.ZipFile(tmp_path / "files.zip") as packed:
        packed.extractall(folder)
    executable(tmp_path / "bin/jupyter-lab", '#!/bin/bash\npwd\nprintf "%s\\n" "$@"\n')
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(home)}

    done = ran(["/bin/bash", workspace.START], cwd=folder, env=environment, check=True)

    config = folder / workspace.CONFIG
    where, *words = done.stdout.splitlines()
    assert (where, words) == (str(home), [f"--config={config}", f"--ServerApp.root_dir={home}"])
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    table = json.loads(config.read_text())
    assert (table["ServerApp"]["ip"], table["IdentityProvider"]) == ("127.0.0.1", {"token": "secret"})
    assert table["ServerApp"]["shutdown_no_activity_timeout"] == 1800


def test_a_port_in_use_is_refused_before_anything_starts(world):
    with workspace.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--port", str(taken.getsockname()[1]))

    assert done.exit_code == 1
    assert "another program uses it here; name another one" in done.output
    assert world.jobs == []
