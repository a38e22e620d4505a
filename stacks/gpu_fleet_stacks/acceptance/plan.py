"""Plan of an acceptance run: its steps in order, each step's time limit, and the highest cost. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gpu_fleet_stacks.acceptance.errors import AcceptanceError
from gpu_fleet_stacks.acceptance.variant import IDLE_POOL, SPOT_POOL
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, CurrencyError, Money
from gpu_fleet_stacks.cost.estimate import estimate, item_quote
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.quantities import CostKind, Level, Volumes

MINUTE_S = 60
# The whole run, without the tear-down; the sum of its steps' deadlines is longer.
LONGEST_RUN_S = 6 * 3600
# A group with a draining instance takes up to an hour to delete (stacks/gpu_fleet_stacks/aws/fleet.py,
# EMPTYING_S).
TEARDOWN_S = 90 * MINUTE_S
# Through NAT: the trainer's wheels (torch with CUDA, 4 GB) for each instance that starts, and packages.
NAT_GB = 20
BUCKET_GB, LOG_GB = 2, 1
VOLUMES = Volumes(bucket_gb=BUCKET_GB, home_gb=0, log_gb=LOG_GB, nat_gb=NAT_GB)
# Paid by the gigabyte and not by the hour: the whole month's volume is counted for the run.
BY_VOLUME = frozenset({"nat_traffic", "log", "bucket", "bucket_zone_redundant"})


@dataclass(frozen=True)
class AcceptanceStep:
    """One step.

    Attributes:
        name: unique, short.
        proves: what is known once it has passed.
        deadline_s: the seconds after which it fails.
        needs: steps that must have passed before it is tried.
    """

    name: str
    proves: str
    deadline_s: int
    needs: tuple[str, ...] = ()


def _minutes(name: str, minutes: int, proves: str, *needs: str) -> AcceptanceStep:
    return AcceptanceStep(name, proves, minutes * MINUTE_S, needs)


def _of_pool(pool: str, launch_minutes: int) -> tuple[AcceptanceStep, ...]:
    """Return the steps that an instance of the pool must pass before it is used."""
    return (
        _minutes(
            f"{pool}: launch", launch_minutes, "the scaling group starts an instance from its template", "up"
        ),
        _minutes(
            f"{pool}: heartbeat",
            15,
            "its agent was installed from the user data and sends heartbeats",
            f"{pool}: launch",
        ),
        _minutes(f"{pool}: gate", 30, "the boot check found GPUs, disks and driver good", f"{pool}: launch"),
    )


STEPS: tuple[AcceptanceStep, ...] = (
    _minutes("preflight", 5, "the account has room for the stack"),
    _minutes(
        "up", 45, "`gpu-fleet up` deploys the stack in this account, in all passes that it needs", "preflight"
    ),
    _minutes("watchers", 5, "alarms, budget and schedule exist", "up"),
    _minutes(
        "groups", 5, "scaling groups have the requested settings; one made with 0 grows by request", "up"
    ),
    *_of_pool(IDLE_POOL, 15),
    _minutes(
        "keep",
        5,
        "the owner's hold is a tag on the instance, as `gpu-fleet keep` sets it",
        f"{IDLE_POOL}: heartbeat",
    ),
    *_of_pool(SPOT_POOL, 20),
    _minutes(
        "trainer", 60, "the trainer's environment is installed and sees every GPU", f"{SPOT_POOL}: gate"
    ),
    _minutes("train on a GPU", 15, "one rank trains on the GPU to its end", "trainer"),
    _minutes("train two ranks", 40, "two ranks train undisturbed; the reference", "trainer"),
    _minutes("interrupt", 40, "an interrupted run saves a checkpoint after the notice", "train two ranks"),
    _minutes(
        "resume", 120, "the run resumes from the bucket and ends with the reference's result", "interrupt"
    ),
    _minutes("release", 5, "the hold is lifted, and the instance was there until then", "keep"),
    _minutes("mark", 60, "the scheduled sweep finds the idle instance and notifies its owner", "release"),
    _minutes(
        "terminate", 60, "the sweep terminates it after its grace period, with a record in the ledger", "mark"
    ),
    _minutes("meter", 20, "the meter counted the actual instance-hours", "terminate"),
    _minutes("logs", 20, "lines arrive in each log store under the stack's key", "mark"),
)


@dataclass(frozen=True)
class RunCost:
    """Cost of a run, in the currency of the stack's budget.

    Attributes:
        per_hour: of everything that the variant may start.
        once: what is paid by volume and not by time.
        hours: the longest run in whole hours, as NAT gateways and addresses are charged.
        foreign: sentences on prices of another region than the stack's.
    """

    per_hour: Money
    once: Money
    hours: int
    foreign: tuple[str, ...]

    @property
    def worst(self) -> Money:
        """Cost of the longest run, with everything running from its first minute to its last."""
        return self.per_hour * self.hours + self.once


def longest_s(steps: Iterable[AcceptanceStep] = STEPS) -> int:
    """Return the seconds of the longest run, with its tear-down."""
    return min(LONGEST_RUN_S, sum(step.deadline_s for step in steps)) + TEARDOWN_S


def price(variant: Stack, unpriced_per_hour: Decimal | None = None) -> RunCost:
    """Return the run's worst cost.

    Args:
        unpriced_per_hour: the operator's figure for everything without a public price together.

    Raises:
        AcceptanceError: something has no price, and the operator gave no figure: unknown is never free.
    """
    cost = estimate(variant, VOLUMES)
    if cost.unknown and unpriced_per_hour is None:
        names = ", ".join(quote.what for quote in cost.unknown)
        raise AcceptanceError(
            f"no public price is known for {names}, and unknown is never free: name it in budget.assume, or "
            f"give their total with --unpriced-per-hour, in {cost.currency}"
        )
    steady = [line for line in cost.lines if line.what not in BY_VOLUME]
    by_volume = [line for line in cost.lines if line.what in BY_VOLUME]
    extra = Money((unpriced_per_hour or Decimal(0)) if cost.unknown else Decimal(0), cost.currency)
    elsewhere = sorted({f"the price of {quote.what} is of {quote.region}" for quote in cost.elsewhere})
    return RunCost(
        per_hour=cost.hour(Level.MAX, steady).worst + extra,
        once=cost.month(Level.MAX, by_volume).worst,
        hours=math.ceil(longest_s() / 3600),
        foreign=tuple(elsewhere),
    )


def in_currency(usd: Decimal, variant: Stack) -> Money:
    """Convert an amount in dollars into the currency of the stack's budget.

    Raises AcceptanceError if the stack file gives no rate.
    """
    currency, rate = variant.budget.currency, variant.budget.cny_per_usd
    if currency == "USD":
        return Money(usd, currency)
    if rate is None:
        raise AcceptanceError(
            f"--max-usd needs a rate: set budget.cny_per_usd in the stack file, whose budget is in {currency}"
        )
    return Money(usd * rate, currency)


def hold_to_cap(price: RunCost, cap: Money) -> None:
    """Refuse a run whose worst case passes its cap. Raises AcceptanceError."""
    try:
        if price.worst <= cap:
            return
    except CurrencyError as error:
        raise AcceptanceError(str(error)) from error
    raise AcceptanceError(
        f"--max-usd allows {cap}; at worst the run costs {price.worst} ({price.per_hour} an hour for "
        f"{price.hours} hours, and {price.once} by volume). Raise it, or name a cheaper --type"
    )


def instance_hour(variant: Stack, kind: str, *, spot: bool) -> Money | None:
    """Return the most that an hour of an instance with its disk costs; None where the price is unknown.

    The spot discount is not counted: the market may ask the whole price.
    """
    pool = SPOT_POOL if spot else IDLE_POOL
    cost = estimate(variant, VOLUMES)
    lines = [line for line in cost.of_pool(pool) if line.kind in (CostKind.COMPUTE, CostKind.DISKS)]
    known = any(kind in known_pool.types for known_pool in variant.pools if known_pool.name == pool)
    if not known or any(line.unknown for line in lines):
        return None
    return cost.hour(Level.MAX, lines).worst


def shared_hour(variant: Stack) -> Money:
    """Return what an hour of everything but instances costs, as far as prices are known."""
    cost = estimate(variant, VOLUMES)
    return cost.hour(Level.MAX, [line for line in cost.of_pool(None) if line.what not in BY_VOLUME]).worst


def orphan_hour(variant: Stack, priced_as: str, units: Decimal) -> Money | None:
    """Return what an hour of a remaining resource costs; None where the price is unknown."""
    listed = prices.load(variant.cloud)
    if priced_as in listed.quotes:
        quote = item_quote(variant, listed, priced_as)
        if quote.amount is None:
            return None
        each = quote.amount / HOURS_PER_MONTH if "month" in quote.unit else quote.amount
        return Money(each * units, quote.currency)
    return instance_hour(variant, priced_as, spot=False)
