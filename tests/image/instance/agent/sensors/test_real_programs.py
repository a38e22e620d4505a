"""The sensors with the real programs: JupyterLab, tmux, OpenSSH, MPI, Ray, torch and accelerate."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_fleet_image.instance.agent.sensors.jupyter import kernel_sessions
from gpu_fleet_image.instance.agent.sensors.processes import ProcessTable, processes
from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_image.recipe.errors import RequirementError
from tests.image.programs import DEBIAN_PACKAGES, Jupyter, at_a_terminal, environment, running, until
from tests.ran import ran

pytestmark = [pytest.mark.image, pytest.mark.prove]

AS_ROOT = ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")
MPI_AS_ROOT = {f"{part}_{name}": "1" for part in ("OMPI", "PRTE") for name in AS_ROOT}
RAY = """
import ray, time
ray.init(num_cpus=2, include_dashboard=False)
@ray.remote
def work(): time.sleep(300)
ray.get(work.remote())
"""
# One rank of two that waits at the other's store, as before a first collective.
STORE = "import datetime, sys, time; from torch.distributed import TCPStore\n"
FIRST = f"{STORE}s = TCPStore('127.0.0.2', 0, 2, True, wait_for_workers=False)\n"
FIRST += "print(s.port, flush=True)\ntime.sleep(300)"
SECOND = STORE + "TCPStore('127.0.0.2', int(sys.argv[1]), 2, False).wait(['go'], datetime.timedelta(hours=1))"


@pytest.fixture(scope="module")
def programs():
    try:
        build_requirements.install(DEBIAN_PACKAGES)
    except RequirementError as error:
        pytest.skip(f"no real programs here: {error}")
    return environment()


class Eyes:
    def __init__(self):
        self.gpu_pids = frozenset()
        self._table = ProcessTable(lambda: self.gpu_pids, time.monotonic, kernel_sessions)

    def poll(self):
        return self._table.read()

    def watched(self, pid):
        """Return the work of a program and its descendants."""
        table = {process.pid: process for process in processes()}
        family = {pid}
        for each_process in sorted(table.values(), key=lambda process: process.began_s):
            family |= {each_process.pid} if each_process.parent in family else set()
        return [text for text in self.poll().watched if any(f"({process}," in text for process in family)]

    def unused_s(self, kind, words):
        sessions = self.poll().sessions
        found = [each.unused_s for each in sessions if each.kind == kind and words in each.who]
        return min(found, default=None)


@pytest.fixture
def eyes():
    return Eyes()


@pytest.fixture(scope="module")
def jupyter(programs, tmp_path_factory):
    with Jupyter(programs, tmp_path_factory.mktemp("home")).serve() as server:
        yield server


@pytest.fixture(scope="module")
def kernel(jupyter):
    return jupyter.ask("POST", "api/kernels")["id"]


def test_a_notebook_counts_from_the_last_cell_it_ran(eyes, jupyter, kernel):
    jupyter.execute(kernel, "1 + 1")
    until(lambda: (eyes.unused_s("jupyter", kernel[:8]) or 0) > 3, "the kernel at rest")

    jupyter.execute(kernel, "1 + 1")

    assert eyes.unused_s("jupyter", kernel[:8]) < 3


def test_a_cell_that_only_waits_is_in_use_while_it_runs(eyes, jupyter, kernel):
    jupyter.execute(kernel, "import time; time.sleep(20)")
    until(lambda: eyes.unused_s("jupyter", f"{kernel[:8]} of root, busy") == 0, "the busy kernel")

    until(lambda: eyes.unused_s("jupyter", "busy") is None, "the end of the cell")


def test_looking_at_a_server_is_no_use_of_it(eyes, jupyter, kernel):
    before = jupyter.ask("GET", "api/kernels?no_track_activity=1"), jupyter.ask("GET", "api/status")

    eyes.poll()

    after = jupyter.ask("GET", "api/kernels?no_track_activity=1"), jupyter.ask("GET", "api/status")
    assert after[0][0]["last_activity"] == before[0][0]["last_activity"]
    assert after[1]["last_activity"] == before[1]["last_activity"]


def test_a_server_that_refuses_every_request_is_unknown_and_its_token_is_not_shown(eyes, jupyter, kernel):
    server_file = json.loads(jupyter.file().read_text())
    jupyter.file().write_text(json.dumps(server_file | {"token": "another-secret"}))
    try:
        unknown = eyes.poll().unknown
    finally:
        jupyter.file().write_text(json.dumps(server_file))

    assert [text for text in unknown if text.endswith("answers 403, so the state of its kernels is unknown")]
    assert "secret" not in str(unknown)


def test_typing_in_a_web_terminal_is_input(eyes, jupyter):
    name = jupyter.ask("POST", "api/terminals")["name"]
    mine = lambda: [each for each in processes() if each.parent == jupyter.pid and each.terminal]  # noqa: E731
    shell = until(mine, "shell")[-1]
    place = f"pts/{shell.terminal & 0xFF}"
    until(lambda: (eyes.unused_s("terminal", place) or 0) > 2, "the terminal at rest")

    jupyter.type_in_terminal(name, "ls\r")

    assert eyes.unused_s("terminal", place) == 0


def test_typing_in_tmux_is_input_and_what_runs_detached_is_none(eyes, programs, tmp_path):
    tmux = [shutil.which("tmux"), "-S", str(tmp_path / "socket")]
    subprocess.run([*tmux, "new-session", "-d", "watch -n 1 date"], check=True)
    place = subprocess.check_output([*tmux, "display", "-p", "#{pane_tty}"], text=True).strip()[5:]
    clients = [*tmux, "list-clients", "-F", "#{client_tty}"]
    try:
        until(lambda: (eyes.unused_s("terminal", place) or 0) > 2, "the pane at rest, its screen in motion")
        with at_a_terminal(*tmux, "attach", env=os.environ | {"TERM": "xterm"}) as keyboard:
            client = until(lambda: subprocess.check_output(clients, text=True).strip()[5:], "the client")
            until(lambda: (eyes.unused_s("terminal", client) or 0) > 2, "the client at rest")
            os.write(keyboard, b" ")

            until(lambda: eyes.unused_s("terminal", client) == 0, "the key")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_launchers_are_work_while_they_wait(eyes, programs, tmp_path):
    (tmp_path / "wait.py").write_text("import time; time.sleep(300)")
    (tmp_path / "ray.py.txt").write_text(RAY)
    script, own = str(tmp_path / "wait.py"), Path(sys.executable).parent
    options = {"cwd": tmp_path, "env": os.environ | MPI_AS_ROOT}
    commands = {
        "mpirun": [programs / "mpirun", "-n", "2", "--oversubscribe", "sleep", "300"],
        "accelerate": [programs / "accelerate", "launch", "--cpu", script],
        "torchrun": [own / "torchrun", "--nproc-per-node", "1", "--master-port", "29617", script],
        "torch.distributed": [
            own / "python",
            "-m",
            "torch.distributed.run",
            "--master-port",
            "29618",
            script,
        ],
        "ray": [programs / "python", tmp_path / "ray.py.txt"],
    }
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(running(*command, **options)) for name, command in commands.items()
        }
        for name, process in started.items():
            until(lambda pid=process.pid: eyes.watched(pid), f"{name} among what is work")


def test_a_rank_that_waits_for_its_peer_has_a_connection_to_it(eyes, programs):
    first = subprocess.Popen([sys.executable, "-c", FIRST], stdout=subprocess.PIPE, text=True)
    environ = os.environ | {"WORLD_SIZE": "2", "RANK": "1"}
    with first, running(sys.executable, "-c", SECOND, first.stdout.readline().strip(), env=environ) as second:
        eyes.gpu_pids = frozenset({second.pid})

        def waiting():
            # a process that only starts has no command line yet, and is in no table
            found = [process for process in eyes.poll().processes if process.ranks == 2 and process.peers]
            return found[0] if found else None

        use = until(waiting, "the rank at rest, connected")
        first.kill()
        eyes.gpu_pids = frozenset()

    assert not use.gets_on


@pytest.fixture
def sshd(programs, tmp_path):
    """Run a server of this computer's OpenSSH; return the client's command for it."""
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "authorized").write_text((tmp_path / "own.pub").read_text())
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = ["PermitRootLogin=yes", "StrictModes=no", "UsePAM=no"]
    settings += [f"AuthorizedKeysFile={tmp_path}/authorized"]
    server = ["/usr/sbin/sshd", "-D", "-p", "22022", "-h", tmp_path / "host", "-f", "/dev/null"]
    client = ["ssh", "-p", "22022", "-i", tmp_path / "own", "-o", "StrictHostKeyChecking=no"]
    client += ["-o", "UserKnownHostsFile=/dev/null", "-o", "ServerAliveInterval=5", "root@127.0.0.1"]
    with running(*server, *(word for setting in settings for word in ("-o", setting))):
        until(lambda: ran([*client, "true"]).returncode == 0, "sshd")
        yield client


def test_a_connection_without_a_terminal_counts_by_what_it_carries(eyes, sshd):
    with running(*sshd, "cat > /dev/null", stdin=subprocess.PIPE) as client:

        def use():
            found = [process for process in eyes.poll().processes if process.kind == "ssh"]
            return found[0] if found else None

        until(use, "the connection")
        time.sleep(12)  # what is measured is a rate
        resting = use()
        client.stdin.write(bytes(64 * 1024))
        client.stdin.flush()
        time.sleep(2)

        assert not resting.gets_on
        assert use().gets_on
