"""Cost of a POC, planned and so far. Pure, but for the clock that it is given.

Every amount is at most: the list price of each instance, from the request for it until the sweep has
certainly terminated it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

from gpu_fleet_image.console.poc.errors import CapReachedError
from gpu_fleet_image.controllers.mover import mover
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError

# Planned: boot of a baked image and its gate, ten minutes; one instance measures storage and 1 to 8 GPUs.
FIRST_STAGE, NEXT_STAGE = timedelta(minutes=35), timedelta(minutes=20)
# From give-back to termination: five idle minutes, and two sweeps of five to ten minutes.
TEARDOWN = timedelta(minutes=20)
USD, CNY = "USD", "CNY"
CAPACITY_BLOCK = "capacity-block"
CENT = Decimal("0.01")
HOUR = timedelta(hours=1)


def usd_price(policy: Policy, pool: str, cny_per_usd: float | None) -> Decimal:
    """Return the highest price of an hour of one instance with its disks, in USD.

    Raises ConfigurationError if it is unknown.
    """
    price = _price(policy, pool)
    if price is None:
        raise ConfigurationError(
            f"POOL {pool!r}: the price of its instances is not known, so no cap can hold; write "
            "budget.assume into the stack file, and `gpu-fleet up`"
        )
    if policy.currency == USD:
        return price
    if policy.currency != CNY or cny_per_usd is None:
        raise ConfigurationError(
            f"--cny-per-usd is missing: the prices of stack {policy.stack} are in {policy.currency}, "
            "--max-usd is in USD"
        )
    return price / Decimal(str(cny_per_usd))


def _price(policy: Policy, pool: str) -> Decimal | None:
    """Return the price in the policy's currency; of a reserved instance what it costs used or not."""
    if policy.budget and pool in policy.budget.pools and policy.budget.pools[pool].reserved:
        price = policy.budget.reserved_price(pool)
        return None if price is None else price + policy.budget.pools[pool].disk_per_hour
    return mover.prices(policy, datetime.now(UTC)).get(pool)  # the same at any time: nothing is reserved


def price_of_work(policy: Policy, pool: str, price: Decimal) -> Decimal | None:
    """Return the price of an hour by which a dollar buys samples; None for a prepaid capacity block."""
    return None if policy.pools[pool].market == CAPACITY_BLOCK else price


def cents(amount: Decimal) -> Decimal:
    """Return an amount to the cent."""
    return amount.quantize(CENT, ROUND_HALF_UP)


def planned_cost(price: Decimal, counts: Sequence[int]) -> Decimal:
    """Return the cost of a POC that goes as planned; the instances of a count serve the next one too."""
    stages = [NEXT_STAGE * nodes for nodes in counts[1:]]
    held = sum(stages, FIRST_STAGE * counts[0]) + TEARDOWN * max(counts)
    return cents(price * _hours(held))


def _hours(span: timedelta) -> Decimal:
    return Decimal(span / timedelta(microseconds=1)) / Decimal(HOUR / timedelta(microseconds=1))


@dataclass
class CostMeter:
    """Meter of the instances that a POC holds.

    Attributes:
        price: of an hour of one instance, USD.
        cap: most that the POC may cost, USD.
    """

    price: Decimal
    cap: Decimal
    now: Callable[[], datetime]
    _held: dict[str, tuple[datetime, int]] = field(default_factory=dict)

    def begin(self, request: str, count: int) -> None:
        """Count instances from now on."""
        self._held[request] = self.now(), count

    def cost(self) -> Decimal:
        """Return the cost if all instances were given back now."""
        now = self.now()
        spans = [(now - since + TEARDOWN) * count for since, count in self._held.values()]
        return self.price * _hours(sum(spans, timedelta(0)))

    def check(self) -> None:
        """Raise CapReachedError once the cost is as high as the cap."""
        if (cost := self.cost()) >= self.cap:
            raise CapReachedError(
                f"--max-usd {self.cap}: {cents(cost)} USD are reached, with the "
                f"{TEARDOWN // timedelta(minutes=1)} minutes until the instances are gone"
            )

    def check_room(self, count: int, span: timedelta) -> None:
        """Raise CapReachedError if the next stage would pass the cap."""
        held = sum(number for _, number in self._held.values()) + count
        more = self.price * _hours(span * held + TEARDOWN * count)
        if self.cost() + more > self.cap:
            raise CapReachedError(
                f"--max-usd {self.cap}: {cents(self.cost())} USD are reached, and the next stage takes about "
                f"{cents(more)}"
            )
