"""The first days of a stack, in which its sweep only reports what it would stop or terminate.

The same decisions are made as later. Only the marks are not written on the instances but kept in the bucket
(``watch.json``, with the moment of the first sweep), and what a sweep would have terminated is reported
instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.marks import is_given_back
from gpu_fleet_image.core.model import (
    ENDS,
    TAG_IDLE_SINCE,
    TAG_REAP_AFTER,
    Decision,
    Inventory,
    Plan,
    Verdict,
)
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time, parse_time

KEY = "watch.json"
HOURS_PER_MONTH = Decimal(730)


@dataclass
class Watch:
    """Record of what sweeps saw since the first one.

    Attributes:
        marks: instance id -> the tags that its mark would be.
        would_end: what would have been terminated, oldest first, as JSON objects with ``instance_id``,
            ``pool``, ``type``, ``owner``, ``action``, ``at``, ``idle_since``, ``price_per_hour``, and
            ``used_again_at`` of one that was.
        version: of the object that this was read from; None where there is none yet.
    """

    began: datetime
    marks: dict[str, dict[str, str]] = field(default_factory=dict)
    would_end: list[dict[str, Any]] = field(default_factory=list)
    summed_up: bool = False
    version: str | None = None

    def until(self, policy: Policy) -> datetime:
        """Return when the sweep begins to act."""
        return self.began + timedelta(days=policy.watch_days)

    def overlaid(self, fleet: Inventory) -> Inventory:
        """Return the fleet with the marks of the watch; given back instances have real ones."""
        own = (TAG_IDLE_SINCE, TAG_REAP_AFTER)
        instances = tuple(
            each
            if is_given_back(each)
            else replace(
                each,
                tags={key: value for key, value in each.tags.items() if key not in own}
                | self.marks.get(each.id, {}),
            )
            for each in fleet.instances
        )
        return replace(fleet, instances=instances)

    def note(self, plan: Plan, now: datetime) -> list[dict[str, Any]]:
        """Note what a plan would do; return the instances that it newly would terminate.

        An instance that its owner gave back is terminated during the watch too.
        """
        open_ids = {entry["instance_id"] for entry in self.would_end if entry["used_again_at"] is None}
        present = {decision.instance.id for decision in plan.decisions}
        self.marks = {key: mark for key, mark in self.marks.items() if key in present}
        new = []
        for decision in plan.decisions:
            key = decision.instance.id
            if is_given_back(decision.instance):
                self.marks.pop(key, None)
            elif decision.verdict is Verdict.MARK and decision.idle_since and decision.reap_after:
                self.marks[key] = {
                    TAG_IDLE_SINCE: format_time(decision.idle_since),
                    TAG_REAP_AFTER: format_time(decision.reap_after),
                }
            elif decision.verdict is Verdict.UNMARK:
                self.marks.pop(key, None)
                self._used_again(key, now)
            elif decision.verdict in ENDS and key not in open_ids:
                new.append(_would_end(decision, now))
        self.would_end += new
        return new

    def _used_again(self, instance_id: str, now: datetime) -> None:
        for entry in self.would_end:
            if entry["instance_id"] == instance_id and entry["used_again_at"] is None:
                entry["used_again_at"] = format_time(now)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the object."""
        return {
            "began": format_time(self.began),
            "marks": self.marks,
            "would_end": self.would_end,
            "summed_up": self.summed_up,
        }


def load(store: Store, now: datetime) -> Watch:
    """Read the watch of earlier sweeps; a new one where there is none. Raises CloudError."""
    stored = store.get(KEY)
    if stored is None:
        return Watch(now)
    try:
        content = stored.content
        return Watch(
            parse_time(content["began"]),
            dict(content["marks"]),
            list(content["would_end"]),
            bool(content["summed_up"]),
            stored.version,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        anew = f"{KEY} cannot be read; to begin the watch anew {store.to_forget(KEY)}"
        raise CloudError(anew, "Malformed") from error


def save(store: Store, watch: Watch) -> None:
    """Write the watch for the next sweep. Raises CloudError."""
    version = store.move_on(KEY, watch.to_json(), watch.version)
    if version is None:
        raise CloudError(f"{KEY} was written by somebody else meanwhile", "Conflict")
    watch.version = version


def watching_policy(policy: Policy) -> Policy:
    """Return the policy for decisions without actions: no acknowledgements, no action limit."""
    pools = {name: replace(pool, require_acknowledgement=False) for name, pool in policy.pools.items()}
    return replace(policy, pools=pools, max_actions=100_000, max_percent=100)


def _would_end(decision: Decision, now: datetime) -> dict[str, Any]:
    return {
        "instance_id": decision.instance.id,
        "pool": decision.instance.pool,
        "type": decision.instance.type,
        "owner": decision.instance.owner or "nobody",
        "action": decision.verdict.lower(),
        "at": format_time(now),
        "idle_since": format_time(decision.idle_since) if decision.idle_since else None,
        "price_per_hour": None if decision.hourly_price is None else str(decision.hourly_price),
        "used_again_at": None,
    }


def worth(would_end: list[dict[str, Any]]) -> Decimal:
    """Return what these would have cost in a month, as far as prices are known."""
    prices = (Decimal(entry["price_per_hour"]) for entry in would_end if entry["price_per_hour"] is not None)
    return sum(prices, Decimal(0)) * HOURS_PER_MONTH


def text_of(would_end: list[dict[str, Any]], until: datetime, currency: str) -> str:
    """Return the message about new entries."""
    return "\n".join((*_lines(would_end, currency), "", *_closing(would_end, until, currency)))


def _lines(would_end: list[dict[str, Any]], currency: str) -> Iterator[str]:
    for entry in would_end:
        price = f", {entry['price_per_hour']} {currency} an hour" if entry["price_per_hour"] else ""
        again = f"; USED AGAIN at {entry['used_again_at']}" if entry["used_again_at"] else ""
        what = (
            f"{entry['instance_id']} ({entry['type']}, pool {entry['pool']}, owner {entry['owner']}{price})"
        )
        yield f"- {what}: {entry['action']} at {entry['at']}, idle since {entry['idle_since']}{again}"


def _closing(would_end: list[dict[str, Any]], until: datetime, currency: str) -> Iterator[str]:
    yield f"Together {worth(would_end)} {currency} a month. Nothing was marked, stopped or terminated."
    yield f"From {format_time(until)} on the sweep acts. To change that: reaper.watch_days or reaper.dry_run."


def summary(watch: Watch, policy: Policy) -> tuple[str, str]:
    """Return (subject, message) of the whole watch."""
    again = sum(entry["used_again_at"] is not None for entry in watch.would_end)
    subject = (
        f"{policy.stack}: watched {counted(policy.watch_days, 'day')}, "
        f"{counted(len(watch.would_end), 'instance')} would have been stopped or terminated, "
        f"{again} of them used again"
    )
    return subject, text_of(watch.would_end, watch.until(policy), policy.currency)
