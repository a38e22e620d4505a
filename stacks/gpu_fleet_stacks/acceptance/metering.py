"""Cost of an acceptance run so far, from the instances that it saw and the stack's list prices."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from gpu_fleet_image.core.model import Instance
from gpu_fleet_stacks.acceptance import plan
from gpu_fleet_stacks.acceptance.errors import StopError
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.settings import Stack

HOUR_S = 3600


@dataclass
class Metering:
    """The run's own estimate of its cost.

    A begun hour of shared resources counts whole, as NAT gateways are charged.

    Attributes:
        cap: the most that the run may cost.
        once: cost by volume, counted from the first moment.
        unpriced_per_hour: the operator's figure for everything without a price.
        began: start of the deployment; None before, when nothing costs anything.
        seconds: (type, spot) -> instance id -> observed running time.
    """

    variant: Stack
    cap: Money
    once: Money
    unpriced_per_hour: Money
    began: datetime | None = None
    seconds: dict[tuple[str, bool], dict[str, float]] = field(default_factory=dict)
    prices: dict[tuple[str, bool], Money | None] = field(default_factory=dict)

    def observe(self, instances: Sequence[Instance], now: datetime) -> None:
        """Count the time of every running instance up to now; a terminated one keeps its earlier time."""
        for instance in instances:
            if not instance.ended:
                ran = max(0.0, (now - instance.launched_at).total_seconds())
                self.seconds.setdefault((instance.type, instance.spot), {})[instance.id] = ran

    def accrued(self, now: datetime) -> Money:
        """Return the run's cost until now.

        Raises StopError if an instance of unknown price runs: unknown is never free.
        """
        if self.began is None:
            return Money(Decimal(0), self.cap.currency)
        hours = -(-(now - self.began).total_seconds() // HOUR_S)
        shared = (plan.shared_hour(self.variant) + self.unpriced_per_hour) * Decimal(hours)
        total = shared + self.once
        for (kind, spot), ids in self.seconds.items():
            hourly = self._hourly(kind, spot=spot)
            total += hourly * (Decimal(sum(ids.values())) / HOUR_S)
        return total

    def _hourly(self, kind: str, *, spot: bool) -> Money:
        if (kind, spot) not in self.prices:
            self.prices[kind, spot] = plan.instance_hour(self.variant, kind, spot=spot)
        price = self.prices[kind, spot]
        if price is None:
            raise StopError(
                f"an instance of type {kind} runs, and its price is unknown: unknown is never free"
            )
        return price

    def hold(self, now: datetime, reserve: Money) -> None:
        """Stop the run before it exceeds its cap.

        Raises:
            StopError: the accrued cost and the reserve together pass the cap.
        """
        accrued = self.accrued(now)
        if not accrued + reserve <= self.cap:
            raise StopError(
                f"cost cap: {accrued} accrued, {reserve} reserved for the tear-down, {self.cap} allowed"
            )
