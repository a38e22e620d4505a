"""Requests of users: accepted or refused, filled, withdrawn or given up. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from gpu_fleet_image.controllers.mover import arrivals, growth_budget, withdrawals
from gpu_fleet_image.controllers.mover.pass_state import PassState, who
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.core.capacity import QUEUED, SHARED, SPARE, TAG_TAKEN, Fate, Request
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_OWNER, Instance

# How long a request without room is tried in every group again.
WAIT = timedelta(minutes=15)


def accept(state: PassState) -> None:
    """Accept or refuse new requests; give them hot spares at once."""
    asked = [request for request in state.view.requests if request.key not in state.requests]
    for request in asked:
        if request.withdraws:
            _withdraw(state, request)
    # a withdrawal may be read before its request
    withdrawn = {request.withdraws for request in state.requests.values()}
    for request in asked:
        if request.withdraws:
            continue
        off = f"withdrawn by {request.owner}" if request.key in withdrawn else ""
        refusal = request.reason or off or _refusal(state, request)
        fate = Fate.REFUSED if refusal else Fate.OPEN
        state.requests[request.key] = replace(request, fate=fate, reason=refusal)
        said = refusal or f"{request.count} of {request.pool} for {request.owner}"
        action = Action.REFUSE if refusal else Action.ACCEPT
        state.note(action, request.pool, said, owner=request.owner)
        if not refusal:
            _fill(state, request)


def _withdraw(state: PassState, withdrawal: Request) -> None:
    """Start no more for a request that its user withdraws; what came stays, as for a failed request."""
    state.requests[withdrawal.key] = replace(withdrawal, fate=Fate.FILLED)
    request = state.requests.get(withdrawal.withdraws)
    if request is None or request.fate is not Fate.OPEN:
        return
    why = f"withdrawn by {request.owner}"
    for coming in [other for other in state.coming if other.purpose == request.key]:
        if coming.started:
            withdrawals.lower(state, coming, f"{state.label(coming.group)}: {why}")
    _end(state, request, why)


def _fill(state: PassState, request: Request) -> None:
    """Give spares to a request, and want the rest."""
    spares = _spares_for(state, request)
    for instance in spares:
        arrivals.give(state, instance, request.key, request.pool, "was spare, now")
    state.want(request.pool, request.key, request.count - len(spares))


def _spares_for(state: PassState, request: Request) -> list[Instance]:
    """Return the spares for a request; where the pool stays together, of a group with room for the rest."""
    spares = state.spares(request.pool)
    if not state.is_together(request.pool):
        return spares[: request.count]
    for site in state.view.sites.get(request.pool, ()):
        own = [instance for instance in spares if instance.id in site.group.members][: request.count]
        if own and state.has_room(site, request.count - len(own)):
            return own
    return []


def _refusal(state: PassState, request: Request) -> str:
    """Return why a request is refused; empty where it is accepted."""
    if frozen := state.view.money.freezes(request.owner):
        return frozen
    capacity = state.capacity(request.pool)
    if capacity is None:
        pools = ", ".join(name for name, pool in state.view.policy.pools.items() if pool.capacity)
        return f"no such pool: {request.pool}; this stack has {pools}"
    if capacity.max_size == 0:
        return f"{request.pool} takes no new instances: its size.max is 0"
    if request.count > capacity.max_size:
        return f"{request.count} are more than size.max of {request.pool}, which is {capacity.max_size}"
    cap, has = state.view.policy.take_max_per_person, _held_by(state, request.owner)
    if has + request.count > cap:
        return (
            f"{request.owner} has {has} and asks for {request.count}; take.max_per_person is {cap}: "
            "gpu-fleet give-back returns one"
        )
    short = request.count - len(state.spares(request.pool))
    return growth_budget.refusal(state, request.pool, max(0, short), request.hours, paid=request.count)


def _held_by(state: PassState, owner: str) -> int:
    """Return the number of instances that a user took, running or on their way."""
    mine = {key for key, request in state.requests.items() if request.owner == owner}
    here = sum(
        state.purpose_of(instance) not in ("", SPARE, SHARED, QUEUED) and _owner(state, instance) == owner
        for instance in state.view.instances
    )
    return here + sum(coming.purpose in mine for coming in state.coming)


def _owner(state: PassState, instance: Instance) -> str:
    given = state.requests.get(state.given.get(instance.id, ""))
    return given.owner if given else instance.owner


def expire(state: PassState) -> None:
    """Give up what found no capacity in time: the load has changed by then, and users look elsewhere."""
    for coming in state.coming[:]:
        if coming.purpose == SHARED and not coming.started and state.now - coming.asked_at >= WAIT:
            state.coming.remove(coming)
            state.note(
                Action.FAIL,
                coming.pool,
                f"no place for {who('', SHARED)} within {WAIT.seconds // 60} minutes",
            )
    for request in [candidate for candidate in state.requests.values() if candidate.fate is Fate.OPEN]:
        missing = [coming for coming in state.coming if coming.purpose == request.key]
        if state.now - request.at < WAIT:
            continue
        for coming in missing:
            if coming.started:
                withdrawals.take_back(
                    state, coming, f"{state.label(coming.group)}: not within {WAIT.seconds // 60} minutes"
                )
        tried = "; ".join(state.requests[request.key].tried) or _blocked(state, request)
        _end(state, request, "no capacity anywhere", f": {tried}")


def _end(state: PassState, request: Request, why: str, detail: str = "") -> None:
    """End a request as failed; keep what came, unless its pool stays together."""
    state.coming = [coming for coming in state.coming if coming.purpose != request.key]
    kept = () if state.is_together(request.pool) else request.instances
    reason = f"{why}{_what_came(request, kept)}{detail}"
    state.requests[request.key] = replace(
        state.requests[request.key], fate=Fate.FAILED, reason=reason, instances=kept
    )
    state.note(Action.FAIL, request.pool, reason, owner=request.owner)


def release(state: PassState) -> None:
    """Release the instances of a cluster that never was complete, until their tags show it."""
    for instance in state.view.instances:
        request = state.requests.get(state.purpose_of(instance))
        if request is None or request.fate is not Fate.FAILED or instance.id in request.instances:
            continue
        state.given[instance.id] = SHARED
        state.note(
            Action.RELEASE,
            request.pool,
            f"{instance.id} is nobody's: the rest of what {request.owner} asked for never started",
            instance=instance.id,
            tags={TAG_TAKEN: SHARED},
            untag=(TAG_OWNER, TAG_KEEP_UNTIL, TAG_KEEP_REASON),
        )


def _blocked(state: PassState, request: Request) -> str:
    pool = request.pool
    if frozen := state.view.money.freezes(request.owner):
        return frozen
    return growth_budget.refusal(state, pool, 0, None) or f"every group of {pool} is full or closed"


def _what_came(request: Request, kept: Sequence[str]) -> str:
    """Return the instances that a failed request started, and who owns them now, in words."""
    if not request.instances:
        return ""
    whose = "yours: gpu-fleet give-back returns it" if kept else "nobody's, since the rest is missing"
    return f" ({len(request.instances)} of {request.count} started, {', '.join(request.instances)}, {whose})"
