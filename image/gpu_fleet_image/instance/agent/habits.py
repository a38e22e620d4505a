"""Which of the users' processes that began lately only repeat what ran before them and came to nothing.

`watch nvidia-smi` in a forgotten pane, a loop with a `sleep`, the program of a container's health check: each
starts the same command again and again. That a process began is a sign of use, for a job's first seconds show
nothing else. It is none of a process of which all of this is known, by looks alone:

- its last three runs ended: the same command and arguments, of the same user, below the same old parent;
- none of them came to anything: each look that saw them knew everything and showed an instance at rest, and
  they held no GPU, took a CPU second at most with all their children, and ten minutes;
- this one, too, holds no GPU, and is neither older nor busier than twice what they were at most.

So a loop that trains counts from the first moment of each run, and whatever runs for the first, second or
third time does as well. A job that hides behind a command which did nothing three times before is seen as
soon as it starts another program, takes 0.2 CPU seconds more, or lasts longer. What a process uses counts as
anybody's use does: this is about its mere beginning alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from gpu_fleet_image.instance.agent.judge import Limits, activity, unknowns
from gpu_fleet_image.instance.agent.sensors.reading import Reading, Started

RUNS = 3
MOST_CPU_S = 1.0
LONGEST_S = 600.0
TIMES_MORE = 2.0  # a run on a busy moment takes longer than one at rest
MORE_S, MORE_CPU_S = 2.0, 0.2  # a look comes once a second at most; a tick is 0.01 s
REMEMBERED = timedelta(days=1)
MOST_COMMANDS = 1000


class PolledSensors(Protocol):
    """What an agent looks with (``sensors.poll.Sensors``)."""

    def poll(self, now: datetime) -> Reading:
        """Look at everything, without a trace."""

    def sample(self, now: datetime, *, everything: bool) -> Reading:
        """One sample of a minute."""


@dataclass(frozen=True)
class _Command:
    """What a run is a run of."""

    command: str
    parent: tuple[int, float]
    name: str
    user: str


@dataclass(frozen=True)
class _Run:
    """What is known of one run: its process, when it was last seen, and what it was by then.

    It worked if it held a GPU, or if anything on the instance did when it was seen.
    """

    of: _Command
    process: tuple[int, float]
    at: datetime
    age_s: float
    cpu_s: float
    worked: bool

    def after(self, earlier: "_Run") -> "_Run":
        """This one, with what was seen of it before: a child that is gone took its CPU time along."""
        return replace(self, cpu_s=max(self.cpu_s, earlier.cpu_s), worked=self.worked or earlier.worked)

    @property
    def came_to_nothing(self) -> bool:
        """Whether nothing was seen that it was for."""
        return not self.worked and self.cpu_s <= MOST_CPU_S and self.age_s <= LONGEST_S


class Habits:
    """Remembers the runs of users' commands."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, float], _Run] = {}
        self._past: dict[_Command, deque[_Run]] = {}

    def learned(self, started: Iterable[Started], at: datetime, *, busy: bool) -> tuple[Started, ...]:
        """The processes of one look, each with whether it only repeats what came to nothing.

        Args:
            started: of this look, which is later than every look before.
            busy: anything on the instance is active, or may be.
        """
        before, self._running = self._running, {}
        runs = [(process, self._noted(_run(process, at, busy=busy), before)) for process in started]
        for key in before.keys() - self._running.keys():
            self._remember(before[key])
        return tuple(replace(process, repeats=self._is_known(run)) for process, run in runs)

    def _noted(self, run: _Run, before: Mapping[tuple[int, float], _Run]) -> _Run:
        key = run.process
        self._running[key] = run.after(before[key]) if key in before else run
        return self._running[key]

    def _remember(self, run: _Run) -> None:
        others: list[_Run] = []
        for earlier in self._past.pop(run.of, ()):
            if earlier.process == run.process:  # a look missed it in between: one run, seen twice
                run = run.after(earlier)
            else:
                others.append(earlier)
        # put back as the last: what was seen longest ago comes first
        self._past[run.of] = deque([*others, run], maxlen=RUNS)
        while len(self._past) > MOST_COMMANDS:
            del self._past[next(iter(self._past))]

    def _is_known(self, run: _Run) -> bool:
        past = [
            earlier
            for earlier in self._past.get(run.of, ())
            # a look may miss a process, which is no run before itself
            if earlier.process != run.process and run.at - earlier.at <= REMEMBERED
        ]
        if len(past) < RUNS or not all(each.came_to_nothing for each in (*past, run)):
            return False
        age_s, cpu_s = max(earlier.age_s for earlier in past), max(earlier.cpu_s for earlier in past)
        return run.age_s <= TIMES_MORE * age_s + MORE_S and run.cpu_s <= TIMES_MORE * cpu_s + MORE_CPU_S


def _run(process: Started, at: datetime, *, busy: bool) -> _Run:
    of = _Command(process.command, process.parent, process.name, process.user)
    key = (process.pid, process.began_s)
    return _Run(of, key, at, process.age_s, process.cpu_s, busy or process.on_gpu)


class Accustomed:
    """Sensors that know users' habits; every look teaches them, from any thread.

    Args:
        limits: what counts as activity, asked anew at each look.
    """

    def __init__(self, sensors: PolledSensors, limits: Callable[[], Limits] = Limits) -> None:
        self._sensors = sensors
        self._limits = limits
        self._habits = Habits()
        self._lock = threading.Lock()

    def poll(self, now: datetime) -> Reading:
        """As ``Sensors.poll``."""
        with self._lock:
            return self._learned(self._sensors.poll(now))

    def sample(self, now: datetime, *, everything: bool) -> Reading:
        """As ``Sensors.sample``."""
        with self._lock:
            return self._learned(self._sensors.sample(now, everything=everything))

    def _learned(self, reading: Reading) -> Reading:
        presence = reading.presence
        if presence is None or any(failure.startswith("processes:") for failure in reading.failures):
            return reading  # who shows no processes ends none
        limits = self._limits()
        # what is not known may be work: a GPU that does not answer does not say who is on it either
        busy = bool(unknowns([reading], limits) or activity([reading], limits))
        started = self._habits.learned(presence.started, reading.at, busy=busy)
        return replace(reading, presence=replace(presence, started=started))
