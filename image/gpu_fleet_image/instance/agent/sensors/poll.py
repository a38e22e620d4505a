"""One reading of all sensors, with every sensor that failed named."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeVar

import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.habits import Habits
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.busy_command import BusyCommand
from gpu_fleet_image.instance.agent.sensors.counters import InstanceCounters, OwnUse, RateSensor, TreeCounters
from gpu_fleet_image.instance.agent.sensors.gpu import GpuSensor
from gpu_fleet_image.instance.agent.sensors.jupyter import kernel_sessions
from gpu_fleet_image.instance.agent.sensors.processes import ProcessTable
from gpu_fleet_image.instance.agent.sensors.reading import Gpu, Presence, Rates, Reading
from gpu_fleet_image.instance.agent.sensors.slow_answer import SlowAnswer

Read = TypeVar("Read", covariant=True)  # noqa: PLC0105 - a plain word reads better than Read_co
Value = TypeVar("Value")

LOG = logging.getLogger(__name__)


class Comparing(Protocol[Read]):
    """A sensor that compares with its previous read."""

    def read(self, *, keep: bool = False) -> Read:
        """Read once; with ``keep`` the next read compares with the same earlier read. Raises SensorError."""


class Gpus(Protocol):
    """Sensor of the GPUs."""

    def read(self, *, fresh: bool = False) -> tuple[Gpu, ...]:
        """Read once; with ``fresh`` no process comes from earlier looks. Raises SensorError."""


@dataclass(frozen=True)
class SensorOptions:
    """Settings of the stack beyond the sensors' defaults (``idle`` of the pool).

    Attributes:
        watch: names of programs that count as activity while they run.
        command: reports whether the instance is busy; None for none.
        problem: why the settings are unknown, or an empty text.
    """

    watch: frozenset[str] = frozenset()
    command: BusyCommand | None = None
    problem: str = ""


class Sensors:
    """Reader of all sensors, from any thread.

    Args:
        presence: process table, terminals and notebooks; None if only one process tree is watched.
        limits: returns the thresholds of activity, by which users' habits are recognised.
        real_s: returns real seconds, monotonic.
    """

    def __init__(
        self,
        rates: Comparing[Rates],
        gpus: Gpus,
        presence: Comparing[Presence] | None,
        asked: Callable[[], SensorOptions] = SensorOptions,
        *,
        real_s: Callable[[], float] = time.monotonic,
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        self._rates = rates
        self._gpus = gpus
        self._presence = presence
        self._asked = asked
        self._busy = SlowAnswer[bool](real_s)
        self._habits = Habits(limits)
        self._lock = threading.Lock()
        self._reported_crashes = set[str]()

    def poll(self, now: datetime) -> Reading:
        """Read everything now, without an effect on the next sample."""
        return self._read(now, everything=True, keep=True)

    def sample(self, now: datetime, *, everything: bool) -> Reading:
        """Take one sample of the agent's minute, with mean rates since the previous sample.

        Args:
            everything: also read process table, terminals and notebooks, for which once a minute suffices.
        """
        return self._read(now, everything=everything, keep=False)

    def _read(self, now: datetime, *, everything: bool, keep: bool) -> Reading:
        failures: list[str] = []
        with self._lock:
            looks = everything and self._presence is not None
            # what may take long comes first: the look must see everything that begins before its end
            busy = self._tried("command", self._command, failures) if looks else None
            reading = Reading(
                at=now,
                rates=self._tried("instance", lambda: self._rates.read(keep=keep), failures),
                # a new process is known together with its GPU: a termination may follow, and habits are
                # learned
                gpus=self._tried("gpu", lambda: self._gpus.read(fresh=everything), failures) or (),
            )
            if looks and (presence := self._presence) is not None:
                seen = self._tried("processes", lambda: presence.read(keep=keep), failures)
                reading = replace(reading, presence=_with(seen or Presence(), busy))
            return self._habits.marked(replace(reading, failures=tuple(failures)))

    def _tried(self, name: str, read: Callable[[], Value], failures: list[str]) -> Value | None:
        try:
            return read()
        except SensorError as error:
            failures.append(f"{name}: {error}")
        # Users' data is read here. A mistake in reading it must neither end the agent, which watches over
        # everybody's work, nor make the instance idle. Its text may hold users' secrets, so only the log has
        # it.
        except Exception as error:
            failure = f"{name}: {type(error).__name__}, which the agent did not expect; its log says where"
            if failure not in self._reported_crashes:  # once for each kind, not every five seconds
                LOG.exception("event=sensor-crashed sensor=%s", name)
            self._reported_crashes.add(failure)
            failures.append(failure)
        return None

    def _command(self) -> str:
        """Return the command's name if it reports that the instance is busy."""
        asked = self._asked()
        if asked.problem:
            raise SensorError(asked.problem)
        command = asked.command
        return command.command[0] if command and self._busy.get(command.is_busy, command) else ""


def _with(presence: Presence, busy: str | None) -> Presence:
    return replace(presence, watched=(*presence.watched, f"{busy} reports busy")) if busy else presence


def whole_instance(
    gpus_expected: int,
    own: OwnUse,
    real_s: Callable[[], float],
    asked: Callable[[], SensorOptions] = SensorOptions,
    limits: Callable[[], Limits] = Limits,
) -> Sensors:
    """Return the sensors of the whole instance.

    Args:
        gpus_expected: with fewer the instance is unknown.
        real_s: returns real seconds, monotonic.
        limits: returns the thresholds of activity.
    """
    gpus = GpuSensor(pynvml, gpus_expected, real_s)
    presence = ProcessTable(lambda: gpus.pids, real_s, kernel_sessions, lambda: asked().watch)
    return Sensors(
        RateSensor(InstanceCounters(own), real_s), gpus, presence, asked, real_s=real_s, limits=limits
    )


def watched_tree(tree: TreeCounters, real_s: Callable[[], float]) -> Sensors:
    """Return the sensors of one process tree: its CPU time and data, and its GPUs, if any."""
    return Sensors(RateSensor(tree, real_s), GpuSensor(pynvml, 0, real_s, tree.pids), None)
