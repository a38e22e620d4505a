"""A forked trainer behaves like one in a new interpreter."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from execnet.gateway_io import popen_bootstrapline

from tests import preloaded
from tests.ran import ran
from tests.training.programs import DIGITS, ROOT, torchrun

WAYS = {"forked": preloaded.preloaded, "started": nullcontext}
# What a program says of itself; torchrun gives it to `ranks`, of which this is one.
REPORT = """
import os, signal, sys, threading
print(sys.argv[1:], os.getcwd(), sys.path[0], os.environ.get("WORD"), __name__)
print([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)])
print(signal.getsignal(signal.SIGINT).__name__)
print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), sys.stdin.read(), threading.active_count())
print([name for name in sys.modules if name.startswith("gpu_fleet")])
"""
ENDS = {
    "a number": ("raise SystemExit(65)", 65, ""),
    "nothing": ("raise SystemExit", 0, ""),
    "words": ("raise SystemExit('no more')", 1, "no more\n"),
    "an error": ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    "Ctrl-C": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt\n"),
    "a kill": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "its end": ("import atexit; atexit.register(print, 'bye', file=__import__('sys').stderr)", 0, "bye\n"),
}


@pytest.fixture(params=["forked", pytest.param("started", marks=pytest.mark.prove)])
def way(request) -> Iterator[str]:
    with WAYS[request.param]():
        yield request.param


def run(code: str, folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in the environment that torchrun gives it."""
    script = folder / "script.py"
    script.write_text(code)
    own = {**os.environ, "TORCHELASTIC_RUN_ID": "test", "WORD": "heard"}
    return ran([sys.executable, script, *words], env=own, timeout=120, **how)


def test_one_that_is_killed_takes_its_server_along(digits, forked, tmp_path):
    """torchrun and two ranks in the middle of a run, seen from outside."""
    keys = {"data.path": digits, "run.directory": tmp_path, "run.epochs": 500, "checkpoint.every_steps": 5}
    with torchrun(DIGITS, *(word for key, value in keys.items() for word in (f"--{key}", value))) as program:
        program.wait_for("event=checkpoint step=")
        family = psutil.Process(program.process.pid).children(recursive=True)
        servers = [child for child in family if "RANK" not in child.environ()]
        ranks = {*family} - {*servers}
        parents = {rank.ppid() for rank in ranks}
        commands = [rank.cmdline()[:5] for rank in ranks]

        program.process.kill()

        assert program.process.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(servers, timeout=120)
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()  # nobody else ends what torchrun has left behind
    assert (len(servers), alive) == (1, [])
    assert parents == {program.process.pid}
    assert commands == [[sys.executable, "-u", "-m", "gpu_fleet", "start"]] * 2


@pytest.mark.parametrize(
    "how",
    [
        {"start_new_session": True},
        pytest.param({}, marks=pytest.mark.prove),
        pytest.param({"process_group": 0}, marks=pytest.mark.prove),
    ],
)
def test_it_has_its_words_folder_variables_signals_session_and_streams(how, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = []

    for way in WAYS.values():
        with way():
            said.append(run(REPORT, tmp_path, "--a", "b c", cwd=elsewhere, input="asked", **how))

    forked, started = said
    assert forked.stderr == started.stderr == ""
    assert forked.stdout == started.stdout
    assert f"['--a', 'b c'] {elsewhere} {tmp_path} heard __main__" in forked.stdout


@pytest.mark.parametrize("case", ENDS)
def test_it_ends_as_it_would(case, way, tmp_path):
    code, status, words = ENDS[case]

    done = run(code, tmp_path)

    assert done.returncode == status
    assert done.stderr.endswith(words)


def test_a_worker_is_known_by_what_begins_it():
    assert popen_bootstrapline == preloaded.WORKER


def test_what_is_no_trainer_is_started(forked):
    done = ran([sys.executable, "-c", "import sys; print('torch' in sys.modules)"], check=True)

    assert done.stdout == "False\n"
    assert Path(preloaded.__file__).parent.parent == ROOT
