"""Idle detection: the judgement of a minute of readings as active, idle, or unknown. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from statistics import fmean
from typing import TypeVar

from gpu_fleet_image.core.metrics import HEARTBEAT
from gpu_fleet_image.core.model import Tie
from gpu_fleet_image.instance.agent.sensors.reading import Gpu, Presence, Rates, Reading

Item = TypeVar("Item")


class Minute(StrEnum):
    """State of a minute."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"
    SUSPECT_HUNG = "suspect-hung"


@dataclass(frozen=True)
class Limits:
    """Thresholds from which a reading counts as activity.

    An idle Linux with its agents (Session Manager, CloudWatch, DCGM) needs 1 to 5 % of a core and writes logs
    at some KiB/s. Every limit lies well above that and well below the smallest job. Shares of different
    limits add up: half of one and half of another count as activity.

    Attributes:
        cpu_cores: mean of a minute; the default is 6 CPU seconds.
        disk_bytes_per_s: mean of a minute.
        network_bytes_per_s: mean of a minute.
        gpu_percent: utilisation in any one sample; NVML gives whole percents, and an idle GPU gives 0.
        power_share: share of the power limit above which a GPU without a reported utilisation is computing.
        hung_percent: utilisation in every sample of a GPU that may hang.
        hung_power_share: share of the power limit below which such a GPU is not computing: a kernel that
            spins on a lost peer draws little more than idle power (github.com/NVIDIA/nccl issue 968).
        hung_after: minimum duration of that state.
    """

    cpu_cores: float = 0.1
    disk_bytes_per_s: float = 100 * 1024
    network_bytes_per_s: float = 64 * 1024
    gpu_percent: float = 1.0
    power_share: float = 0.3
    hung_percent: float = 99.0
    hung_power_share: float = 0.3
    hung_after: timedelta = timedelta(minutes=15)


@dataclass(frozen=True)
class JudgeMemory:
    """State that one judgement hands to the next.

    Attributes:
        last_active_at: end of the last period that was active or not known to be idle.
        hung_since: start of the state in which each GPU looks hung, by its name.
    """

    last_active_at: datetime
    hung_since: tuple[tuple[str, datetime], ...] = ()


@dataclass(frozen=True)
class Judgement:
    """Judgement of one minute.

    Attributes:
        active_fraction: share of its samples with activity, 0 to 1.
        gpu_utilisation_percent: mean of the minute over all GPUs that report it; None if none does. It
            decides nothing: ``active_fraction`` also counts activity without computing.
        gpu_memory_used_percent: of the fullest GPU, maximum of the minute; None without a GPU.
        gpu_sm_activity_percent: mean of the minute over all GPUs that report it, as the utilisation.
        unknown: sensors that failed, with the reason.
        hung: GPUs that look hung.
        users: login names seen in it, with what each did.
    """

    at: datetime
    state: Minute
    active_fraction: float
    gpu_utilisation_percent: float | None
    gpu_memory_used_percent: float | None
    reasons: tuple[str, ...]
    unknown: tuple[str, ...]
    hung: tuple[str, ...]
    memory: JudgeMemory
    users: tuple[tuple[str, Tie], ...] = ()
    gpu_sm_activity_percent: float | None = None

    @property
    def seconds_since_activity(self) -> float:
        """Seconds without activity at the minute's end, watched without a gap."""
        return max(0.0, (self.at - self.memory.last_active_at).total_seconds())


def judge(
    samples: Sequence[Reading], at: datetime, memory: JudgeMemory, limits: Limits | None = None
) -> Judgement:
    """Judge one minute.

    A minute with a failed sensor may have been active, so it moves ``last_active_at`` as activity does. A GPU
    that looks hung is active as well: it is reported, and the instance is never terminated for it.

    Args:
        samples: of the minute; without any it is unknown.
        memory: from the minute before.
    """
    limits = limits or Limits()
    reasons = activity(samples, limits)
    unknown = unknowns(samples, limits)
    hung_since = _hung_since(samples, at, dict(memory.hung_since), limits)
    hung = tuple(name for name, since in hung_since if at - since >= limits.hung_after)
    last_active_at = at if reasons or unknown else max(memory.last_active_at, *_last_uses(samples, at))
    return Judgement(
        at=at,
        state=_state(reasons, unknown, hung),
        active_fraction=_active_fraction(samples, limits),
        gpu_utilisation_percent=_mean_of_gpus(samples, attrgetter("utilisation_percent")),
        gpu_memory_used_percent=_memory_used_percent(samples),
        reasons=reasons,
        unknown=unknown,
        hung=hung,
        memory=JudgeMemory(last_active_at, hung_since),
        users=_unique(user for sample in samples if sample.presence for user in sample.presence.users),
        gpu_sm_activity_percent=_mean_of_gpus(samples, attrgetter("sm_activity_percent")),
    )


def _state(reasons: Sequence[str], unknown: Sequence[str], hung: Sequence[str]) -> Minute:
    if hung:
        return Minute.SUSPECT_HUNG
    if reasons:
        return Minute.ACTIVE
    return Minute.UNKNOWN if unknown else Minute.IDLE


def activity(samples: Sequence[Reading], limits: Limits) -> tuple[str, ...]:
    """Return the activity in some readings, for users; empty without any."""
    return _unique(_reasons(samples, limits))


def unknowns(samples: Sequence[Reading], limits: Limits) -> tuple[str, ...]:
    """Return why some readings are not known to be idle; also if there is no reading at all."""
    return _unique(_unknowns(samples, limits))


def load(rates: Rates, limits: Limits) -> float:
    """Return these rates as a multiple of the threshold of activity; 1 is activity."""
    return (
        rates.cpu_cores / limits.cpu_cores
        + rates.disk_bytes_per_s / limits.disk_bytes_per_s
        + rates.network_bytes_per_s / limits.network_bytes_per_s
    )


def _reasons(samples: Sequence[Reading], limits: Limits) -> Iterator[str]:
    rates = [sample.rates for sample in samples if sample.rates is not None]
    if rates:
        yield from _rate_reasons(_mean(rates), limits)
    for sample in samples:
        for gpu in sample.gpus:
            yield from _gpu_reasons(gpu, limits)
        if sample.presence is not None:
            yield from _presence_reasons(sample.presence)


def _rate_reasons(rates: Rates, limits: Limits) -> Iterator[str]:
    shares = {
        f"cpu: {rates.cpu_cores:.2f} cores": rates.cpu_cores / limits.cpu_cores,
        f"disk: {rates.disk_bytes_per_s / 2**20:.1f} MiB/s": rates.disk_bytes_per_s / limits.disk_bytes_per_s,
        f"network: {rates.network_bytes_per_s / 2**20:.1f} MiB/s": (
            rates.network_bytes_per_s / limits.network_bytes_per_s
        ),
    }
    alone = [text for text, share in shares.items() if share >= 1]
    yield from alone
    if not alone and load(rates, limits) >= 1:
        yield " and ".join(text for text, share in shares.items() if share > 0) + ", together"


def _gpu_reasons(gpu: Gpu, limits: Limits) -> Iterator[str]:
    if gpu.utilisation_percent is None:
        share = _power_share(gpu)
        if share is not None and share >= limits.power_share:
            yield f"gpu {gpu.name}: power"
    elif gpu.utilisation_percent >= limits.gpu_percent:
        yield f"gpu {gpu.name}: utilisation"


def _presence_reasons(presence: Presence) -> Iterator[str]:
    yield from (f"process: {name}" for name in presence.watched)
    for use in presence.processes:
        kind = "session: ssh" if use.kind == "ssh" else "process:"
        if use.gets_on:
            yield f"{kind} {use.who}"
        elif use.kind == "ssh" and use.age_s < HEARTBEAT.total_seconds():
            yield f"{kind} {use.who} logged in"
        elif use.peers:
            yield f"{kind} {use.who} waits for its peers, {use.ranks} ranks in all"
    recent = [session for session in presence.sessions if session.unused_s < HEARTBEAT.total_seconds()]
    yield from (f"session: {session.kind} {session.who}" for session in recent)


def _unknowns(samples: Sequence[Reading], limits: Limits) -> Iterator[str]:
    if not samples:
        yield "agent: no sample in this minute"
    for sample in samples:
        yield from sample.failures
        yield from _unknown_presence(sample.presence or Presence())
        yield from (f"gpu {gpu.name}: {why}" for gpu in sample.gpus if (why := _not_known_idle(gpu, limits)))


def _unknown_presence(presence: Presence) -> Iterator[str]:
    yield from presence.unknown
    lonely = [use for use in presence.processes if use.ranks > 1 and not use.peers and not use.gets_on]
    yield from (
        f"process: {use.who} is one of {use.ranks} ranks, holds a GPU, and is connected to no other"
        for use in lonely
    )


def _not_known_idle(gpu: Gpu, limits: Limits) -> str:
    """Return why a GPU without a reported utilisation is not known to be idle; else an empty text.

    Without a process it is idle. With one, low power proves nothing: a job on one MIG slice draws little.
    """
    if gpu.utilisation_percent is not None or not gpu.pids:
        return ""
    share = _power_share(gpu)
    if share is None:
        return "neither utilisation nor power can be read, and a process is on it"
    return "" if share >= limits.power_share else "utilisation not available (MIG), and a process is on it"


def _power_share(gpu: Gpu) -> float | None:
    if gpu.power_w is None or not gpu.power_limit_w:
        return None
    return gpu.power_w / gpu.power_limit_w


def _hung_since(
    samples: Sequence[Reading], at: datetime, before: dict[str, datetime], limits: Limits
) -> tuple[tuple[str, datetime], ...]:
    by_name: dict[str, list[Gpu]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            by_name.setdefault(gpu.name, []).append(gpu)
    start = samples[0].at if samples else at
    return tuple(
        (name, before.get(name, start))
        for name, gpus in by_name.items()
        if all(_spins(g, limits) for g in gpus)
    )


def _spins(gpu: Gpu, limits: Limits) -> bool:
    share = _power_share(gpu)
    busy = (gpu.utilisation_percent or 0.0) >= limits.hung_percent
    return busy and share is not None and share < limits.hung_power_share


def _last_uses(samples: Sequence[Reading], at: datetime) -> Iterator[datetime]:
    """Yield the last use of each session, and the beginning of time."""
    yield datetime.min.replace(tzinfo=UTC)
    for sample in samples:
        for session in sample.presence.sessions if sample.presence else ():
            yield min(at, sample.at - timedelta(seconds=session.unused_s))


def _active_fraction(samples: Sequence[Reading], limits: Limits) -> float:
    return fmean(bool(activity([sample], limits)) for sample in samples) if samples else 0.0


def _mean_of_gpus(samples: Sequence[Reading], of: Callable[[Gpu], float | None]) -> float | None:
    known = [of(gpu) for sample in samples for gpu in sample.gpus]
    reported = [percent for percent in known if percent is not None]
    return fmean(reported) if reported else None


def _memory_used_percent(samples: Sequence[Reading]) -> float | None:
    gpus = [gpu for sample in samples for gpu in sample.gpus if gpu.memory_total_gib > 0]
    return max((100.0 * gpu.memory_used_gib / gpu.memory_total_gib for gpu in gpus), default=None)


def _mean(rates: Sequence[Rates]) -> Rates:
    return Rates(
        fmean(rate.cpu_cores for rate in rates),
        fmean(rate.disk_bytes_per_s for rate in rates),
        fmean(rate.network_bytes_per_s for rate in rates),
    )


def _unique(many: Iterator[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(many))
