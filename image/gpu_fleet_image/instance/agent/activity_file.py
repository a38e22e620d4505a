"""``activity.json``: the newest judgement, for users on the instance and for the agent's own restart."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.core.times import format_time, parse_time
from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Judgement

# A shorter restart misses nothing that matters; after a longer one the instance may have been active.
_RESTART_BRIDGED = timedelta(minutes=2)


def write(path: Path, judgement: Judgement, instance_id: str, watch: str) -> None:
    """Replace the file at once, so that nobody reads half of one.

    Args:
        path: of the file; its folder must exist.

    Raises OSError if it cannot be written.
    """
    content = {
        "schema_version": 1,
        "at": format_time(judgement.at),
        "instance_id": instance_id,
        "watch": watch,
        "state": judgement.state,
        "last_active_at": format_time(judgement.memory.last_active_at),
        "seconds_since_activity": round(judgement.seconds_since_activity),
        "active_fraction": round(judgement.active_fraction, 3),
        "gpu_utilisation_percent": judgement.gpu_utilisation_percent,
        "gpu_sm_activity_percent": judgement.gpu_sm_activity_percent,
        "gpu_memory_used_percent": judgement.gpu_memory_used_percent,
        "reasons": judgement.reasons,
        "unknown": judgement.unknown,
        "suspect_hung": judgement.hung,
    }
    replace_text(path, json.dumps(content, indent=2) + "\n")


def read(path: Path) -> dict[str, Any] | None:
    """Return the file's content, or None if there is none or it is damaged."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def restore(path: Path, now: datetime, instance_id: str) -> JudgeMemory:
    """Return the agent's memory at its start.

    Args:
        instance_id: the instance; the file of another instance counts as nothing.

    Returns:
        The last activity in the file if nothing was missed since; else ``now``.
    """
    content = read(path) or {}
    try:
        written_at, last_active_at = parse_time(content["at"]), parse_time(content["last_active_at"])
    except (KeyError, ValueError, AttributeError):
        return JudgeMemory(now)
    fresh = timedelta(0) <= now - written_at <= _RESTART_BRIDGED
    known = fresh and content.get("instance_id") == instance_id and last_active_at <= written_at
    return JudgeMemory(last_active_at if known else now)
