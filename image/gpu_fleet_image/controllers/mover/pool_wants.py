"""Wants of the pools themselves: hot spares, load and the queue. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpu_fleet_image.controllers.mover import growth_budget
from gpu_fleet_image.controllers.mover.pass_state import LIVING, SPARE_RENEWED, PassState
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.core.capacity import QUEUED, SHARED, SPARE, TAG_TAKEN, Coming
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, Instance
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.core.times import parse_time

_NO_NODES = "no nodes of the queue: "
# So many that were started for jobs and never joined: more would not join either.
_IN_VAIN = 3
_WHILE = f"they count against size.max, and beside {_IN_VAIN} that were started for jobs nothing starts"
_LOAD_COOLDOWN = timedelta(minutes=5)


def keep_spares(state: PassState) -> None:
    """Keep as many hot spares as each pool sets; release those beyond.

    What waits for a group is wanted anew in each pass: another pool may have got the money.
    """
    for pool, capacity in state.pools():
        waits = state.take_waiting(pool, SPARE)
        on_way = sum(arrival.pool == pool and arrival.purpose == SPARE for arrival in state.coming)
        here = [
            instance
            for instance in state.view.instances
            if instance.pool == pool and instance.state in LIVING and state.purpose_of(instance) == SPARE
        ]
        surplus = len(here) + on_way - capacity.spare
        for instance in here[: max(0, surplus)]:
            state.given[instance.id] = SHARED
            state.note(
                Action.RELEASE,
                pool,
                f"{instance.id} is no spare any more: pool.spare is {capacity.spare}",
                instance=instance.id,
                tags={TAG_TAKEN: SHARED},
                untag=(TAG_KEEP_UNTIL, TAG_KEEP_REASON),
            )
        _renew(
            state,
            [
                instance
                for instance in here
                if state.purpose_of(instance) == SPARE and instance.id not in state.given
            ],
        )
        _want(state, pool, SPARE, -surplus, growth_budget.allowed(state, pool, -surplus), waits=waits)


def _renew(state: PassState, spares: Iterable[Instance]) -> None:
    for instance in spares:
        if not _held_beyond(instance, state.now + SPARE_RENEWED):
            state.note(
                Action.KEEP,
                instance.pool,
                f"{instance.id} stays a spare",
                instance=instance.id,
                tags=state.spare_hold(),
            )


def follow_load(state: PassState) -> None:
    """Want one instance more where the load of a pool is high, and none within the cooldown."""
    for pool in sorted(state.view.firing):
        last = state.loads.get(pool)
        on_way = any(coming.pool == pool and coming.purpose == SHARED for coming in state.coming)
        if on_way or (last is not None and state.now - last < _LOAD_COOLDOWN):
            continue
        if _want(state, pool, SHARED, 1, growth_budget.allowed(state, pool, 1)):
            state.loads[pool] = state.now


def follow_queue(state: PassState) -> None:
    """Want as many instances as waiting jobs need and the budget pays for: of a job all or none.

    What waits for a group is wanted anew in each pass: its job may be gone, or the money. Instances that are
    no nodes of the queue run no job, and take their places of ``size.max``.
    """
    needs = state.view.queue
    for pool, capacity in state.pools() if needs is not None else ():
        need = (needs or {}).get(pool, PoolNeed(0, ()))
        waits = state.take_waiting(pool, QUEUED)
        serving = state.serving(pool, need.nodes)
        useless = state.useless(pool, need.nodes)
        places = capacity.max_size - max(0, state.total(pool) - serving)
        in_vain = [
            instance
            for instance in useless
            if instance.state in LIVING and state.purpose_of(instance) == QUEUED
        ]
        if len(in_vain) >= _IN_VAIN:
            places = min(places, serving)
        missing = need.wanted(places) - serving
        most = growth_budget.allowed(state, pool, missing)
        whole = min(most, need.wanted(serving + most) - serving)
        _want(state, pool, QUEUED, missing, max(0, whole), waits=waits)
        _say_useless(state, pool, useless, need.wanted(capacity.max_size) - need.wanted(places))


def _say_useless(state: PassState, pool: str, useless: Iterable[Instance], number: int) -> None:
    """Say once why jobs get no instance, if those that run no jobs leave too few places."""
    if not state.held.get(pool, _NO_NODES).startswith(_NO_NODES):
        return
    said = state.held.pop(pool, "")
    if names := ", ".join(sorted(instance.id for instance in useless if number)):
        state.held[pool] = f"{_NO_NODES}{names}; {_WHILE}"
        if not said:
            state.note(Action.HOLD, pool, f"{number} more ({QUEUED}): {state.held[pool]}")


def _want(
    state: PassState, pool: str, purpose: str, number: int, allowed: int, *, waits: Sequence[Coming] = ()
) -> bool:
    """Want instances for the pool itself, as many as are allowed; that some are not is noted once.

    Args:
        waits: of earlier passes, without a group; the first of them are still wanted.
    """
    if allowed < number and pool not in state.held:
        why = state.held[pool] = growth_budget.refusal(state, pool, number, None)
        start = f"; {allowed} of them may start" if allowed else ""
        state.note(Action.HOLD, pool, f"{number} more ({purpose}): {why}{start}")
    state.coming += waits[:allowed]
    new = allowed - len(waits)
    if new <= 0:
        return False
    if allowed == number:
        state.held.pop(pool, None)
    state.want(pool, purpose, new)
    return True


def _held_beyond(instance: Instance, moment: datetime) -> bool:
    try:
        return parse_time(instance.tags.get(TAG_KEEP_UNTIL, "")) > moment
    except ValueError:
        return False
