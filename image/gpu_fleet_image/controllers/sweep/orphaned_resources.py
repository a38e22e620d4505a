"""Orphaned resources: unattached volumes, unassociated addresses, instances stopped for long. Pure.

AWS does not say since when a volume is unattached; the sweep that first sees it so writes it down on it. Only
time after that counts, and only a snapshot made after it is a copy of what the volume holds. One that was
attached meanwhile, be it between two looks, is unused since then (``tidy.find_orphans``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from gpu_fleet_image.core.marks import hold_of
from gpu_fleet_image.core.model import (
    TAG_IDLE_SINCE,
    TAG_MANAGED,
    TAG_PROTECTED,
    TAG_STACK,
    Instance,
    Kind,
    OrphanedResource,
)
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.times import format_time, parse_time

# A month of one GiB (aws.amazon.com/ebs/pricing) and of one public IPv4 address of 0.005 an hour
# (aws.amazon.com/vpc/pricing), us-east-1, November 2025. Elsewhere the price is unknown here.
PRICED = ("aws", "us-east-1", "USD")
GIB_MONTH = {
    "gp3": Decimal("0.08"),
    "gp2": Decimal("0.10"),
    "io1": Decimal("0.125"),
    "io2": Decimal("0.125"),
    "st1": Decimal("0.045"),
    "sc1": Decimal("0.015"),
    "standard": Decimal("0.05"),
}
_ADDRESS_MONTH = Decimal("3.65")


class Step(StrEnum):
    """Steps with an orphaned resource."""

    NOTE = "note"  # write down since when nobody uses it
    LIST = "list"
    REMOVE = "remove"
    FORGET = "forget"  # it is in use again: take the note away


@dataclass(frozen=True)
class OrphanFinding:
    """Verdict of a sweep on an orphaned resource.

    Attributes:
        reason: why, for a user.
        monthly_price: in the policy's currency; None where unknown.
    """

    orphan: OrphanedResource
    step: Step
    reason: str
    unused_since: datetime | None
    monthly_price: Decimal | None

    def to_json(self) -> dict[str, Any]:
        """Return the finding for the report."""
        return {
            "kind": str(self.orphan.kind),
            "id": self.orphan.id,
            "owner": self.orphan.tags.get("gpu-fleet:owner", ""),
            "step": str(self.step),
            "reason": self.reason,
            "unused_since": format_time(self.unused_since) if self.unused_since else None,
            "size_gib": self.orphan.size_gib,
            "price_per_month": None if self.monthly_price is None else str(self.monthly_price),
        }


def judge(
    orphans: Iterable[OrphanedResource], snapshots: Mapping[str, datetime], policy: Policy, now: datetime
) -> list[OrphanFinding]:
    """Decide on each; those that cost most come first.

    Args:
        snapshots: volume id -> start of its newest complete snapshot.
    """
    findings = [_judge_one(orphan, snapshots.get(orphan.id), policy, now) for orphan in orphans]
    return sorted(findings, key=lambda finding: (-(finding.monthly_price or Decimal(0)), finding.orphan.id))


def _judge_one(
    orphan: OrphanedResource, snapshot: datetime | None, policy: Policy, now: datetime
) -> OrphanFinding:
    since = orphan.unused_since or _noted(orphan)
    price = monthly_price(orphan, policy)

    def finding(step: Step, reason: str) -> OrphanFinding:
        return OrphanFinding(orphan, step, reason, since, price)

    if orphan.tags.get(TAG_MANAGED) != "true" or orphan.tags.get(TAG_STACK) != policy.stack:
        return finding(Step.LIST, "not managed by this stack")
    if orphan.in_use:
        return finding(Step.FORGET, "in use again")
    if since is None or since > now:
        return finding(Step.NOTE, "seen unused for the first time")
    if now - since < timedelta(days=policy.leftovers.older_than_days):
        return finding(Step.LIST, f"unused since {format_time(since)}")
    if kept := _kept(orphan, snapshot, since, policy, now):
        return finding(Step.LIST, f"unused since {format_time(since)}; {kept}")
    return finding(Step.REMOVE, f"unused since {format_time(since)}")


def _kept(
    orphan: OrphanedResource, snapshot: datetime | None, since: datetime, policy: Policy, now: datetime
) -> str:
    """Return why it stays though its time is over; empty where it does not."""
    as_instance = Instance(orphan.id, "", "stopped", since, orphan.tags)
    if TAG_PROTECTED in orphan.tags or hold_of(as_instance, now) is not None:
        return "kept by a tag"
    if orphan.kind is Kind.INSTANCE:
        return "the pool's terminate_stopped_after_days decides"
    if not policy.leftovers.remove:
        return "the policy says to list it only"
    if orphan.kind is Kind.VOLUME and (snapshot is None or snapshot < since):
        return "no snapshot since then"
    return ""


def _noted(orphan: OrphanedResource) -> datetime | None:
    try:
        return parse_time(orphan.tags[TAG_IDLE_SINCE])
    except (KeyError, ValueError):
        return None


def monthly_price(orphan: OrphanedResource, policy: Policy) -> Decimal | None:
    """Return the monthly cost; None for an unknown list price."""
    if (policy.cloud, policy.region, policy.currency) != PRICED:
        return None
    if orphan.kind is Kind.ADDRESS:
        return _ADDRESS_MONTH
    price = GIB_MONTH.get(orphan.volume_type)
    return None if price is None else price * orphan.size_gib
