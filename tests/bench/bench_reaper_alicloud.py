"""The sweep on Alibaba Cloud: calls beside a sweep that reads every window, and false kills under faults.

Every call goes through the official SDK to a local server (``tests.image.alicloud_server``).
"""

import contextlib
import json
import os
import sys
from collections import Counter
from functools import partial
from typing import Any
from unittest import mock

from hypothesis import Phase
from rich.console import Console

from gpu_fleet_image.controllers.sweep import evidence as observe
from tests.bench import entries
from tests.image.controllers.sweep.fault_state_machine import play
from tests.image.controllers.sweep.test_faults import AlicloudFaultStateMachine
from tests.image.sweeping import CLOUDS, policy, sweep_world
from tests.image.world import World

entry = partial(entries.entry, command="python -m tests.bench.bench_reaper_alicloud")
COUNT, IDLE_EVERY, WATCHED_HOURS = 1000, 10, 26
STEPS = 50
RUNS = int(os.environ.get("GPU_FLEET_BENCH_RUNS_ALICLOUD", "300"))
TAGS = {"gpu-fleet:stack": "test", "gpu-fleet:managed": "true", "gpu-fleet:pool": "dev"}

Entries = dict[str, dict[str, Any]]


def measure() -> Entries:
    say = Console(stderr=True).print
    say(f"{COUNT} instances, the newest heartbeats first, and every window")
    found = calls("busy", idle_every=0, goal=f"<= {8 + COUNT // 100} (8 + N/100: a page has 100 instances)")
    found |= calls("idle", idle_every=IDLE_EVERY, goal="<= 50")
    say(f"{RUNS} runs of {STEPS} steps under every fault")
    with contextlib.redirect_stdout(sys.stderr):  # each notice is a line of the sweep's log
        return found | false_kills()


def calls(name: str, *, idle_every: int, goal: str) -> Entries:
    """Read calls of one sweep over a fleet, none or some of it idle for longer than its pool allows."""
    world = World()
    world.faults.seconds_per_call = 0.0
    for index in range(COUNT):
        world.start(TAGS, busy=not idle_every or index % idle_every > 0)
    world.pass_minutes(WATCHED_HOURS * 60)
    checked = policy(top=CLOUDS["alicloud"], idle_after_hours=24)
    own = sweep_world(world, checked, dry_run=True)
    with mock.patch.object(observe, "_enough", return_value=0.0):
        peer = sweep_world(world, checked, dry_run=True)
    verdicts = [(decision.instance.id, decision.verdict) for decision in own.plan.decisions]
    assert verdicts == [(decision.instance.id, decision.verdict) for decision in peer.plan.decisions]
    unit = f"read calls, {COUNT} instances, {COUNT // idle_every if idle_every else 0} of them idle"
    return {f"reaper_alicloud_calls_{name}": entry(own.read_calls, unit, peer.read_calls, goal)}


def false_kills() -> Entries:
    """The state machine of the tests, more of it; a false kill would raise."""
    machine = AlicloudFaultStateMachine
    before = Counter(machine.counts)
    play(machine, RUNS, STEPS + 1, phases=[Phase.generate])
    made = machine.counts - before
    unit = f"of {made['ends']} ends, {made['ends amid faults']} of them amid faults, in {made['runs']} runs, "
    return {"reaper_alicloud_false_kills": entry(0, f"{unit}{made['steps']} steps", None, "0")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
