"""Samples and judgements for tests, idle unless set otherwise."""

from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Judgement, Minute
from gpu_fleet_image.instance.agent.sensors.reading import Gpu, Presence, ProcessUse, Rates, Reading

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOUR_AGO = NOON - timedelta(hours=1)


def reads(value=None, error=None):
    """Return a sensor that reads a value, or fails."""
    return Mock(read=Mock(return_value=value, side_effect=error))


def sample(rates=Rates(), gpus=(), presence=None, failures=(), at=NOON):  # noqa: B008 - frozen
    return Reading(at, rates, tuple(gpus), presence, tuple(failures))


def minute(*samples):
    """Return twelve samples, 5 s apart, the last at noon: quiet ones, and then the given ones."""
    padded = [sample()] * (12 - len(samples)) + list(samples)
    return [
        Reading(NOON - timedelta(seconds=5 * (11 - index)), s.rates, s.gpus, s.presence, s.failures)
        for index, s in enumerate(padded)
    ]


def gpu(name="0", *, utilisation=0.0, power_w=60.0, limit_w=700.0, pids=(), used_gib=0.5, total_gib=80.0):
    return Gpu(name, utilisation, used_gib, total_gib, power_w, limit_w, tuple(pids))


def presence(sessions=(), watched=(), processes=(), unknown=()):
    return Presence(tuple(sessions), tuple(watched), tuple(processes), unknown=tuple(unknown))


def use(kind="gpu", who="python (8, eve)", age_s=3600.0, **values):
    return ProcessUse(kind, who, age_s, **values)


def judgement(state=Minute.IDLE, idle_s=600.0, **values):
    values_at_rest = {
        "active_fraction": 0.0,
        "gpu_utilisation_percent": None,
        "gpu_memory_used_percent": None,
        "reasons": (),
        "unknown": (),
        "hung": (),
        "memory": JudgeMemory(NOON - timedelta(seconds=idle_s)),
    }
    return Judgement(NOON, state, **(values_at_rest | values))
