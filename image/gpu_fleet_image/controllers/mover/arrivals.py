"""Instances that came: each is given to whoever waits for it. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from gpu_fleet_image.controllers.mover.pass_state import CLOCK, LIVING, PassState, who
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.core.capacity import SHARED, SPARE, TAG_TAKEN, Coming, Fate, Request
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_OWNER, TAG_TAKEN_AT, Instance
from gpu_fleet_image.core.times import format_time


def arrive(state: PassState) -> None:
    """Give each new instance to the request or purpose that waits longest in its group."""
    for coming in sorted(
        (arrival for arrival in state.coming if arrival.started), key=lambda arrival: arrival.asked_at
    ):
        new = next(_new_in(state, coming), None)
        if new is not None:
            state.coming.remove(coming)
            give(state, new, coming.purpose, coming.pool, "came", group=coming.group)


def adopt(state: PassState) -> None:
    """Follow what groups want by themselves: the first ``size.desired``, or a replacement.

    A group retries its own zone without end, and what it wants counts against ``size.max``.
    """
    for pool, _ in state.pools():
        for site in () if pool in state.view.money.frozen else state.view.sites.get(pool, ()):
            group = site.group
            on_way = sum(coming.started and coming.group == group.name for coming in state.coming)
            for _ in range(group.desired - max(group.size, group.min_size) - on_way):
                here = Coming(state.name(pool), pool, SHARED, state.now)
                state.coming.append(
                    replace(here, group=group.name, since=state.now, goal=group.desired, started=True)
                )


def _new_in(state: PassState, coming: Coming) -> Iterator[Instance]:
    """Return the new instances of a group that are for nobody yet, the oldest first."""
    group = next((site.group for site in state.all_sites() if site.group.name == coming.group), None)
    if group is None or coming.since is None:
        return
    for instance in sorted(state.view.instances, key=lambda instance: (instance.launched_at, instance.id)):
        fresh = instance.launched_at >= coming.since - CLOCK and instance.state in LIVING
        if instance.id in group.members and fresh and not state.purpose_of(instance):
            yield instance


def give(state: PassState, instance: Instance, purpose: str, pool: str, why: str, *, group: str = "") -> None:
    """Give an instance to a request, or to a purpose of its pool."""
    was_spare = state.purpose_of(instance) == SPARE
    state.given[instance.id] = purpose
    if purpose in state.requests:
        request = state.requests[purpose]
        came = (*request.instances, instance.id)
        fate = Fate.FILLED if len(came) >= request.count else request.fate
        state.requests[purpose] = replace(request, instances=came, fate=fate)
        _note_gift(state, instance, request, why, group, held=was_spare)
        return
    tags = {TAG_TAKEN: purpose} | (state.spare_hold() if purpose == SPARE else {})
    said = f"{instance.id} {why} for {who('', purpose)}"
    state.note(Action.GIVE, pool, said, group=group, instance=instance.id, tags=tags)


def tag_again(state: PassState) -> None:
    """Decide again on the tags that an earlier pass could not write."""
    for instance in state.view.instances:
        purpose = state.unseen.get(instance.id)
        if purpose is None or state.given[instance.id] != purpose:
            continue
        if purpose in state.requests:
            _note_gift(state, instance, state.requests[purpose], "is")
        else:
            give(state, instance, purpose, instance.pool, "is")


def _note_gift(
    state: PassState, instance: Instance, request: Request, why: str, group: str = "", *, held: bool = False
) -> None:
    owner = request.owner
    # a spare was idle all the time: for its user the idle time begins now
    tags = {TAG_TAKEN: request.key, TAG_OWNER: owner, TAG_TAKEN_AT: format_time(state.now)}
    tags |= _hold(state, request)
    # a spare of this very pass shows no hold yet
    held = held or TAG_KEEP_UNTIL in instance.tags
    untag = (TAG_KEEP_UNTIL, TAG_KEEP_REASON) if held and request.hours is None else ()
    said = f"{instance.id} {why} for {owner}"
    pool = request.pool
    state.note(
        Action.GIVE, pool, said, group=group, instance=instance.id, tags=tags, untag=untag, owner=owner
    )


def _hold(state: PassState, request: Request) -> dict[str, str]:
    if request.hours is None:
        return {}
    until = state.now + min(timedelta(hours=request.hours), timedelta(days=14) - CLOCK)
    return {TAG_KEEP_UNTIL: format_time(until), TAG_KEEP_REASON: f"taken by {request.owner}"}
