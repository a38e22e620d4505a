"""Withdrawal of what a group cannot start, so that it may start elsewhere. Pure."""

from dataclasses import replace
from datetime import timedelta

from gpu_fleet_image.controllers.mover.pass_state import PassState
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.core.capacity import Coming, Trouble

# An Auto Scaling group says within a minute that there is no room; one that says nothing has some minutes.
SILENT = timedelta(minutes=5)


def withdraw(state: PassState) -> None:
    """Withdraw from groups what failed to start, or has not started for minutes."""
    for coming in [other for other in state.coming if other.started and other.since is not None]:
        why = _failure_of(state, coming)
        if why:
            state.trouble[coming.group] = Trouble(state.now, why)
            take_back(state, coming, f"{state.label(coming.group)}: {why}")


def _failure_of(state: PassState, coming: Coming) -> str:
    """Return why a group does not start an instance; empty while it may."""
    site = state.site(coming.group)
    since = coming.since or state.now
    if site is None:
        return "the group is gone"
    if site.failed is not None and site.failed.at >= since - timedelta(seconds=5):
        return site.failed.why
    return f"nothing started within {SILENT.seconds // 60} minutes" if state.now - since >= SILENT else ""


def take_back(state: PassState, coming: Coming, why: str) -> None:
    """Withdraw an instance on its way from its group, and note the try for its request."""
    if coming.purpose in state.requests:
        request = state.requests[coming.purpose]
        tried = tuple(dict.fromkeys((*request.tried, why)))
        state.requests[coming.purpose] = replace(request, tried=tried)
    lower(state, coming, f"no room in {why}")


def lower(state: PassState, coming: Coming, why: str) -> None:
    """Lower the desired capacity of its group by one; the instance waits for a group again."""
    desired = state.desired(coming.group)
    state.update(coming, coming.back())
    if state.site(coming.group) is not None:
        state.falls[coming.group] += 1
        state.note(
            Action.WITHDRAW,
            coming.pool,
            why,
            group=coming.group,
            coming=(coming.id,),
            desired=desired,
        )
