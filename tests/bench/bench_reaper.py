"""The sweep beside Cloud Custodian on one fleet in one run: calls, wrong verdicts, time, faults.

Cloud Custodian is installed from PyPI into ``build/c7n``. Both ask the same server (``reaper_cloud``): 20 ms
away, with the token buckets of a real account. Both plan only, so that both ask for the same work. Custodian
gets its own best parts: ``instance-uptime``, a limit, and our agent's metric instead of the CPU. Its mailer
and ``mark-for-op`` would tell owners and wait as we do; no verdict here depends on that.
"""

import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import Phase
from rich.console import Console

from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY, namespace
from tests.bench import entries
from tests.bench.reaper_cloud import PERIOD_S, STACK
from tests.image.controllers.sweep.custodian_cases import CASES
from tests.image.controllers.sweep.fault_state_machine import LONG_RUN, FaultStateMachine, play
from tests.image.moto_fleet import policy_json, pool_policy

ROOT = Path(__file__).resolve().parents[2]
CUSTODIAN_FOLDER = ROOT / "build" / "c7n"
CUSTODIAN = CUSTODIAN_FOLDER / "bin" / "custodian"
CUSTODIAN_VERSION = "0.9.53"
entry = partial(entries.entry, command="python -m tests.bench.bench_reaper")
SIZES = (200, 1000, 3000)
LARGE = 10_000
CASE_SIZES = {"just-booted": 1, "agent-dead": 1, "denied": 100, "vanished": 80}
MIXED, IDLE_HOURS = 30, 24
FAULT_RUNS = int(os.environ.get("GPU_FLEET_BENCH_RUNS", "2000"))

Entries = dict[str, dict[str, Any]]


def measure() -> Entries:
    say = Console(stderr=True).print
    install_custodian()
    found: Entries = {}
    for count in SIZES:
        say(f"{count} instances, this sweep and Cloud Custodian")
        found |= calls(count)
    say(f"{LARGE} instances")
    found |= large()
    say("wrong verdicts")
    found |= right_verdicts() | wrong_verdicts()
    say(f"{FAULT_RUNS} runs of {LONG_RUN} steps under every fault")
    return found | false_kills()


def install_custodian() -> None:
    """Cloud Custodian in an environment of its own, once."""
    if not CUSTODIAN.exists():
        subprocess.run([sys.executable, "-m", "venv", str(CUSTODIAN_FOLDER)], check=True)
        pip = [str(CUSTODIAN_FOLDER / "bin" / "pip"), "install", "--quiet", f"c7n=={CUSTODIAN_VERSION}"]
        subprocess.run(pip, check=True, stdout=sys.stderr)


class Server:
    """A running ``reaper_cloud``."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AWS_")},
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def asked(self) -> dict[str, Any]:
        """``calls`` by name since the last time, and instances ``ended``."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self._endpoint) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def cloud(count: int, case: str = "") -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.bench.reaper_cloud", str(count), case]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(process.stdout.readline().strip())
        finally:
            process.kill()


def sweep(server: Server) -> tuple[int, float, list[str]]:
    """One dry sweep in a process of its own: calls it made, seconds, and which instances it would mark."""
    with TemporaryDirectory() as folder:
        policy = Path(folder, "policy.json")
        pools = {"dev": pool_policy(idle_after_hours=IDLE_HOURS)}
        content = policy_json(stack=STACK, metric_namespace=namespace(STACK), pools=pools)
        policy.write_text(json.dumps(content), encoding="utf-8")
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "gpu_fleet_image.console", "sweep", "--policy", str(policy)]
        command += ["--dry-run", "--report", str(report), "--override-breaker"]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=server.environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        verdicts = json.loads(report.read_text(encoding="utf-8"))["verdicts"]
    marked = [verdict["instance_id"] for verdict in verdicts if verdict["verdict"] == "MARK"]
    return sum(server.asked()["calls"].values()), seconds, marked


def custodian_policy() -> dict[str, Any]:
    """What Cloud Custodian is asked: its own best filters, our agent's metric, no limit that stops it."""
    return {
        "name": "idle",
        "resource": "ec2",
        "max-resources": 10_000,
        "filters": [
            {"tag:gpu-fleet:managed": "true"},
            {"State.Name": "running"},
            {"type": "instance-uptime", "op": "greater-than", "days": 1 / 24},
            {
                "type": "metrics",
                "namespace": namespace(STACK),
                "name": METRIC_SECONDS_SINCE_ACTIVITY,
                "statistics": "Minimum",
                # one period: of several, only the first that comes is looked at
                "days": 1,
                "period": 86_400,
                "value": PERIOD_S,
                "op": "greater-than",
            },
        ],
        "actions": ["terminate"],
    }


def custodian(server: Server, *flags: str) -> tuple[int, list[str], float]:
    """One run of Cloud Custodian: its exit code, which instances it matched, seconds."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "policy.json")
        file.write_text(json.dumps({"policies": [custodian_policy()]}), encoding="utf-8")
        command = [str(CUSTODIAN), "run", "-s", folder, "--cache-period", "0", "--region", "us-east-1"]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, *flags, str(file)], env=server.environment, check=False, capture_output=True
        )
        seconds = time.perf_counter() - started
        matched = Path(folder, "idle", "resources.json")
        found = json.loads(matched.read_text()) if matched.exists() else []
        return done.returncode, [instance["InstanceId"] for instance in found], seconds


def calls(count: int) -> Entries:
    """Read calls of both for a fleet of this size."""
    with cloud(count) as server:
        own, own_s, _ = sweep(server)
        _, matched, peer_s = custodian(server, "--dryrun")
        peer = sum(server.asked()["calls"].values())
    assert len(matched) == count // 10, "both must find the same idle instances"
    goal = f"<= {8 + count // 150} (8 + N/150)"
    return {
        f"reaper_calls_{count}": entry(own, "read calls", peer, goal),
        f"reaper_sweep_{count}_s": entry(round(own_s, 2), "s", round(peer_s, 2), "faster"),
    }


def large() -> Entries:
    """A sweep over ten thousand instances; Cloud Custodian would make as many calls."""
    with cloud(LARGE) as server:
        made, seconds, _ = sweep(server)
    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    return {
        "reaper_sweep_10000_s": entry(round(seconds, 1), "s", None, "< 60"),
        "reaper_sweep_10000_calls": entry(made, "read calls", None, "<= 60"),
        "reaper_sweep_10000_mb": entry(round(memory_mb), "MB", None, "< 512"),
    }


def right_verdicts() -> Entries:
    """Instances idle for an hour up to two days and a half: both are to find those idle for a day."""
    with cloud(MIXED, "mixed") as server:
        _, _, own = sweep(server)
        _, peer, _ = custodian(server, "--dryrun")
    idle = {f"i-{index:017x}" for index in range(MIXED) if 2 * index + 1 >= IDLE_HOURS}
    right = [MIXED - len(idle ^ set(found)) for found in (own, peer)]
    unit = f"of {MIXED} instances, by the same metric"
    return {"reaper_right_verdicts": entry(right[0], unit, right[1], str(MIXED))}


def wrong_verdicts() -> Entries:
    """The cases of the facts page in which data is missing or a call fails, put to both."""
    own = [wrong for case in CASE_SIZES for wrong in CASES[case]()]
    wrongs = [case for case, count in CASE_SIZES.items() if custodian_is_wrong(case, count)]
    unit = f"of {len(CASE_SIZES)} cases of missing data or failing calls; the other: {', '.join(wrongs)}"
    return {"reaper_wrong_verdicts": entry(len(own), unit, len(wrongs), "0")}


def custodian_is_wrong(case: str, count: int) -> bool:
    with cloud(count, case) as server:
        code, matched, _ = custodian(server)
        ended = server.asked()["ended"]
    wrong = {
        "just-booted": ended > 0,
        "agent-dead": ended > 0,
        # instances were left out, and nobody is told
        "denied": code == 0 and len(matched) < count,
        "vanished": ended < count - 1,
    }
    return wrong[case]


def false_kills() -> Entries:
    """The state machine of the tests, as many full runs as are asked for; a false kill would raise."""
    counts = FaultStateMachine.counts
    while counts["long runs"] < FAULT_RUNS:
        # those that hypothesis ends early are made up for; it counts the standing up
        left = max(20, FAULT_RUNS - counts["long runs"])
        play(FaultStateMachine, left, LONG_RUN + 1, phases=[Phase.generate, Phase.shrink])
    ends = f"{counts['ends']} ends, {counts['ends amid faults']} of them amid faults"
    long_runs = f"{counts['long runs']} runs of {LONG_RUN} steps and {counts['runs']} in all"
    unit = f"of {ends}, in {long_runs}, {counts['steps']} steps"
    return {"reaper_false_kills": entry(0, unit, None, "0")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
