"""What the agent costs a machine, beside what a shell loop of the usual tools costs.

The agent runs as a process of its own on the wall's time, watching the whole machine; CPU time and memory are
the kernel's own account of it. Its start (imports) is not counted: it comes once.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from moto.server import ThreadedMotoServer

from tests.reaper.machine_file import MACHINE_FILE

MEASURED_S = 125.0  # two judgements and more
GOAL_CPU_PERCENT = 0.5
GOAL_RSS_MB = 60.0
COMMAND = "python -m tests.bench.bench_agent"
# The same look by hand: load, people, processes and counters every five seconds.
PEER = (
    "while :; do uptime; who; ps aux; cat /proc/stat /proc/diskstats /proc/net/dev; sleep 5; done > /dev/null"
)


def measure(seconds: float = MEASURED_S) -> dict[str, dict[str, Any]]:
    """Run both side by side.

    Args:
        seconds: real seconds to measure, after the agent's first heartbeat.

    Returns:
        Entries for ``bench.json``.
    """
    with agent() as watched, running(["bash", "-c", PEER]) as peer:
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
    """One figure beside its peer, a shell loop that reads the same counters."""
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
def agent() -> Iterator[psutil.Process]:
    """An agent on the wall's time that has published its first heartbeat."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with tempfile.TemporaryDirectory() as folder:
        instance_file = Path(folder, "instance.toml")
        instance_file.write_text(MACHINE_FILE)
        environment = os.environ | {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
            "GPU_FLEET_INSTANCE_FILE": str(instance_file),
            "GPU_FLEET_RUN_DIR": folder,
        }
        command = [sys.executable, "-m", "image.reaper", "agent", "--instance-id", "i-bench"]
        with running(command, environment) as process:
            while not Path(folder, "activity.json").exists():
                time.sleep(1)
            yield process
    server.stop()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201 - the result is what the command is for
