"""Money and size of a pool: whether it may take more instances. Pure."""

from bisect import bisect_left
from datetime import datetime, timedelta
from decimal import Decimal

from gpu_fleet_image.controllers.mover.pass_state import LIVING, OWN, PassState
from gpu_fleet_image.core.capacity import TAG_TAKEN, Fate, Request
from gpu_fleet_image.core.marks import hold_of
from gpu_fleet_image.core.model import Instance


def refusal(state: PassState, pool: str, number: int, hours: float | None, paid: int | None = None) -> str:
    """Return why a pool may not grow, whatever capacity the cloud has; empty where it may.

    Args:
        number: instances that would start; none asks why those whose money is promised do not.
        paid: instances that cost from then on, with spares that only change hands; ``number`` without it.
    """
    capacity, money = state.capacity(pool), state.view.money
    if capacity is None:
        return f"no such pool: {pool}"
    if pool in money.frozen:
        return f"{pool} is frozen, since the budget is spent: gpu-fleet unfreeze lifts it"
    total = state.total(pool)
    if number and total + number > capacity.max_size:
        return f"{pool} has {total} of size.max {capacity.max_size}, and {number} more are wanted"
    number = number if paid is None else paid
    return too_dear(state, pool, number, hours) if number else spent(state)


def spent(state: PassState) -> str:
    """Return why nothing starts, though its money is promised; empty where the budget has some left."""
    left = state.view.money.left
    if left is None:
        return state.view.money.why
    return "" if left > 0 else "nothing of the month's budget is left"


def allowed(state: PassState, pool: str, number: int) -> int:
    """Return how many of these instances a pool may start for itself."""
    return bisect_left(range(number), 1, key=lambda fewer: bool(refusal(state, pool, fewer + 1, None)))


def too_dear(state: PassState, pool: str, number: int, hours: float | None) -> str:
    """Return why the month's budget does not pay for more instances; empty where it does."""
    money = state.view.money
    price = money.prices.get(pool)
    if money.left is None:
        return money.why
    if price is None:
        return f"nobody knows what {pool} costs: budget.assume in the stack file says it"
    needed = price * number * _billed(hours)
    promised = _promised(state)
    left = money.left - promised
    if needed > left:
        beside = f", beside {promised:.2f} that are promised to what was taken or began" if promised else ""
        return (
            f"{needed:.2f} {money.currency} are needed, and {max(left, Decimal(0)):.2f} of the month's "
            f"budget are left{beside}"
        )
    return ""


def _promised(state: PassState) -> Decimal:
    """Return the cost from now on of what was taken: for the hours of the request, or for one hour.

    Money of an instance is promised until its hours or its hold end, or it is gone. Money of an instance
    that is still to come is promised until the request ends.
    """
    here = {instance.id: instance for instance in state.view.instances}
    whole = Decimal(0)
    for request in state.requests.values():
        price = state.view.money.prices.get(request.pool) or Decimal(0)
        ends = [_promised_until(state, request, here[name]) for name in request.instances if name in here]
        if request.fate is Fate.OPEN:
            ends += [_ends(request, request.hours)] * (request.count - len(request.instances))
        left_s = sum(max(0.0, (end - state.now).total_seconds()) for end in ends)
        whole += price * Decimal(str(left_s)) / 3600
    return whole + _begun(state)


def _promised_until(state: PassState, request: Request, instance: Instance) -> datetime:
    """Return when the money of an instance that came is free again, if it lives so long.

    `give-back` and `release` remove its hold. Without the tag of the request the hold shows nothing.
    """
    ends, hold = _ends(request, request.hours), hold_of(instance, state.now)
    if instance.tags.get(TAG_TAKEN) != request.key:
        return ends
    until = state.now if hold is None else hold.until or ends
    return min(ends, max(until, _ends(request, None)))


def _begun(state: PassState) -> Decimal:
    """Return the cost of the rest of the first hour of instances that the pools started for themselves."""
    hour = timedelta(hours=1)
    since = [(coming.pool, state.now) for coming in state.coming if coming.group and coming.purpose in OWN]
    since += [
        (instance.pool, instance.launched_at)
        for instance in state.view.instances
        if instance.state in LIVING and state.purpose_of(instance) in OWN
    ]
    whole = Decimal(0)
    for pool, at in since:
        left = min(hour, max(timedelta(0), at + hour - state.now))
        price = state.view.money.prices.get(pool) or Decimal(0)
        whole += price * Decimal(str(left / hour))
    return whole


def _billed(hours: float | None) -> Decimal:
    """Return the hours that a request is charged with: at least one."""
    return Decimal(str(max(hours or 1, 1)))


def _ends(request: Request, hours: float | None) -> datetime:
    """Return when an instance that was asked for this many hours costs nothing more."""
    return request.at + timedelta(hours=float(_billed(hours)))
