"""What the agent costs a machine, beside what a loop of psutil and boto3 costs.

The agent runs as a process of its own on the wall's time, watching the whole machine; CPU time and memory are
the kernel's own account of it. Its start (imports) is not counted: it comes once.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from stacks.rehearsal.metadata import metadata_service
from tests.reaper.one_machine import one_machine

MEASURED_S = 125.0  # two judgements and more
GOAL_CPU_PERCENT = 0.2
GOAL_RSS_MB = 60.0
COMMAND = "python -m tests.bench.bench_agent"
# The same look as one writes it by hand: psutil's whole process table and counters every five seconds, boto3.
PEER = """
import time, boto3, psutil
cloudwatch = boto3.client("cloudwatch", "us-east-1")
while True:
    wanted = ["name", "cmdline", "username", "cpu_percent", "terminal"]
    processes = [one.info for one in psutil.process_iter(wanted)]
    seen = psutil.cpu_percent(), psutil.disk_io_counters(), psutil.net_io_counters(), psutil.users()
    cloudwatch.put_metric_data(Namespace="peer", MetricData=[{"MetricName": "Busy", "Value": seen[0]}])
    time.sleep(5)
"""


def measure(seconds: float = MEASURED_S) -> dict[str, dict[str, Any]]:
    """Run both side by side.

    Args:
        seconds: real seconds to measure, after the agent's first heartbeat.

    Returns:
        Entries for ``bench.json``.
    """
    with cloud() as environment, agent(environment) as watched, peer_loop(environment) as peer:
        before = [cpu_s(process) for process in (watched, peer)]
        time.sleep(seconds)
        after = [cpu_s(process) for process in (watched, peer)]
        rss_mb, peer_rss_mb = (process.memory_info().rss / 1e6 for process in (watched, peer))
    percent, peer_percent = (100 * (new - old) / seconds for old, new in zip(before, after, strict=True))
    return {
        "agent_cpu_percent": entry(percent, "% of a core", peer_percent, GOAL_CPU_PERCENT),
        "agent_rss_mb": entry(rss_mb, "MB", peer_rss_mb, GOAL_RSS_MB),
    }


def entry(value: float, unit: str, peer: float, goal: float) -> dict[str, Any]:
    """One figure beside its peer, the loop above."""
    return {
        "value": round(value, 3),
        "unit": unit,
        "peer": round(peer, 3),
        "ratio": round(value / peer, 3) if peer else None,
        "goal": f"< {goal:g} {unit}",
        "command": COMMAND,
    }


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process and of the children it has waited for."""
    return sum(process.cpu_times()[:4])


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[psutil.Process]:
    """A process for as long as the block lasts."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def cloud() -> Iterator[dict[str, str]]:
    """The environment of a machine with a metadata service."""
    with metadata_service() as metadata, tempfile.TemporaryDirectory() as folder:
        metadata.answers["/latest/meta-data/instance-id"] = "i-bench"
        with one_machine(Path(folder), metadata.endpoint) as environment:
            yield environment


@contextmanager
def agent(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """An agent on the wall's time that has published its first heartbeat."""
    with running([sys.executable, "-m", "image.reaper", "agent"], environment) as process:
        while not Path(environment["GPU_FLEET_RUN_DIR"], "activity.json").exists():
            time.sleep(1)
        yield process


@contextmanager
def peer_loop(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """The loop of the peer, started and past its imports."""
    with running([sys.executable, "-c", PEER], environment) as process:
        time.sleep(10)
        yield process


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201 - the result is what the command is for
