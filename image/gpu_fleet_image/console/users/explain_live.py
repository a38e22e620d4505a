"""``gpu-fleet explain --live``: each sensor's present reading on this instance, and its judgement."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.times import format_span
from gpu_fleet_image.instance.agent import cloud as agent_cloud
from gpu_fleet_image.instance.agent.command import policy_of, reached, sensors_of
from gpu_fleet_image.instance.agent.idle_detection import Limits, activity, load, unknowns
from gpu_fleet_image.instance.agent.sensors.counters import OwnUse
from gpu_fleet_image.instance.agent.sensors.reading import Gpu, Presence, ProcessUse, Rates, Reading

COMPARED_S = 5.0
STYLES = {"busy": "green", "idle": "yellow", "unknown": "red"}


@dataclass(frozen=True)
class SensorLine:
    """Reading of one sensor.

    Attributes:
        state: ``busy``, ``idle`` or ``unknown``, from this reading alone.
        why: the reason; empty for idle.
    """

    sensor: str
    reading: str
    state: str
    why: str = ""


def poll(wait: Callable[[float], None] = time.sleep) -> tuple[Reading, Limits]:
    """Read this instance's sensors twice, as its agent does: rates are means between two readings.

    Raises:
        ConfigurationError: the caller is not root, which alone sees all processes; or this is no instance.
        ReaperError: as for the agent's start.
    """
    if not paths.instance_file().exists():
        raise ConfigurationError(
            "--live reads the instance that it runs on, and this is no instance of a stack"
        )
    if os.geteuid() != 0:
        raise ConfigurationError("--live reads everybody's processes: sudo gpu-fleet explain --live")
    instance = instance_file.load(paths.instance_file())
    metadata = reached(Metadata(instance.cloud), "this instance")
    policy = policy_of(instance, agent_cloud.connect(instance, metadata), time.monotonic)
    sensors = sensors_of(instance, metadata, None, OwnUse(), real_s=time.monotonic, policy=policy)
    sensors.sample(datetime.now(UTC), everything=True)
    wait(COMPARED_S)
    return sensors.poll(datetime.now(UTC)), policy.limits()


def lines(reading: Reading, limits: Limits) -> Iterator[SensorLine]:
    """Yield every sensor, judged alone by the agent's own rules. Pure."""
    nothing = Reading(reading.at, None)
    if reading.rates is not None:
        yield _judged(
            "cpu, disk, network", _rates(reading.rates, limits), replace(nothing, rates=reading.rates), limits
        )
    for gpu in reading.gpus:
        yield _judged(f"gpu {gpu.name}", _gpu(gpu), replace(nothing, gpus=(gpu,)), limits)
    for name, text, presence in _users(reading.presence or Presence()):
        yield _judged(name, text, replace(nothing, presence=presence), limits)
    for failure in reading.failures:
        yield SensorLine(failure.partition(":")[0], "failed", "unknown", failure.partition(": ")[2])


def _users(presence: Presence) -> Iterator[tuple[str, str, Presence]]:
    for session in presence.sessions:
        used = "in use" if session.unused_s == 0 else f"last used {_ago(session.unused_s)}"
        yield session.kind, f"{session.who}: {used}", Presence(sessions=(session,))
    for use in presence.processes:
        yield use.kind, _use(use), Presence(processes=(use,))
    for name in presence.watched:
        yield "program", name, Presence(watched=(name,))
    for text in presence.unknown:
        yield text.partition(" ")[0], "not known", Presence(unknown=(text,))


def _judged(sensor: str, text: str, reading: Reading, limits: Limits) -> SensorLine:
    if busy := activity([reading], limits):
        return SensorLine(sensor, text, "busy", "; ".join(busy))
    if unknown := unknowns([reading], limits):
        return SensorLine(sensor, text, "unknown", "; ".join(unknown))
    return SensorLine(sensor, text, "idle")


def _rates(rates: Rates, limits: Limits) -> str:
    disk, network = rates.disk_bytes_per_s / 1024, rates.network_bytes_per_s / 1024
    share = 100 * load(rates, limits)
    return f"{rates.cpu_cores:.2f} cores, {disk:.0f} KiB/s, {network:.0f} KiB/s: {share:.0f} % of the limit"


def _gpu(gpu: Gpu) -> str:
    used = "not known" if gpu.utilisation_percent is None else f"{gpu.utilisation_percent:.0f} %"
    power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W"
    return f"utilisation {used}{power}, {gpu.memory_used_gib:.1f} GiB, {len(gpu.pids)} processes"


def _use(use: ProcessUse) -> str:
    peers = f", one of {use.ranks} ranks, {use.peers} connections to others" if use.ranks > 1 else ""
    return f"{use.who}: {100 * use.cpu_cores:.1f} % of a core, {use.bytes_per_s / 1024:.1f} KiB/s{peers}"


def _ago(seconds: float) -> str:
    return f"{format_span(timedelta(seconds=seconds))} ago"


def table(lines: list[SensorLine]) -> Listing:
    """Return a table for a terminal, with the whole instance in the last line."""
    headings = ("sensor", "reading", "counts as", "because of")
    made = Listing(tuple(Column(heading, wraps=True) for heading in headings), box=None)
    states = [each.state for each in lines]
    whole = next((state for state in ("busy", "unknown") if state in states), "idle")
    for each in [*lines, SensorLine("all of them", "", whole)]:
        made.add_row(each.sensor, each.reading, each.state, each.why, style=STYLES[each.state])
    return made
