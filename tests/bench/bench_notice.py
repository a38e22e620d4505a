"""From a notice to a checkpoint that is whole in the bucket: a loop with `Run`, and an S3 server beside it.

The server shares the two cores of this computer, and has the bandwidth that is stated. The state is whole on
one rank, so all of it takes the same way: into memory, onto the disk with its hash, up in parts.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import torch
from torch import Tensor, nn

from gpu_fleet import Run
from gpu_fleet_stacks.rehearsal.moto_server import client_environment
from tests.bench import entries

ROOT = Path(__file__).parents[2]
entry = partial(entries.entry, command="python -m tests.bench.bench_notice")
GIGABYTE = 10**9
BYTES_PER_S = 5 * GIGABYTE / 8  # 5 Gbit/s, of one connection of S3
SIZES_GB = {1: 3, 10: 1}  # and how often each is measured
LARGE_GB = 84  # 7B parameters, 12 bytes each
AWS_NOTICE_S = 120.0
SPARE_BYTES = 2 * GIGABYTE  # for torch and for others
URI = "s3://bench/runs/notice"
STOPPED = 85


class Holding(nn.Module):
    """A small layer that learns, and a large tensor that is saved with it: pages of a file, not of memory."""

    held: Tensor

    def __init__(self, file: Path, size_bytes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        count = size_bytes // torch.float32.itemsize
        self.register_buffer("held", torch.from_file(str(file), shared=True, size=count, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs.square().mean()


def loop(directory: Path, size_bytes: int) -> None:
    """What a user writes, with steps of a hundredth of a second; says that it runs."""
    model = Holding(directory / "held", size_bytes)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with Run(directory / "run", uri=URI, every_s=0.0, model=model, optimizer=optimizer) as run:
        for step in run.steps(10**9):
            model(torch.randn(4, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
            if step == 2:
                print("runs", flush=True)  # noqa: T201 - read by the bench


@contextmanager
def served() -> Iterator[tuple[str, IO[str]]]:
    """Endpoint and words of a server that stands until the block ends."""
    words = [sys.executable, "-m", "tests.bench.s3_server", str(BYTES_PER_S)]
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}", server.stdout
    finally:
        server.kill()
        server.wait()


def durable_s(size_bytes: int) -> float:
    """Seconds from a notice to the manifest in the bucket, which is the commit."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, served() as (endpoint, stored):
        held = Path(name) / "held"
        held.touch()
        os.truncate(held, size_bytes)
        wanted = client_environment(endpoint, "us-east-1")
        environment = {key: value for key, value in (os.environ | wanted).items() if value is not None}
        words = [sys.executable, "-m", "tests.bench.bench_notice", name, str(size_bytes)]
        with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "runs\n"
            noticed_at_s = time.time()
            program.send_signal(signal.SIGTERM)
            sizes: dict[str, tuple[float, int]] = {}
            for line in stored:
                at_s, size, path = line.split()
                sizes[path.rpartition("/")[2]] = float(at_s), int(size)
                if path.endswith("manifest.json"):
                    break
            assert sizes["state.pt"][1] > size_bytes
            assert program.wait() == STOPPED
        took_s = sizes["manifest.json"][0] - noticed_at_s
        print(f"{size_bytes} bytes: {took_s:.2f} s", file=sys.stderr)  # noqa: T201 - a bench's progress
        return took_s


def measured() -> dict[int, float]:
    """Seconds by size in GB, the median of some tries; a size that memory has no room for is left out."""
    found = {}
    for size_gb, tries in SIZES_GB.items():
        if psutil.virtual_memory().available < size_gb * GIGABYTE + SPARE_BYTES:
            print(f"{size_gb} GB: this computer has not the memory for it", file=sys.stderr)  # noqa: T201
            continue
        found[size_gb] = statistics.median(durable_s(size_gb * GIGABYTE) for _ in range(tries))
    return found


def entries_of(found: dict[int, float]) -> dict[str, dict[str, Any]]:
    """The measured times beside the line alone, and a large state, computed, beside a notice of AWS."""
    made = {
        f"notice_to_durable_{size_gb}gb_s": entry(
            took_s, "s at 5 Gbit/s", size_gb * GIGABYTE / BYTES_PER_S, "stated, beside the line alone"
        )
        for size_gb, took_s in found.items()
    }
    largest = max(found)
    each_s = (found[largest] - found[1]) / (largest - 1) if largest > 1 else found[1]
    large_s = found[1] + (LARGE_GB - 1) * each_s
    made[f"notice_to_durable_{LARGE_GB}gb_s"] = entry(
        large_s, f"s, computed from 1 and {largest} GB", AWS_NOTICE_S, "stated, beside AWS's notice"
    )
    return made


def main() -> None:
    """Prints the entries as one JSON object."""
    sys.stdout.write(json.dumps(entries_of(measured()), indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        loop(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
