"""Random schedules with Slurm itself: small jobs; instances that die, are reclaimed, or refuse jobs."""

import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.image.slurm.guests import Guest
from tests.image.slurm.test_real_engine import JOB_S, Lab

OVER = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")
MOST = 3  # size.max of the lab's pool
DISTURBED_S, LOOK_S = 40, 2.0
LONGEST_S = 600  # of a schedule, once nothing dies any more
# The first of a run's instances counts; one that was put back goes on where the file ends.
STEPS = """
while [ "$(wc -l <{file})" -lt {steps} ]; do
    [ "$SLURM_NODEID" != 0 ] || echo "$SLURM_RESTART_COUNT" >>{file}
    sleep 0.5
done
"""


@dataclass
class SmallJob:
    """A job that writes a line for each of its steps.

    Attributes:
        state: last state by Slurm.
        cancelled: its user cancelled it.
    """

    id: str
    file: Path
    steps: int
    state: str = "PENDING"
    cancelled: bool = False

    @property
    def is_over(self) -> bool:
        """True if it has ended for good."""
        return self.state in OVER

    def wrongs(self) -> list[str]:
        """Return the errors that a user would see."""
        tries = [int(line or 0) for line in self.file.read_text().splitlines()]
        lost = self.state != "COMPLETED" or len(tries) < self.steps
        found = [f"job {self.id} is {self.state} after {len(tries)} of {self.steps} steps: lost"]
        found = found if lost and not (self.cancelled and self.state == "CANCELLED") else []
        if tries != sorted(tries):
            found.append(f"job {self.id} ran twice at the same time: {tries}")
        return found


@dataclass
class RealSchedule:
    """One schedule, in a lab that earlier schedules have used.

    Attributes:
        ends: (time, instance) of reclaimed instances, after their notice.
        shut: instance -> time when it takes jobs again.
    """

    lab: Lab
    seed: int
    jobs: list[SmallJob] = field(default_factory=list)
    deaths: int = 0
    ends: dict[str, float] = field(default_factory=dict)
    shut: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._moved_at = 0.0

    def run(self) -> list[str]:
        """Play the schedule; return the errors."""
        number = self.dice.randint(3, 5)
        until = time.monotonic() + DISTURBED_S
        while time.monotonic() < until or len(self.jobs) < number:
            if len(self.jobs) < number and self.dice.random() < 0.5:
                self._submit()
            self._disturb()
            self._pass()
        self.shut = dict.fromkeys(self.shut, 0.0)
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until and not all(job.is_over for job in self.jobs):
            self._pass()
        return [wrong for job in self.jobs for wrong in job.wrongs()]

    def _nodes(self) -> list[Guest]:
        """Return the living instances of the pool that Slurm knows, except those that are reclaimed."""
        guests, known = self.lab.fleet.guests, self.lab.nodes()
        return [
            guests[name]
            for name in self.lab.fleet.instances()
            if name in known and name in guests and name not in self.ends and name not in self.shut
        ]

    def _submit(self) -> None:
        file = self.lab.fleet.homes / f"ada/steps-{self.seed}-{len(self.jobs)}"
        self.lab.controller.run("touch", f"/home/ada/{file.name}", account="ada")
        steps = self.dice.randint(10, 60)
        text = STEPS.format(file=f"/home/ada/{file.name}", steps=steps)
        nodes = ("--nodes", str(self.dice.choice([1, 1, 2])))
        self.jobs.append(SmallJob(self.lab.submit(*nodes, "--", "sh", "-c", text), file, steps))

    def _disturb(self) -> None:
        nodes = self._nodes()
        chance = self.dice.random()
        if nodes and chance < 0.12:
            self._lose(self.dice.choice(nodes).id)
        elif nodes and chance < 0.2:
            guest = self.dice.choice(nodes)
            guest.run("sh", "-c", "echo spot >/run/gpu-fleet/stop")
            self.ends[guest.id] = time.monotonic() + 15
        elif nodes and chance < 0.28:
            guest = self.dice.choice(nodes)
            guest.run("sh", "-c", "echo closed >/run/gpu-fleet/closed")
            self.shut[guest.id] = time.monotonic() + self.dice.uniform(5, 40)
        elif self.jobs and chance < 0.3:
            job = self.dice.choice(self.jobs)
            self.lab.slurm("scancel", job.id)
            job.cancelled = True

    def _lose(self, name: str) -> None:
        self.lab.fleet.lose(name)
        self.deaths += 1
        self.shut.pop(name, None)

    def _pass(self) -> None:
        """Advance by two seconds: instances start, end and take jobs again; read the jobs from Slurm."""
        now = time.monotonic()
        for name in [name for name, at in self.ends.items() if at <= now]:
            del self.ends[name]
            self._lose(name)
        for name in [name for name, at in self.shut.items() if at <= now]:
            del self.shut[name]
            self.lab.fleet.guests[name].run("rm", "-f", "/run/gpu-fleet/closed")
        missing = self.lab.need().wanted(MOST) > len(self.lab.fleet.instances()) - 1
        if missing and now - self._moved_at > 10:
            self._moved_at = now
            self.lab.door.move()
        self.lab.fleet.boot_new()
        for job in self.jobs:
            said = self.lab.job(job.id)
            state = next((word[9:] for word in said.split() if word.startswith("JobState=")), "")
            job.state = state or job.state
        time.sleep(LOOK_S)


def lose_controller(lab: Lab) -> None:
    """Lose the controller and its disk; the group starts another one."""
    lab.fleet.lose(lab.controller.id)
    (lab.controller,) = lab.fleet.until(lab.fleet.boot_new, JOB_S, "the group starts another")
    lab.fleet.until(lambda: "train" in lab.slurm("sinfo"), JOB_S, "slurmctld answers")


def report(text: str) -> None:
    """Print progress on stderr."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{text}\n")
