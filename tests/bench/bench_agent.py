"""What the agent costs an instance, beside what a loop of psutil and boto3 costs.

The agents run as processes of their own on the wall's time, watching the whole instance; CPU time and memory
are the kernel's own account of them. Their start (imports) is not counted: it comes once. One of them has a
mark that is due: it looks at all sensors every five seconds and asks for the sweep's decision every fifteen.
It shows the notice of that on every terminal of this instance, once.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from gpu_fleet_image.core.model import TAG_REAP_AFTER
from gpu_fleet_image.core.times import format_time
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from tests.bench import entries
from tests.image.one_instance import client, one_instance

MEASURED_S = 125.0  # two judgements and more
GOAL_CPU_PERCENT = "< 0.2 % of a core"
entry = partial(entries.entry, command="python -m tests.bench.bench_agent")
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
    due = {TAG_REAP_AFTER: format_time(datetime.now(UTC) - timedelta(minutes=1))}
    with ExitStack() as stack:
        environment = stack.enter_context(cloud())
        watching = stack.enter_context(agent(environment))
        answering = stack.enter_context(agent(stack.enter_context(cloud(due))))
        peer = stack.enter_context(peer_loop(environment))
        before = [cpu_s(process) for process in (watching, answering, peer)]
        time.sleep(seconds)
        after = [cpu_s(process) for process in (watching, answering, peer)]
        rss_mb, due_rss_mb, peer_rss_mb = (
            process.memory_info().rss / 1e6 for process in (watching, answering, peer)
        )
    percents = [100 * (new - old) / seconds for old, new in zip(before, after, strict=True)]
    return {
        "agent_cpu_percent": entry(percents[0], "% of a core", percents[2], GOAL_CPU_PERCENT),
        "agent_due_cpu_percent": entry(percents[1], "% of a core", percents[2], GOAL_CPU_PERCENT),
        "agent_rss_mb": entry(max(rss_mb, due_rss_mb), "MB", peer_rss_mb, "< 60 MB"),
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
def cloud(tags: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """The environment of an instance with these tags, a metadata service, and the bucket of its stack."""
    with metadata_service() as metadata, tempfile.TemporaryDirectory() as folder:
        metadata.answers["/latest/meta-data/instance-id"] = "i-bench"
        for key, value in (tags or {}).items():
            metadata.answers[f"/latest/meta-data/tags/instance/{key}"] = value
        with one_instance(Path(folder), metadata.endpoint) as environment:
            client(environment, "s3").create_bucket(Bucket="made-up")
            yield environment


@contextmanager
def agent(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """An agent on the wall's time that has published its first heartbeat."""
    with running([sys.executable, "-m", "gpu_fleet_image.console", "agent"], environment) as process:
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
