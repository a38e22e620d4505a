"""Aware times as tags and users write them. Pure."""

import re
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.core.errors import ConfigurationError

UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# Beyond it the arithmetic of ``datetime`` overflows; "for ever" is written as the year 9999.
_LAST_YEAR = 9998
_LONGEST_DURATION = timedelta(days=36_500)


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time with its zone; return it as UTC. Raises ValueError."""
    value = datetime.fromisoformat(text.strip())
    if value.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    if not 1 < value.year <= _LAST_YEAR:
        raise ValueError(f"{text!r} lies outside the years 2 to {_LAST_YEAR}")
    return value.astimezone(UTC)


def format_time(value: datetime) -> str:
    """Return a time as ISO 8601 in UTC with whole seconds, as tags hold it."""
    return value.astimezone(UTC).replace(microsecond=0).isoformat()


def parse_duration(text: str) -> timedelta:
    """Parse ``90m``, ``8h`` or ``2d``; return a time span longer than zero.

    Raises ConfigurationError if the text has another form.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mhd])", text.strip())
    if not match or float(match[1]) == 0:
        raise ConfigurationError(f"duration {text!r}; allowed: a number and m, h or d, say 90m, 8h or 2d")
    longest = _LONGEST_DURATION / timedelta(**{UNITS[match[2]]: 1})
    return timedelta(**{UNITS[match[2]]: min(float(match[1]), longest)})


def format_span(value: timedelta) -> str:
    """Return a time span for a user: ``47 s``, ``12 min``, ``5.5 h`` or ``3.2 d``."""
    seconds = abs(value.total_seconds())
    for unit, length_s, up_to in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < up_to:
            number = seconds / length_s
            return f"{number:.1f} {unit}" if unit == "h" else f"{number:.0f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def marking_rule(pool: str, idle_after: timedelta, percent: int, action: str, grace_minutes: int) -> str:
    """Return a pool's rule for marks and actions, for a user."""
    return (
        f"pool {pool}: marked after {format_span(idle_after)} idle with {percent} % of the heartbeats, "
        f"{action} {grace_minutes} min later"
    )
