"""A step of 9 ms in the trainer, Accelerate, Lightning and Hugging Face's Trainer, each against a bare loop.

Every loop lies in a process of its own, and after each of its steps a bare loop in the same process does one,
so that both share what else the computer does. `bare` beside itself says how far equal loops lie apart. The
peers come from PyPI, into an environment in build/ that borrows torch from this one.
"""

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.bench_trainer_gpu import write_tokens
from tests.bench.entries import entry
from tests.bench.step_loops import FOREVER, LOOPS, STEPS_A_BLOCK, VOCABULARY
from tests.pins import pinned

ROOT = Path(__file__).parents[2]
COMMAND = "python -m tests.bench.bench_trainer_overhead"
PEERS = pinned("accelerate", "lightning")
ROUNDS = 3
LOG_EVERY = {"log_on": 10, "log_off": FOREVER}
# on a busy computer processor time says what a loop adds, the wall what others do
CLOCKS = {"wall": "", "cpu": "_cpu"}
GOAL = "ratio <= 1.05, below the peers"
Blocks = list[dict[str, tuple[float, float]]]  # of each clock: seconds of the loop, of the bare loop


def peers_python(name: str, pins: Sequence[str]) -> Path:
    """The interpreter of an environment with these peers in it, made where there is none yet."""
    folder = ROOT / "build" / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *quiet, *pins], check=True)
        (folder / ".ready").touch()
    return python


def blocks_of(name: str, data: Path, log_every: int) -> Blocks:
    """What blocks of ten steps of the loop `name`, and of the bare loop beside it, took in one process."""
    words: list[str | Path] = [peers_python("peers", PEERS), "-m", "tests.bench.step_loops"]
    words += [name, data, str(log_every)]
    path = f"{ROOT}:{ROOT / 'training'}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: Blocks = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(data: Path, log_every: int, rounds: int = ROUNDS) -> dict[str, Blocks]:
    """The blocks of every loop, from `rounds` processes each, by turns."""
    found: dict[str, Blocks] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        for name, blocks in found.items():
            blocks.extend(blocks_of(name, data, log_every))
    return found


def entries_of(label: str, clock: str, found: dict[str, Blocks]) -> dict[str, dict[str, Any]]:
    """One entry for each loop; the ratio is the median over the blocks."""
    entries = {}
    for name, blocks in found.items():
        ratio = statistics.median(block[clock][0] / block[clock][1] for block in blocks)
        loop_s, bare_s = (statistics.median(block[clock][place] for block in blocks) for place in (0, 1))
        key = f"trainer_overhead_9ms_{label}" if name == "ours" else f"{name}_overhead_9ms_{label}"
        loop_ms, bare_ms = loop_s / STEPS_A_BLOCK * 1e3, bare_s / STEPS_A_BLOCK * 1e3
        goal = GOAL if name == "ours" else "a peer"
        entries[key] = entry(loop_ms, "ms per step", bare_ms, goal, command=COMMAND, ratio=ratio)
    return entries


def main() -> None:
    """Prints the entries as one JSON object."""
    entries: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = write_tokens(Path(folder) / "tokens", vocabulary=VOCABULARY)
        for label, log_every in LOG_EVERY.items():
            found = measured(data, log_every)
            for clock, suffix in CLOCKS.items():
                entries |= entries_of(f"{label}{suffix}", clock, found)
    sys.stdout.write(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    main()
