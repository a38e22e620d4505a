"""Result of a sweep, as data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpu_fleet_image.controllers.meter.spending import Spending
from gpu_fleet_image.controllers.sweep.ledger import saved_usd_per_month
from gpu_fleet_image.controllers.sweep.watch import Watch
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.metrics import (
    METRIC_SWEEP_BREAKER,
    METRIC_SWEEP_ENDED,
    METRIC_SWEEP_FAILURES,
    METRIC_SWEEP_FLOODING,
    METRIC_SWEEP_MARKED,
    METRIC_SWEEP_RUNS,
    METRIC_SWEEP_UNKNOWN,
    METRIC_SWEEP_UNREACHED,
    Figure,
)
from gpu_fleet_image.core.model import Decision, Inventory, Plan, Verdict
from gpu_fleet_image.core.times import format_time

USD = "USD"
_NO_FLEET = Inventory(())


@dataclass(frozen=True)
class Ended:
    """Instance that was stopped or terminated.

    Attributes:
        group: the scaling group it was taken out of, if any.
    """

    decision: Decision
    group: str | None
    ledger_key: str


@dataclass
class Done:
    """Actions of a sweep, added one by one.

    Attributes:
        marked: instances marked; their owners were notified.
        failures: what did not work.
        unreached: user, or a team's room -> why no notice reached them: an alarm, and no failure.
        flooding: caller in the records that writes more names than agents do -> how many were read.
    """

    ended: list[Ended] = field(default_factory=list)
    marked: list[Decision] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)
    flooding: dict[str, int] = field(default_factory=dict)

    @property
    def saved_per_month(self) -> Decimal:
        """Return the monthly cost that the terminated instances would have had."""
        return sum((saved_usd_per_month(ended.decision) for ended in self.ended), Decimal(0))


@dataclass(frozen=True)
class Result:
    """A whole sweep.

    Attributes:
        now: when it decided.
        plan: a verdict on each instance.
        read_calls: read-only calls.
        write_calls: calls that may have changed something.
        fleet: all instances that the sweep read, terminated ones included.
        orphans: volumes, addresses and the like that nobody uses, as JSON objects.
        spending: what the stack costs; None where nothing is metered.
        watch: what was seen so far, of a sweep that only watches.
        watched_until: when the sweeps begin to act; None where they do.
    """

    now: datetime
    dry_run: bool
    currency: str
    plan: Plan
    done: Done
    read_calls: int
    write_calls: int
    fleet: Inventory = _NO_FLEET
    orphans: Sequence[dict[str, Any]] = ()
    spending: Spending | None = None
    watch: Watch | None = None
    watched_until: datetime | None = None

    @property
    def failed(self) -> bool:
        """Return whether anything failed or the breaker tripped: the exit code."""
        return bool(self.done.failures) or self.plan.breaker

    def metrics(self) -> list[Figure]:
        """Return the sweep's own metrics."""
        counts = {
            METRIC_SWEEP_RUNS: 1,
            METRIC_SWEEP_FAILURES: len(self.done.failures),
            METRIC_SWEEP_BREAKER: int(self.plan.breaker),
            METRIC_SWEEP_ENDED: len(self.done.ended),
            METRIC_SWEEP_MARKED: len(self.done.marked),
            METRIC_SWEEP_UNKNOWN: len(self.plan.with_verdict(Verdict.KEEP_UNKNOWN)),
            METRIC_SWEEP_UNREACHED: len(self.done.unreached),
            METRIC_SWEEP_FLOODING: len(self.done.flooding),
        }
        return [Figure(name, count) for name, count in counts.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the report; money as decimal text, times in ISO 8601."""
        return {
            "now": format_time(self.now),
            "dry_run": self.dry_run,
            "currency": self.currency,
            "verdicts": [_verdict_json(decision, self.currency) for decision in self.plan.decisions],
            "acted": [self._ended_json(ended) for ended in self.done.ended],
            "marked": [decision.instance.id for decision in self.done.marked],
            "unmarked": list(self.done.unmarked),
            "failed": [
                {"instance_id": failure.instance_id, "step": failure.step, "error": failure.error}
                for failure in self.done.failures
            ],
            "unreached": self.done.unreached,
            "flooding": self.done.flooding,
            "saved_usd_per_month": str(self.done.saved_per_month) if self.currency == USD else None,
            "saved_per_month": str(self.done.saved_per_month),
            "calls": {"read": self.read_calls, "write": self.write_calls},
            "breaker": self.plan.breaker,
            "leftovers": list(self.orphans),
            "spending": self.spending.to_json() if self.spending else None,
            "watched_until": format_time(self.watched_until) if self.watched_until else None,
            "would_end": self.watch.would_end if self.watch else [],
        }

    def _ended_json(self, ended: Ended) -> dict[str, Any]:
        return _verdict_json(ended.decision, self.currency) | {
            "action": ended.decision.verdict.lower(),
            "group": ended.group,
            "ledger_key": ended.ledger_key,
            "saved_per_month": str(saved_usd_per_month(ended.decision)),
        }


def _verdict_json(decision: Decision, currency: str) -> dict[str, Any]:
    """One verdict; ``usd_per_hour`` is null where the price is unknown or in another currency."""
    price = None if decision.hourly_price is None else str(decision.hourly_price)
    return {
        "instance_id": decision.instance.id,
        "instance_type": decision.instance.type,
        "state": decision.instance.state,
        "pool": decision.instance.pool,
        "owner": decision.instance.owner,
        "verdict": str(decision.verdict),
        "reason": decision.reason,
        "alert": decision.alert,
        "idle_s": decision.idle_s,
        "idle_since": format_time(decision.idle_since) if decision.idle_since else None,
        "reap_after": format_time(decision.reap_after) if decision.reap_after else None,
        "price_per_hour": price,
        "usd_per_hour": price if currency == USD else None,
    }
