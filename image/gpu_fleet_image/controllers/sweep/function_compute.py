"""The sweep as a function of Function Compute 3.0, whose archive's ``index.handler`` is ``handle`` here."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.sweep.handler import run
from gpu_fleet_image.core.reaper_errors import ConfigurationError

# What a timer's event has beside its payload
# (www.alibabacloud.com/help/en/functioncompute/fc/user-guide/time-triggers).
_TIMER = frozenset({"triggerTime", "triggerName", "payload"})


def handle(event: bytes, context: Any) -> str:
    """Sweep once.

    Args:
        context: the function's: request id, and its timeout in seconds
            (www.alibabacloud.com/help/en/functioncompute/fc/user-guide/context-1, Python 3.12).

    Returns:
        The counts of the sweep as JSON.

    Raises:
        ReaperError: nothing could be done at all; the function counts it as an error.
    """
    ends_at = datetime.now(UTC) + timedelta(seconds=context.function.timeout)
    return json.dumps(run(flags(event), ends_at, f"function {context.request_id}"))


def flags(event: bytes) -> object:
    """Return the flags of an event; pure. Raises ConfigurationError if it is no JSON."""
    try:
        content = json.loads(event or b"{}")
        if isinstance(content, dict) and content.keys() <= _TIMER and "payload" in content:
            return json.loads(content["payload"] or "{}")
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"event = {event!r}; allowed: JSON") from error
    return content
