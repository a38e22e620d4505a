"""One look at everything, with every sensor that failed named."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar

import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from image.reaper.agent.gpu import GpuSensor
from image.reaper.agent.sample import Gpu, People, Rates, Sample
from image.reaper.agent.sensors.machine import MachineCounters, RateSensor
from image.reaper.agent.sensors.own_use import OwnUse
from image.reaper.agent.sensors.process_table import ProcessTable
from image.reaper.agent.sensors.process_tree import TreeCounters
from image.reaper.errors import SensorError

Reading = TypeVar("Reading", covariant=True)  # noqa: PLC0105 - a plain word reads better than Reading_co
Value = TypeVar("Value")


class Sensor(Protocol[Reading]):
    """Something that can be read and may fail."""

    def read(self) -> Reading:
        """Look once.

        Raises:
            SensorError: naming what could not be read.
        """


class Look:
    """Reads the sensors.

    Args:
        rates: CPU, disk and network.
        gpus: the GPUs.
        people: the process table; None where only one process tree is watched.
    """

    def __init__(
        self, rates: Sensor[Rates], gpus: Sensor[tuple[Gpu, ...]], people: Sensor[People] | None
    ) -> None:
        self._rates = rates
        self._gpus = gpus
        self._people = people

    def __call__(self, at: datetime, *, with_people: bool) -> Sample:
        """Look once.

        Args:
            at: the agent's time.
            with_people: read the process table as well: it is worth one look a minute, not twelve.
        """
        failures: list[str] = []
        return Sample(
            at=at,
            rates=_read("machine", self._rates.read, failures),
            gpus=_read("gpu", self._gpus.read, failures) or (),
            people=_read("processes", self._people.read, failures) if self._people and with_people else None,
            failures=tuple(failures),
        )


def _read(name: str, read: Callable[[], Value], failures: list[str]) -> Value | None:
    try:
        return read()
    except SensorError as error:
        failures.append(f"{name}: {error}")
        return None


def whole_machine(gpus_expected: int, own: OwnUse, real_s: Callable[[], float]) -> Look:
    """Sensors for everything on this machine.

    Args:
        gpus_expected: fewer make the machine unknown.
        own: what the agent uses.
        real_s: real seconds, monotonic.
    """
    gpus = GpuSensor(pynvml, gpus_expected, real_s)
    return Look(RateSensor(MachineCounters(own), real_s), gpus, ProcessTable(lambda: gpus.pids, real_s))


def watched_tree(tree: TreeCounters, real_s: Callable[[], float]) -> Look:
    """Sensors for one process tree: its CPU time and data, and the GPUs it is on where there are any."""
    return Look(RateSensor(tree, real_s), GpuSensor(pynvml, 0, real_s, tree.pids), None)
