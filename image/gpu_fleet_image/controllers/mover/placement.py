"""Choice of the group in which the next instance of each pool starts. Pure.

In: a ``PoolView`` (groups, instances, money, requests of users) and the ``MoverState`` of the pass before.
Out: the state after, and ``PlacementDecision``s in the order in which they are carried out.

A pool's groups are in its order of preference, zone after zone; the order of types is a group's own. An
instance starts in the first group that is open, has room below its limit, and had no failed launch lately.
Where a launch fails, or nothing starts for some minutes, the next group is tried, until the request expires.

``Action.START`` alone raises desired capacity. It never exceeds the pool's ``size.max``, and it does not rise
while the pool is frozen or the budget does not pay for it. ``Action.WITHDRAW`` withdraws what never started.
"""

from collections import Counter
from dataclasses import replace

from gpu_fleet_image.controllers.mover import arrivals, growth_budget, pool_wants, requests, withdrawals
from gpu_fleet_image.controllers.mover.pass_state import LIVING, OWN, PassState, who
from gpu_fleet_image.controllers.mover.pool_view import Action, PlacementDecision, PoolView, Site
from gpu_fleet_image.core.capacity import QUEUED, SHARED, Coming, MoverState


def decide(view: PoolView, before: MoverState) -> tuple[MoverState, list[PlacementDecision]]:
    """Decide on all pools; return the state after and the decisions in order."""
    state = _wanted(view, before)
    place(state)
    return state.after(), state.decisions


def totals(view: PoolView, before: MoverState) -> dict[str, int]:
    """Return pool -> instances that it has or is about to have once ``decide`` has decided.

    Only pools with groups are there; booting instances count.
    """
    state = _wanted(view, before)
    return {pool: state.total(pool) for pool, sites in view.sites.items() if sites}


def _wanted(view: PoolView, before: MoverState) -> PassState:
    """Return the state of a pass that knows what is wanted, and not yet where it starts."""
    state = PassState(view, before)
    arrivals.arrive(state)
    arrivals.adopt(state)
    withdrawals.withdraw(state)
    requests.accept(state)
    pool_wants.keep_spares(state)
    pool_wants.follow_load(state)
    pool_wants.follow_queue(state)
    requests.expire(state)
    requests.release(state)
    arrivals.tag_again(state)
    return state


def wants_money(view: PoolView, before: MoverState) -> bool:
    """Return whether a pass may start anything, so that it must know what is spent."""
    waiting = any(not coming.group for coming in before.coming)
    spares = any(pool.capacity and pool.capacity.spare for pool in view.policy.pools.values())
    troubled = any(coming.group for coming in before.coming)
    jobs = any(need.jobs for need in (view.queue or {}).values())
    return bool(waiting or troubled or spares or view.requests or view.firing or jobs)


def place(state: PassState) -> None:
    """Find the first group with room for each want, also for those that an earlier pass could not start."""
    waiting = [coming for coming in state.coming if not coming.started]
    together = dict[tuple[str, str], str]()
    missing = Counter(coming.purpose for coming in waiting if coming.purpose in state.requests)
    for coming in sorted(waiting, key=lambda arrival: arrival.asked_at):
        capacity = state.capacity(coming.pool)
        if capacity is None:
            state.coming.remove(coming)
            continue
        cluster = (coming.pool, coming.purpose) if capacity.together else None
        number = max(1, missing[coming.purpose]) if cluster else 1
        site = _place_for(state, coming, together.get(cluster, "") if cluster else "", number)
        missing[coming.purpose] -= 1
        if site is None:
            if coming.group:
                state.update(coming, coming.back())
            continue
        if cluster:
            together[cluster] = site.group.name
        _start(state, coming, site)


def _place_for(state: PassState, coming: Coming, only: str, number: int) -> Site | None:
    """Return the first group with room for an instance and those that must start beside it."""
    if _limits(state, coming):
        return None
    companion = _companions_group(state, coming)
    for site in state.view.sites.get(coming.pool, ()):
        name = site.group.name
        if companion not in ("", name) or only not in ("", name):
            continue
        if state.has_room(site, number):
            return site
    return None


def _limits(state: PassState, coming: Coming) -> str:
    """Return a limit that forbids a start by now; empty for none. Wants count in the total already."""
    if coming.pool in state.view.money.frozen:
        return "frozen"
    capacity = state.capacity(coming.pool)
    if capacity is None or state.standing(coming.pool) + 1 > capacity.max_size:
        return "full"
    request = state.requests.get(coming.purpose)
    if request is not None and state.view.money.frozen_by(request.owner):
        return "frozen"
    # money that a request was promised is its own; a pool's wants need new money
    if coming.purpose in state.requests:
        return growth_budget.spent(state)
    # a job gets all its instances or none, whatever other pools started in this pass
    number = len(state.waiting(coming.pool, QUEUED)) if coming.purpose == QUEUED else 1
    return growth_budget.too_dear(state, coming.pool, max(1, number), None)


def _companions_group(state: PassState, coming: Coming) -> str:
    """Return the group of the instances that it must start beside; empty for none."""
    if not state.is_together(coming.pool):
        return ""
    if coming.purpose in OWN:
        return _own_group(state, coming)
    request = state.requests.get(coming.purpose)
    if request is None:
        return ""
    for other in state.coming:
        if other.purpose == coming.purpose and other.started:
            return other.group
    here = {name for name, purpose in state.given.items() if purpose == coming.purpose}
    came = here | set(request.instances)
    sites = state.view.sites.get(coming.pool, ())
    return next((site.group.name for site in sites if came & site.group.members.keys()), "")


def _own_group(state: PassState, coming: Coming) -> str:
    """Return the group with most of what the pool started for itself; empty where there is none yet.

    A group replaces what the cloud interrupted of a request. Alone in another zone the replacement would be
    of no use.
    """
    living = [
        instance
        for instance in state.view.instances
        if instance.pool == coming.pool and instance.state in LIVING
    ]
    own = {instance.id for instance in living if state.purpose_of(instance) in (*OWN, "")}
    on_way = Counter(other.group for other in state.coming if other.id != coming.id and other.purpose in OWN)
    everything = {instance.id for instance in living} if coming.purpose == SHARED else own
    for standing in (own, everything):
        stand = {
            site.group.name: len(standing & site.group.members.keys()) + on_way[site.group.name]
            for site in state.view.sites.get(coming.pool, ())
        }
        if any(stand.values()):
            return max(stand, key=lambda name: stand[name])
    return ""


def _start(state: PassState, coming: Coming, site: Site) -> None:
    """Raise a group by one; several starts for one owner in one group are reported as one decision."""
    name = site.group.name
    desired = state.desired(name)
    state.rises[name] += 1
    placed = replace(coming, group=name, since=state.now, goal=desired + 1)
    state.update(coming, placed)
    owner = state.requests[coming.purpose].owner if coming.purpose in state.requests else ""
    said = f"in {site.label} for {who(owner, coming.purpose)}"
    for number, decision in enumerate(state.decisions):
        if (decision.action, decision.group, decision.reason) == (Action.START, name, said):
            state.decisions[number] = replace(decision, coming=(*decision.coming, coming.id))
            return
    state.note(Action.START, coming.pool, said, group=name, coming=(coming.id,), desired=desired, owner=owner)
