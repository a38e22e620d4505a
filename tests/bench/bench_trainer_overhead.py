"""A step of 9 ms in the trainer, Accelerate, Lightning and Hugging Face's Trainer, each against a bare loop.

Every loop lies in a process of its own and does some steps when it is its turn, so that all share what else
the machine does; each ratio is to the bare loop's turn of the same round. The peers come from PyPI, into an
environment in build/ that borrows torch from this one.
"""

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.bench_trainer_gpu import write_tokens
from tests.bench.step_loops import FOREVER, LOOPS, VOCABULARY

ROOT = Path(__file__).parents[2]
COMMAND = "python -m tests.bench.bench_trainer_overhead"
PEERS = ROOT / "build" / "peers"
PEER_PINS = ("accelerate==1.15.0", "lightning==2.6.6")
ROUNDS = 30
LOG_EVERY = {"log_on": 10, "log_off": FOREVER}
CLOCKS = ("", "_cpu")  # on a busy machine processor time says what a loop adds, the wall what others do
GOAL = "ratio <= 1.05, below the peers"


def peers_python() -> Path:
    """The interpreter of an environment with the peers in it, made where there is none yet."""
    python = PEERS / "bin" / "python"
    if not (PEERS / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(PEERS), "platbase": str(PEERS)}))
        (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *quiet, *PEER_PINS], check=True)
        (PEERS / ".ready").touch()
    return python


class Loop:
    """One of the loops, waiting for its turn."""

    def __init__(self, name: str, data: Path, log_every: int) -> None:
        words = [peers_python(), "-m", "tests.bench.step_loops", name, str(data), str(log_every)]
        path = f"{ROOT}:{ROOT / 'training'}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()  # the first turn warms up

    def turn(self) -> tuple[float, float]:
        """Seconds a step of one more turn, on the wall and of the processor."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> tuple[float, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("took "):
                _, wall_s, cpu_s = line.split()
                return float(wall_s), float(cpu_s)
        raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measured(data: Path, log_every: int, rounds: int = ROUNDS) -> list[dict[str, list[float]]]:
    """Seconds a step of every loop, one number for each round: on the wall, and of the processor."""
    with ExitStack() as stack:
        loops = {name: Loop(name, data, log_every) for name in LOOPS}
        for loop in loops.values():
            stack.callback(loop.close)
        for loop in loops.values():
            loop.turn()
        found: list[dict[str, list[float]]] = [{name: [] for name in LOOPS} for _ in CLOCKS]
        for _ in range(rounds):
            for name, loop in loops.items():
                for clock, seconds in zip(found, loop.turn(), strict=True):
                    clock[name].append(seconds)
    return found


def entries_of(label: str, found: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """The trainer's entry, which names the ratios of the peers, and one entry for each of them."""
    bare = found["bare"]
    entries = {}
    for name, seconds in found.items():
        if name == "bare":
            continue
        ratio = statistics.median(one / other for one, other in zip(seconds, bare, strict=True))
        key = f"trainer_overhead_9ms_{label}" if name == "ours" else f"{name}_overhead_9ms_{label}"
        entries[key] = {
            "value": round(statistics.median(seconds) * 1e3, 3),
            "unit": "ms per step",
            "peer": round(statistics.median(bare) * 1e3, 3),
            "ratio": round(ratio, 4),
            "goal": GOAL if name == "ours" else "a peer",
            "command": COMMAND,
        }
    return entries


def main() -> None:
    """Prints the entries as one JSON object."""
    entries: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = write_tokens(Path(folder) / "tokens", vocabulary=VOCABULARY)
        for label, log_every in LOG_EVERY.items():
            for clock, found in zip(CLOCKS, measured(data, log_every), strict=True):
                entries |= entries_of(f"{label}{clock}", found)
    sys.stdout.write(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    main()
