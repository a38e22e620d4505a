"""The agent's loop and clock: it samples every 5 s, judges every minute, and publishes a heartbeat."""

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gpu_fleet_image.core.metrics import HEARTBEAT
from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Judgement, Limits, Minute, judge
from gpu_fleet_image.instance.agent.sensors.reading import Reading

REAL_PAUSE_S = 0.1  # shortest real time between two looks: /proc counts CPU in ticks of 0.01 s


class Clock:
    """Clock of the agent, which can also wait.

    It reads the wall clock once and counts on monotonically, so that a corrected wall clock can neither make
    an instance idle nor hide that it is.

    Args:
        start: its first time; None for the wall clock's.
        speed: seconds of this clock in one real second.

    Attributes:
        is_real: it started at the wall clock's time and runs at its speed.
    """

    def __init__(self, start: datetime | None = None, speed: float = 1.0) -> None:
        self.speed = speed
        self.is_real = start is None and speed == 1.0
        self.start = start or datetime.now(UTC)
        self._real_start_s = time.monotonic()

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return self.start + timedelta(seconds=(self.real_s() - self._real_start_s) * self.speed)

    def real_s(self) -> float:
        """Return real seconds since some moment; monotonic, at real speed."""
        return time.monotonic()

    def wait_until(self, moment: datetime) -> None:
        """Sleep until a moment of this clock, but never less than ``REAL_PAUSE_S`` of real time."""
        time.sleep(max(REAL_PAUSE_S, (moment - self.now()).total_seconds() / self.speed))


_SAMPLE_EVERY = timedelta(seconds=5)
# A look that is later than this misses too much: a GPU's utilisation is momentary, and the mean of a longer
# period hides a burst of CPU time.
_GAP_BRIDGED = timedelta(minutes=1)

LOG = logging.getLogger(__name__)


class Samples(Protocol):
    """Source of the agent's readings (``sensors.poll.Sensors``)."""

    def sample(self, now: datetime, *, everything: bool) -> Reading:
        """Take one sample."""


class Agent:
    """The loop of one instance.

    Args:
        clock: the agent's time.
        report: takes each minute's judgement.
        limits: returns the thresholds of activity, each minute.
    """

    def __init__(
        self,
        clock: Clock,
        sensors: Samples,
        report: Callable[[Judgement], None],
        memory: JudgeMemory | None = None,
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        self._clock = clock
        self._sensors = sensors
        self._report = report
        self._next_at = next_multiple(clock.start, _SAMPLE_EVERY)
        self._memory = memory or JudgeMemory(clock.start)
        self._limits = limits
        self._samples: list[Reading] = []
        self._state: Minute | None = None

    def run(self, until: datetime | None = None) -> None:
        """Sample, judge and report until a moment, or for ever."""
        self._sensors.sample(self._clock.now(), everything=True)  # rates need a first sample to compare with
        while until is None or self._next_at <= until:
            self._clock.wait_until(self._next_at)
            now = self._clock.now()
            if self._clock.is_real and now - self._next_at > _GAP_BRIDGED:
                self._forget(now)
            self._take(now if until is None else min(now, until))

    def _forget(self, now: datetime) -> None:
        LOG.warning("event=gap seconds=%d", (now - self._next_at).total_seconds())
        self._samples.clear()
        self._memory = JudgeMemory(now)
        self._next_at = next_multiple(now, _SAMPLE_EVERY)

    def _take(self, now: datetime) -> None:
        """Take one sample, which stands for every sample that is due by now."""
        everything = next_multiple(self._next_at, HEARTBEAT) <= now
        sample = self._sensors.sample(now, everything=everything)
        while self._next_at <= now:
            self._samples.append(replace(sample, at=self._next_at))
            if self._next_at == next_multiple(self._next_at, HEARTBEAT):
                self._judge(self._next_at)
            self._next_at += _SAMPLE_EVERY

    def _judge(self, at: datetime) -> None:
        judgement = judge(self._samples, at, self._memory, self._limits())
        self._memory = judgement.memory
        self._samples.clear()
        if judgement.state is not self._state:
            _log_state(judgement)
        self._state = judgement.state
        self._report(judgement)


def next_multiple(moment: datetime, step: timedelta) -> datetime:
    """Return the first moment at or after this one that is a whole number of steps after the epoch."""
    epoch = datetime.fromtimestamp(0, moment.tzinfo)
    return epoch - ((epoch - moment) // step) * step


def _log_state(judgement: Judgement) -> None:
    """Log one line for a minute whose state differs from the one before."""
    why = "; ".join((*judgement.hung, *judgement.unknown, *judgement.reasons))
    level = logging.WARNING if judgement.state in {Minute.UNKNOWN, Minute.SUSPECT_HUNG} else logging.INFO
    LOG.log(level, "event=state state=%s at=%s why=%r", judgement.state, judgement.at.isoformat(), why)


def stop_on_terminate() -> None:
    """Make SIGTERM end the loop as Ctrl-C does, wherever it waits."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
