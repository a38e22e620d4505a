"""Detection of users' new processes that only repeat earlier runs without result.

`watch nvidia-smi` in a forgotten pane, a loop with a `sleep`, a container's health check: each starts the
same command again and again. A new process is a sign of use, for a job's first seconds show nothing else. It
is no sign of use if the looks have shown all of this:

- its last three runs ended: the same command and arguments, of the same user, below the same old parent;
- none of them had a result: each look that saw them read every sensor and showed an idle instance, they held
  no GPU, and took at most a CPU second with all their children, and ten minutes;
- this process holds no GPU either, and is neither older nor busier than twice their maximum.

So a loop that trains counts from the first moment of each run, as does any command in its first, second or
third run. A job behind a command that did nothing three times is noticed as soon as it starts another
program, takes 0.2 CPU seconds more, or lasts longer. The resources that a process uses always count as
activity; only its start is ignored.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpu_fleet_image.instance.agent.idle_detection import Limits, activity, unknowns
from gpu_fleet_image.instance.agent.sensors.reading import Reading, Started

RUNS = 3
_MOST_CPU_S = 1.0
LONGEST_S = 600.0
TIMES_MORE = 2.0  # a run on a busy instance takes longer than on an idle one
MORE_S, _MORE_CPU_S = 2.0, 0.2  # looks are at least a second apart; a tick is 0.01 s
REMEMBERED = timedelta(days=1)
_MOST_COMMANDS = 1000


@dataclass(frozen=True)
class _Command:
    """Identity of a command: runs with the same one are repetitions."""

    command: str
    parent: tuple[int, float]
    name: str
    user: str


@dataclass(frozen=True)
class _Run:
    """State of one run: its process, when it was last seen, and its use until then.

    It worked if it held a GPU, or if anything on the instance was active when it was seen.
    """

    of: _Command
    process: tuple[int, float]
    at: datetime
    age_s: float
    cpu_s: float
    worked: bool

    def after(self, earlier: "_Run") -> "_Run":
        """Return this run with its earlier use: a child that ended took its CPU time along."""
        return replace(self, cpu_s=max(self.cpu_s, earlier.cpu_s), worked=self.worked or earlier.worked)

    @property
    def came_to_nothing(self) -> bool:
        """True if the run showed no result."""
        return not self.worked and self.cpu_s <= _MOST_CPU_S and self.age_s <= LONGEST_S


class Habits:
    """Memory of the runs of users' commands, from all looks.

    Args:
        limits: returns the thresholds of activity, at each look.
    """

    def __init__(self, limits: Callable[[], Limits] = Limits) -> None:
        self._limits = limits
        self._running: dict[tuple[int, float], _Run] = {}
        self._past: dict[_Command, deque[_Run]] = {}

    def marked(self, reading: Reading) -> Reading:
        """Learn from a reading, and return it with each new process marked as in ``learned``."""
        presence = reading.presence
        if presence is None or any(failure.startswith("processes:") for failure in reading.failures):
            return reading  # without a process table no run has ended
        limits = self._limits()
        # an unknown may be activity: a GPU that does not answer does not show its processes either
        busy = bool(unknowns([reading], limits) or activity([reading], limits))
        return replace(
            reading, presence=replace(presence, started=self.learned(presence.started, reading.at, busy=busy))
        )

    def learned(self, started: Iterable[Started], at: datetime, *, busy: bool) -> tuple[Started, ...]:
        """Return the processes of one look, each marked whether it only repeats runs without result.

        Args:
            started: of this look, which is later than all earlier ones.
            busy: something on the instance is active, or may be.
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
        # put back last: the least recently seen comes first
        self._past[run.of] = deque([*others, run], maxlen=RUNS)
        while len(self._past) > _MOST_COMMANDS:
            del self._past[next(iter(self._past))]

    def _is_known(self, run: _Run) -> bool:
        past = [
            earlier
            for earlier in self._past.get(run.of, ())
            # a look may miss a process; it is not an earlier run of itself
            if earlier.process != run.process and run.at - earlier.at <= REMEMBERED
        ]
        if len(past) < RUNS or not all(each.came_to_nothing for each in (*past, run)):
            return False
        age_s, cpu_s = max(earlier.age_s for earlier in past), max(earlier.cpu_s for earlier in past)
        return run.age_s <= TIMES_MORE * age_s + MORE_S and run.cpu_s <= TIMES_MORE * cpu_s + _MORE_CPU_S


def _run(process: Started, at: datetime, *, busy: bool) -> _Run:
    of = _Command(process.command, process.parent, process.name, process.user)
    key = (process.pid, process.began_s)
    return _Run(of, key, at, process.age_s, process.cpu_s, busy or process.on_gpu)
