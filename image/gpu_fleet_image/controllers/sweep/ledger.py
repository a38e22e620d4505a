"""Ledger of stops and terminations and their savings: one JSON object for each action, never overwritten.

The record is written before the instance is touched, under a key made of the instance and of its mark: no end
without a record, and a sweep that tries again after a failure finds its own record instead of adding one. It
says what is meant. How it ended is said by a second object beside it: ``.ended.json`` once the cloud has
confirmed the end, ``.failed.json`` where it failed. Only a confirmed end saves anything: a sweep that was cut
off in between saves nothing, whatever the instance does afterwards.

A third object below ``started/``, under the record's name, notes that users started a stopped instance again:
the stop saves until then.
"""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpu_fleet_image.controllers.sweep.orphaned_resources import OrphanFinding
from gpu_fleet_image.core.model import TAG_POOL, Decision
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

PREFIX = "ledger"
STARTED_PREFIX = "started"
_ORPHANS_PREFIX = "leftovers"
FAILED, ENDED = ".failed.json", ".ended.json"
HOURS_PER_MONTH = 730  # 365 x 24 / 12, as the clouds' own price pages count


def key_of(decision: Decision) -> str:
    """Return a key as ``ledger/2026/11/21/i-0123-20261121T120000Z-terminate``, without suffix."""
    if decision.reap_after is None:
        raise ValueError(f"{decision.instance.id} was never marked")
    moment = decision.reap_after
    name = f"{decision.instance.id}-{moment:%Y%m%dT%H%M%SZ}-{decision.verdict.lower()}"
    return f"{PREFIX}/{moment:%Y/%m/%d}/{name}"


def saved_usd_per_month(decision: Decision) -> Decimal:
    """Return the monthly saving without the instance, in the policy's currency.

    Nothing where its price is unknown, or where another takes its place.
    """
    if decision.replaced:
        return Decimal(0)
    return (decision.hourly_price or Decimal(0)) * HOURS_PER_MONTH


def record_of(decision: Decision, policy: Policy, group: str | None, now: datetime) -> dict[str, Any]:
    """Return the record of one end, with its evidence."""
    instance = decision.instance
    return {
        "schema_version": 1,
        "at": format_time(now),
        "stack": policy.stack,
        "region": policy.region,
        "action": decision.verdict.lower(),
        "instance_id": instance.id,
        "instance_type": instance.type,
        "pool": instance.pool,
        "owner": instance.owner,
        "group": group,
        "launched_at": format_time(instance.launched_at),
        "reason": decision.reason,
        "idle_s": decision.idle_s,
        "idle_since": format_time(decision.idle_since) if decision.idle_since else None,
        "reap_after": format_time(decision.reap_after) if decision.reap_after else None,
        "currency": policy.currency,
        "price_per_hour": None if decision.hourly_price is None else str(decision.hourly_price),
        "saved_per_month": str(saved_usd_per_month(decision)),
    }


def write(store: Store, key: str, record: Mapping[str, Any]) -> None:
    """Write a record once; one that is there already, of a sweep that failed or was cut off, stays as it is.

    Raises CloudError if it could not be written.
    """
    store.create(f"{key}.json", dict(record))


def write_failure(store: Store, key: str, error: str, now: datetime) -> None:
    """Note beside a record that its end failed. Raises CloudError."""
    store.create(key + FAILED, {"schema_version": 1, "at": format_time(now), "error": error})


def confirm(store: Store, key: str, now: datetime) -> None:
    """Note beside a record that its instance has ended. Raises CloudError."""
    store.create(key + ENDED, {"schema_version": 1, "at": format_time(now)})


def started_key(key: str) -> str:
    """Return the key of the note that an instance was started after a recorded stop, without suffix."""
    return f"{STARTED_PREFIX}{key.removeprefix(PREFIX)}"


def note_start(store: Store, key: str, at: datetime) -> None:
    """Note that the instance of a stop's record was started again, once. Raises CloudError."""
    store.create(f"{started_key(key)}.json", {"schema_version": 1, "at": format_time(at)})


def orphan_key(finding: OrphanFinding) -> str:
    """Return a key as ``leftovers/2026/11/07/vol-0123-20261107T120000Z-remove``, without suffix."""
    moment = finding.unused_since
    if moment is None:
        raise ValueError(f"{finding.orphan.id} was never noted")
    return f"{_ORPHANS_PREFIX}/{moment:%Y/%m/%d}/{finding.orphan.id}-{moment:%Y%m%dT%H%M%SZ}-remove"


def orphan_record(finding: OrphanFinding, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return the record of a removed orphaned resource."""
    return {
        "schema_version": 1,
        "at": format_time(now),
        "stack": policy.stack,
        "region": policy.region,
        "action": "remove",
        "currency": policy.currency,
        "pool": finding.orphan.tags.get(TAG_POOL, ""),
        "saved_per_month": str(finding.monthly_price or Decimal(0)),
        **finding.to_json(),
    }
