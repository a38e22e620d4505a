"""A POC as it was asked for: what it takes, and when it is refused."""

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from gpu_fleet_image.console.poc.spending import FIRST_STAGE, NEXT_STAGE, cents, planned_cost, usd_price
from gpu_fleet_image.console.runs.command import Packed, pack
from gpu_fleet_image.console.users.take import refusal
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError

MEASURE = ("python", "-m", "gpu_fleet", "measure")
TITLE = "poc"


@dataclass(frozen=True)
class PocPlan:
    """A POC as it was asked for.

    Attributes:
        seconds: of each figure of storage.
    """

    pool: str
    counts: tuple[int, ...]
    cap: Decimal
    cny_per_usd: float | None
    account: str | None
    seconds: float
    size_mib: int


def confirmed_price(policy: Policy, plan: PocPlan) -> Decimal:
    """Return the price of an hour of an instance, USD, once the plan can be carried out within its cap.

    Raises:
        ConfigurationError: it cannot; names the key, its value and what is allowed.
    """
    if problem := refusal(policy, plan.pool, max(plan.counts)):
        raise ConfigurationError(problem.replace("--count", "--nodes"))
    if policy.has_queue:
        raise ConfigurationError(
            f"stack {policy.stack}: has a queue, whose instances take no other runs; measure a stack "
            "without one"
        )
    if policy.dry_run:
        raise ConfigurationError(
            f"stack {policy.stack}: its sweeps only plan (reaper.dry_run), so nobody would terminate the "
            "instances"
        )
    price = usd_price(policy, plan.pool, plan.cny_per_usd)
    planned = planned_cost(price, plan.counts)
    if planned > plan.cap:
        raise ConfigurationError(
            f"--max-usd {plan.cap}: {','.join(map(str, plan.counts))} instances of {plan.pool} take about "
            f"{planned} USD; allowed: that much or more, or fewer --nodes"
        )
    return price


def outline(plan: PocPlan, price: Decimal, planned: Decimal) -> str:
    """Return the plan, for a user."""
    minutes = (FIRST_STAGE + NEXT_STAGE * (len(plan.counts) - 1)) // timedelta(minutes=1)
    return (
        f"{', '.join(map(str, plan.counts))} instances of {plan.pool}, at most {cents(price)} USD an hour "
        f"each: about {minutes} minutes and {planned} USD of {plan.cap}"
    )


def packed_measurement(plan: PocPlan, *, first: bool) -> Packed:
    """Return the run that a stage submits: the trainer's own `measure`, as any command."""
    words = [*MEASURE, f"--seconds={plan.seconds:g}", f"--size-mib={plan.size_mib}"]
    packed = pack([*words, *(["--in-node"] if first else [])], [], [])
    return replace(packed, title=TITLE)
