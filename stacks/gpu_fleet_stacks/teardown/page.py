"""The plan of a destroy as text. Pure."""

from collections.abc import Iterator

from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.teardown.holdings import HeldInstance
from gpu_fleet_stacks.teardown.plan import DestroyPlan, key_days, lifting

REASON_PROTECTED = "protected"


def lines(stack: Stack, plan: DestroyPlan) -> Iterator[str]:
    """Yield the actions of a destroy, line by line."""
    yield f"{stack.name}, {stack.cloud} {stack.region}, account {stack.account_id}"
    yield ""
    yield from _instances(plan)
    for store in plan.given_up:
        yield f"delete    {store.kind}: {store.id} with all that it holds, {store.holds}"
    for store in plan.empty:
        yield f"delete    {store.kind}: {store.id}, empty"
    yield f"delete    {plan.deleted} other resources"
    for store, reason in plan.kept:
        yield f"keep      {store.kind}: {store.id}, {store.holds} ({reason})"
    if plan.key_kept:
        yield f"keep      the key ({plan.key_kept})"
    else:
        yield f"delete    the key, {key_days(stack)} days after everything else"
    if any(reason == REASON_PROTECTED for _, reason in plan.kept):
        yield ""
        yield f"To lift the protection: {lifting(stack)}."


def _instances(plan: DestroyPlan) -> Iterator[str]:
    for instance in plan.draining:
        yield f"{_terminates(instance)}: {_saves(instance)}{_held(instance.hold)}"
    for stopped in plan.stopped:
        yield f"{_terminates(stopped)}: {stopped.state}, in no group{_held(stopped.hold)}"
    if not plan.draining and not plan.stopped:
        yield "terminate no instance: there is none"


def _terminates(instance: HeldInstance) -> str:
    return f"terminate {instance.id} {instance.type}, pool {instance.pool or '-'}"


def _saves(instance: HeldInstance) -> str:
    if instance.stopped:
        return "is stopped and saves nothing"
    return "has its lifecycle hook's time to save" if instance.managed else "runs no agent and saves nothing"


def _held(hold: str) -> str:
    return f" (held: {hold})" if hold else ""


def afterwards(stack: Stack, plan: DestroyPlan) -> Iterator[str]:
    """Yield what is left after the destroy, and how to continue."""
    if not plan.kept and not plan.key_kept:
        yield f"{stack.name} is destroyed. `pulumi stack rm {stack.name}` forgets its history."
        return
    yield f"{stack.name} is destroyed but for what it keeps:"
    for store, reason in plan.kept:
        yield f"  {store.kind}: {store.id}, {store.holds} ({reason})"
    yield f"  the key, with its alias and policy ({plan.key_kept})"
    yield (
        f"All of it is still in the stack's state: `gpu-fleet up {stack.name}` manages it again, and"
        f" `gpu-fleet destroy {stack.name} --delete-data KIND` deletes what is no longer wanted."
    )
