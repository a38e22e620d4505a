"""Random walks of users, agents and sweeps over moto: the function's own handler, real agents, the oracle.

Each step lets a user, an agent, the cloud or the schedule do something; calls fail and users come while a
sweep is at work. Every termination is held against the timeline of what really happened.
"""

import contextlib
import json
import os
import random
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner
from rich.console import Console

from gpu_fleet_image.console.cli import main as gpu_fleet
from gpu_fleet_image.controllers.sweep import handler
from gpu_fleet_image.core.errors import InstanceError
from tests.bench import entries
from tests.image.live import POOL, Instance, Live, live_aws, refusal
from tests.image.oracle import Rules, Span, Timeline, wrongs_of

entry = partial(entries.entry, command="python -m tests.bench.bench_reaper_moto")
RUNS = int(os.environ.get("GPU_FLEET_BENCH_RUNS_MOTO", "50"))
STEPS, INSTANCES = 50, 6
RULES = Rules(
    idle_after=timedelta(hours=POOL["idle_after_hours"]),
    grace=timedelta(minutes=POOL["grace_minutes"]),
    min_uptime=timedelta(minutes=POOL["min_uptime_minutes"]),
)
SWEEP_CALLS = ("DescribeInstances", "GetMetricData", "ListObjectsV2", "PutObject", "GetObject", "CreateTags")

Entries = dict[str, dict[str, Any]]


class Walk:
    """One run.

    Args:
        live: the stack in moto.
        seed: of everything that happens.
    """

    def __init__(self, live: Live, seed: int) -> None:
        self.live, self._random = live, random.Random(seed)
        self.lines: dict[str, Timeline] = {}
        for instance in (*live.start(INSTANCES - 2), *live.start(2, group="pool")):
            self.lines[instance.id] = Timeline(boots=[live.now - timedelta(days=1)])
        sns = handler.connect.keywords["made"].sns  # type: ignore[attr-defined] # a partial, as Live made it
        sns.meta.events.register("before-call.sns.Publish", self._hear)

    def _hear(self, params: dict[str, Any], **_: object) -> None:
        text = str(params["body"].get("Message", ""))
        for name, line in self.lines.items():
            if name in text and "gpu-fleet keep" in text:
                line.notices.append(self.live.now)

    def step(self) -> None:
        weights = {"sweep": 8, "night": 3, "work": 2, "type": 2, "leave": 4, "keep": 1, "wait": 4}
        weights |= {"agent_dies": 1, "agent_restarts": 2}
        (chosen,) = self._random.choices(list(weights), list(weights.values()))
        getattr(self, f"_{chosen}")()

    def _wait(self) -> None:
        self.live.pass_minutes(self._random.choice([0.2, 1, 3, 10]))

    def _any_running(self) -> Instance | None:
        running = [instance for instance in self.live.instances.values() if instance.truth.ended_at is None]
        return self._random.choice(running) if running else None

    def _work(self) -> None:
        if instance := self._any_running():
            before = len(instance.truth.jobs)
            instance.begin_job()
            if len(instance.truth.jobs) > before:
                self.lines[instance.id].jobs.open(self.live.now)

    def _type(self) -> None:
        """Some keys are pressed, within a moment."""
        if instance := self._any_running():
            now, before = self.live.now, len(instance.truth.typed_at)
            instance.log_in()
            if len(instance.truth.typed_at) > before:
                self.lines[instance.id].typing.append(Span(now, now + timedelta(seconds=5)))

    def _leave(self) -> None:
        if instance := self._any_running():
            instance.truth.jobs.clear()
            self.lines[instance.id].jobs.close(self.live.now)

    def _keep(self) -> None:
        """By the command; only what it confirmed is promised."""
        if instance := self._any_running():
            arguments = f"keep 2h --reason walk --instance-id {instance.id} --region us-east-1"
            if CliRunner().invoke(gpu_fleet, arguments).exit_code == 0:
                now, line = self.live.now, self.lines[instance.id]
                line.holds.close(now)
                line.holds.append(Span(now, now + timedelta(hours=2)))

    def _agent_dies(self) -> None:
        if instance := self._any_running():
            instance.alive = False

    def _agent_restarts(self) -> None:
        if (instance := self._any_running()) and not instance.alive:
            instance.start_agent(self.live.now)

    def _night(self) -> None:
        """Everybody leaves; sweeps come on schedule."""
        for _ in range(INSTANCES):
            self._leave()
        self.live.pass_minutes(70)
        for _ in range(3):
            self._sweep()
            self.live.pass_minutes(10)

    def _sweep(self) -> None:
        if self._random.random() < 0.5:
            happens = self._random.choice([self._work, self._type, self._keep, self._fail])
            number = self._random.randint(1, 4)
            self.live.on_call(self._random.choice(SWEEP_CALLS), happens, number=number)
        with contextlib.suppress(InstanceError):  # the function fails and is called again
            self.live.sweep(override_breaker=self._random.random() < 0.8)

    def _fail(self) -> None:
        raise refusal(self._random.choice(["RequestLimitExceeded", "AccessDenied"]), "AnyCall")

    def wrongs(self) -> list[str]:
        """Every promise that was broken, in words."""
        return [
            f"{instance.id} was terminated at {instance.truth.ended_at}: {wrong}"
            for instance in self.live.instances.values()
            if instance.truth.ended_at is not None
            for wrong in wrongs_of(self.lines[instance.id], instance.truth.ended_at, RULES)
        ]


def measure() -> Entries:
    say = Console(stderr=True).print
    ends = 0
    for seed in range(RUNS):
        say(f"run {seed + 1} of {RUNS}, {ends} ends so far")
        with contextlib.redirect_stdout(sys.stderr):
            ends += run(seed)
    unit = f"of {ends} ends in {RUNS} runs of {STEPS} steps over moto"
    return {"reaper_moto_false_kills": entry(0, unit, None, "0")}


def run(seed: int, steps: int = STEPS) -> int:
    """One run; how many instances were ended, each rightly.

    Raises:
        AssertionError: one was not.
    """
    with TemporaryDirectory() as folder, live_aws(Path(folder)) as live:
        walk = Walk(live, seed)
        for _ in range(steps):
            walk.step()
            if wrongs := walk.wrongs():
                raise AssertionError(f"seed {seed}: {'; '.join(wrongs)}")
        return sum(instance.truth.ended_at is not None for instance in live.instances.values())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
