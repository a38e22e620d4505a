"""The trainer as users run it: a process, its stderr and its exit status."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gpu_fleet_jobs.launch.launch import FRESH_STORE
from tests.held import rank_process

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "training/examples/digits.toml"


@dataclass
class Program:
    """A running trainer and its stderr so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def wait_for(self, words: str) -> str:
        """Return the next line of stderr with `words` in it; fail if the program ends before."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"ended without saying {words!r}:\n{self.said}")

    def finish(self) -> int:
        """Read to the end and return the exit status."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr
        return self.process.wait()

    def worker(self, rank: int) -> int:
        """Return the process id of one rank, found by its environment."""
        found = rank_process(self.process.pid, rank)
        if found is not None:
            return found.pid
        raise AssertionError(f"no process of rank {rank}")

    @property
    def said(self) -> str:
        return "".join(self.lines)


@contextmanager
def started(
    *arguments: object, environment: Mapping[str, str] | None = None, limit_s: float = 240.0
) -> Iterator[Program]:
    """Start `python -m ARGUMENTS` in its own process group, which is killed after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *(str(argument) for argument in arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **FRESH_STORE, **(environment or {})},
        start_new_session=True,
    )
    # a hang ends as a failure, and takes nothing else along
    guard = threading.Timer(limit_s, lambda: os.killpg(process.pid, signal.SIGKILL))
    guard.start()
    try:
        yield Program(process)
    finally:
        guard.cancel()
        for child in (
            [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        ):
            child.kill()
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def torchrun(
    *arguments: object,
    ranks: int = 2,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    limit_s: float = 240.0,
) -> AbstractContextManager[Program]:
    """Start `torchrun -m gpu_fleet start ARGUMENTS` on this instance, on a free port."""
    return started(
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        f"--max-restarts={max_restarts}",
        "-m",
        "gpu_fleet",
        "start",
        *arguments,
        environment=environment,
        limit_s=limit_s,
    )
