"""Capacity that a stack's queue requests of the mover: ``capacity/queue.json``, written by its controller.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time, parse_time

QUEUE = keys.QUEUE_NEED
SCHEMA = 1
# A controller writes four times a minute; an older request may be obsolete.
FRESH = timedelta(minutes=5)
# A replaced controller is back before that.
SILENT_AFTER = timedelta(minutes=15)
# A controller that starts with its stack waits for what takes longest there: shared scratch.
FIRST_AFTER = timedelta(minutes=45)
LONGEST = 1 << 20  # bytes of the object
_MOST_JOBS = 1000
_LONGEST_WHY = 300


@dataclass(frozen=True)
class PoolNeed:
    """Demand for instances of one pool.

    Attributes:
        standing: instances of the queue that are busy, or take no jobs.
        jobs: number of whole instances of each waiting job, in queue order.
        nodes: all instances of the queue; None if nobody said.
    """

    standing: int
    jobs: tuple[int, ...]
    nodes: frozenset[str] | None = None

    def wanted(self, most: int) -> int:
        """Return the desired size of the pool, up to ``most``: a job gets all its instances or none."""
        total = self.standing
        for number in self.jobs:
            if total + number <= most:
                total += number
        return total


def to_json(
    needs: Mapping[str, PoolNeed], now: datetime, unread: Sequence[str] = (), refused: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the demand as the bucket holds it.

    Args:
        unread: why jobs could not be read, one text each.
        refused: Slurm's answers to the changes of accounts that it refused.
    """
    pools = {
        pool: {
            "standing": need.standing,
            "jobs": list(need.jobs[:_MOST_JOBS]),
            "nodes": None if need.nodes is None else sorted(need.nodes),
        }
        for pool, need in sorted(needs.items())
    }
    said: dict[str, Any] = {}
    for name, texts in (("unread", unread), ("refused", refused)):
        if texts:
            said |= {name: len(texts), f"{name}_why": texts[0][:_LONGEST_WHY]}
    return {"schema_version": SCHEMA, "at": format_time(now), "pools": pools, **said}


def needs_of(raw: Mapping[str, Any], age: timedelta) -> dict[str, PoolNeed]:
    """Parse what ``to_json`` wrote; empty if it is old, by the bucket's clock.

    Raises CloudError if it is damaged.
    """
    try:
        if wrong := [name for name in ("unread", "refused") if type(raw.get(name, 0)) is not int]:
            raise ValueError(f"{wrong[0]} is no whole number")
        parse_time(raw["at"])  # for trouble_of
        if age > FRESH:
            return {}
        return {str(pool): _need_of(need) for pool, need in raw["pools"].items()}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CloudError(f"{QUEUE}: {error!r}", "Malformed") from error


def _need_of(raw: Mapping[str, Any]) -> PoolNeed:
    jobs, nodes = tuple(max(0, int(job)) for job in raw["jobs"]), raw.get("nodes")
    if not isinstance(nodes, list | None):
        raise TypeError("nodes is no list")
    return PoolNeed(int(raw["standing"]), jobs, None if nodes is None else frozenset(map(str, nodes)))


def trouble_of(raw: Mapping[str, Any], now: datetime, age: timedelta) -> str:
    """Return a problem of the queue's controller for the operator; empty for none.

    ``needs_of`` has read it.
    """
    written = now - age
    if age > SILENT_AFTER:
        since = format_time(written)
        return f"the queue's controller has not reported since {since}: no job gets an instance"
    ahead = parse_time(raw["at"]) - written
    if abs(ahead) > FRESH:
        minutes, way = abs(ahead) // timedelta(minutes=1), "ahead" if ahead > timedelta() else "behind"
        return f"the clock of the queue's controller is {counted(minutes, 'minute')} {way}"
    if number := raw.get("unread"):
        why = raw.get("unread_why")
        unread = f"{counted(number, 'job')}, and requests no instances for {'it' if number == 1 else 'them'}"
        return f"the queue's controller cannot read {unread}: {why}"
    if number := raw.get("refused"):
        return f"Slurm refused {counted(number, 'change')} of users or teams: {raw.get('refused_why')}"
    return ""
