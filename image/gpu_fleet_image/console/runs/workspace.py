"""``gpu-fleet workspace``: JupyterLab on the user's own instance, in the browser of this computer."""

import html
import http.client
import io
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import webbrowser
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import click

from gpu_fleet_image.console.runs.bucket import RunBucket, run_bucket
from gpu_fleet_image.console.runs.choice import Criteria, account_name, choose, is_silent
from gpu_fleet_image.console.runs.command import Packed, described_job, followed, sent
from gpu_fleet_image.console.users.connect import RUNNING, Forward, document_of, programs_of, session
from gpu_fleet_image.console.users.take import Desk, acquire, caller_of, open_desk, refusal
from gpu_fleet_image.core.capacity import LONGEST_HOURS
from gpu_fleet_image.core.options import POOL_NAME, stack_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import OVER, Job
from gpu_fleet_image.core.shared_options import FiniteRange

TITLE = "workspace"
CONFIG, START = "jupyter_config.json", "start.sh"
PORTS = range(30_000, 50_000)  # of the server on the instance: no user's habit, and none that root trusts
LOOK_EVERY_S, LONGEST_START = 0.5, timedelta(minutes=2)
EXIT_FAILED = 1
MINUTE_S = 60
# As the account, in its home: what is installed there for Jupyter (~/.local/share/jupyter/kernels) is found.
SCRIPT = """#!/bin/bash
set -euo pipefail
chmod 600 "$PWD/{config}"
command -v jupyter-lab >/dev/null || {{
    echo "JupyterLab is not on this instance" >&2
    exit 2
}}
config=$PWD/{config}
cd "$HOME"
exec jupyter-lab --config="$config" --ServerApp.root_dir="$HOME"
"""


@dataclass(frozen=True)
class JupyterServer:
    """A JupyterLab server as its run's files describe it; the token is in these files alone."""

    port: int
    token: str


@click.command(epilog="\b\nExample:\n  gpu-fleet workspace --pool dev --stack aws-dev")
@click.option("--pool", type=POOL_NAME, metavar="NAME", required=True, help="Pool of the instance.")
@click.option("--instance", "named", metavar="ID", help="An instance that you took.")
@click.option(
    "--hours",
    type=FiniteRange(0, LONGEST_HOURS, min_open=True),
    help="Keep a newly taken instance for so long; by default only the idle rules apply.",
)
@click.option(
    "--idle-minutes",
    type=click.IntRange(5, 24 * 60),
    default=60,
    show_default=True,
    help="JupyterLab ends after so long without use; then the idle rules of the pool apply.",
)
@click.option(
    "--port", type=click.IntRange(1024, 65_535), default=8888, show_default=True, help="On this computer."
)
@click.option("--as", "account", metavar="ACCOUNT", help="Your account there; by default your name.")
@click.option("--no-browser", is_flag=True, help="Open no browser; print the address of the page.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@stack_options
def workspace(
    *,
    pool: str,
    named: str | None,
    hours: float | None,
    idle_minutes: int,
    port: int,
    account: str | None,
    no_browser: bool,
    yes: bool,
    asked: Asked,
) -> None:
    """Open JupyterLab on your instance, as your account there; take an instance first if you have none.

    Finds the workspace that runs already, else starts one as a submitted run. Its token lies in the run's
    files, which your account alone reads. Ctrl-C ends the connection, not the workspace.
    """
    asked.refuse_pool("--pool", pool)
    if subject(asked).policy.has_queue:
        raise ConfigurationError(
            "workspace: the stack has a queue, whose jobs own the instances: use connect"
        )
    desk = open_desk(asked)
    if problem := refusal(desk.policy, pool, 1):
        raise ConfigurationError(problem.replace("POOL ", "--pool "))
    programs = programs_of(desk.place.cloud)
    _check_free(port)
    caller = caller_of(desk.place)
    named_ones = (named,) if named else ()
    criteria = Criteria(pool, 1, named_ones, account_name(account, caller), caller)
    bucket = run_bucket(replace(desk.place, account_id=asked.account_id or ""))
    job = current(desk, bucket, criteria) or _started(desk, bucket, criteria, (hours, idle_minutes), yes=yes)
    if job is None or (server := server_of(bucket.archive(job))) is None:
        raise ConfigurationError("the workspace does not run; gpu-fleet runs and gpu-fleet logs say why")
    forward = Forward(server.port, port)
    document = document_of(desk.place, forward) if desk.place.cloud == "aws" else ""
    words = session(desk.place.cloud, desk.place.region, job.instances[0].id, forward, document)
    _connected(desk, job, server, [programs[words[0]], *words[1:]], port, opens=not no_browser)


def current(desk: Desk, bucket: RunBucket, criteria: Criteria) -> Job | None:
    """Return the workspace of the account that runs in the pool, on the named instance if one is named."""
    now = desk.now()
    fleet = {each.id for each in desk.cloud.instances.fleet().instances if each.state == RUNNING}
    for job in bucket.jobs(criteria.account):
        instance = job.instances[0].id
        fits = job.run.startswith(f"{TITLE}-") and job.pool == criteria.pool and instance in fleet
        if fits and (not criteria.named or instance in criteria.named):
            (state,) = bucket.states(job)[:1]
            if state.phase not in OVER and not is_silent(job, state, now):
                click.echo(f"{job.run} runs on {instance}")
                return job
    return None


def _started(
    desk: Desk, bucket: RunBucket, criteria: Criteria, spans: tuple[float | None, int], *, yes: bool
) -> Job | None:
    """Start a workspace on an instance of the caller; return None if it does not start."""
    hours, idle_minutes = spans
    ids = choose(desk, bucket, criteria) or acquire(desk, criteria.pool, 1, hours, yes=yes)
    if not ids:
        return None
    server = JupyterServer(secrets.choice(PORTS), secrets.token_urlsafe(32))
    packed = Packed(
        archive(server, idle_minutes), ("run", "--", "/bin/bash", START), "", TITLE, (START, CONFIG)
    )
    job = described_job(desk, packed, criteria, ids)
    bucket.submit(job, packed.archive)
    sent(desk, bucket, job)
    click.echo(f"{job.run} starts on {ids[0]}")
    return job if followed(desk.now, desk.wait, bucket, job) else None


def archive(server: JupyterServer, idle_minutes: int) -> bytes:
    """Return the files of the run: a script, and JupyterLab's configuration with the token. Pure."""
    idle_s = idle_minutes * MINUTE_S
    config = {
        "ServerApp": {
            "ip": "127.0.0.1",
            "port": server.port,
            "port_retries": 0,
            "open_browser": False,
            "shutdown_no_activity_timeout": idle_s,
        },
        "IdentityProvider": {"token": server.token},
        # a kernel that computes stays, also without a browser
        "MappingKernelManager": {"cull_idle_timeout": idle_s, "cull_connected": True, "cull_busy": False},
        "TerminalManager": {"cull_inactive_timeout": idle_s},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(START, SCRIPT.format(config=CONFIG))
        file.writestr(CONFIG, json.dumps(config))
    return packed.getvalue()


def server_of(content: bytes) -> JupyterServer | None:
    """Parse the files of a workspace; None if they are none."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            config = json.loads(file.read(CONFIG))
        server = JupyterServer(int(config["ServerApp"]["port"]), str(config["IdentityProvider"]["token"]))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return server if server.port in PORTS and server.token else None


def _connected(
    desk: Desk, job: Job, server: JupyterServer, command: list[str], port: int, *, opens: bool
) -> None:
    """Forward the port, open the page, and wait for Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-") as folder:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _wait_for_server(desk, process, port)
            page = page_of(Path(folder), port, server.token)
            click.echo(
                f"JupyterLab of {job.run} on {job.instances[0].id}: {page.as_uri()}; Ctrl-C disconnects"
            )
            if opens:
                webbrowser.open(page.as_uri())
            process.wait()
            click.echo("error: the session ended; the same command connects again", err=True)
            sys.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            click.echo(stays(job, desk.policy.stack))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def page_of(folder: Path, port: int, token: str) -> Path:
    """Write a page that leads to JupyterLab: a token in the browser's arguments would show to every user."""
    page = folder / "workspace.html"
    address = html.escape(f"http://127.0.0.1:{port}/lab?token={token}", quote=True)
    descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        refresh = f'<meta http-equiv="refresh" content="0; url={address}">'
        file.write(f'<!doctype html><meta charset="utf-8">{refresh}<a href="{address}">JupyterLab</a>')
    return page


def _check_free(port: int) -> None:
    """Raise ConfigurationError if a program of this computer listens on a port."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigurationError(f"--port {port}: another program uses it here; name another one")


def _wait_for_server(desk: Desk, process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until JupyterLab answers through the session; raises CloudError."""
    until = desk.now() + LONGEST_START
    while desk.now() < until:
        if process.poll() is not None:
            raise CloudError(f"the session ended with {process.returncode}; gpu-fleet connect shows why")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/api")
            if connection.getresponse().status == http.client.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # neither the session nor the server is ready yet
        finally:
            connection.close()
        desk.wait(LOOK_EVERY_S)
    raise CloudError("JupyterLab does not answer; gpu-fleet logs shows its log")


def stays(job: Job, stack: str) -> str:
    """Return what stays after Ctrl-C and what does not, for a user. Pure."""
    instance = job.instances[0].id
    where = f"--stack {stack}"
    return (
        f"stays: JupyterLab and its kernels on {instance} until nobody has used them for a while; your home "
        "with its environments, on a stack with shared homes also after the instance; /scratch/keep\n"
        "does not stay: the rest of /scratch, and packages outside of your home, once the instance is "
        "terminated\n"
        f"gpu-fleet workspace --pool {job.pool} {where} connects again; gpu-fleet cancel {job.run} {where} "
        f"stops it; gpu-fleet give-back {instance} {where} returns the instance"
    )
