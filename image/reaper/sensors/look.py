"""One look at everything, with every sensor that failed named."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar

from image.reaper.errors import SensorError
from image.reaper.sample import Gpu, People, Rates, Sample

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
