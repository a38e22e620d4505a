"""What ``pulumi destroy`` would do to what a program registered, done to moto.

The rules are the engine's own (github.com/pulumi/pulumi at 1b594989, August 2026, ``pkg/resource/deploy``):

- ``step.go``, ``DeleteStep.Apply``: a protected resource is refused, already in the preview, so before
  anything is touched; one that is retained, or whose ``deleted_with`` is deleted too, leaves the state and
  the provider is not asked; a component is no more than an entry.
- ``step_generator.go``, ``getExcludeDependencies``: ``--exclude`` keeps a resource and what it depends on,
  its parent and its provider among that. What depends on it is not kept.
- ``step_generator.go``, ``ScheduleDeletes``: resources go in layers. The first layer holds what depends on
  nothing that is to be deleted, and the layers are worked off from the last to the first, each to its end.
- ``deployment_executor.go``: after a layer with a failure no other is begun. What was under way beside the
  failure in its layer is finished, so the model finishes all of it: the worst that may happen.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from stacks.rehearsal.clients import Clients
from stacks.rehearsal.records import Outcome, Registration

Deleter = Callable[[Clients, Registration], None]


@dataclass(frozen=True)
class Destroyed:
    """What a destroy left behind.

    Attributes:
        asked: URNs of what the provider was asked to delete, and did, in that order.
        failed: URN -> what moto said.
        refused: URNs of the protected resources that stopped it before it began.
        left: what is still in the state, in order of registration.
    """

    asked: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    left: tuple[Registration, ...] = ()


def destroy(
    state: Sequence[Registration],
    clients: Clients,
    deleters: Mapping[str, Deleter],
    exclude: Collection[str] = (),
) -> Destroyed:
    """Delete what is in the state, as the engine would.

    Args:
        state: what is registered, or what an earlier destroy left.
        clients: where it stands.
        deleters: type -> how the provider deletes it; a type that moto lacks has none.
        exclude: URNs to keep, as by ``--exclude``.

    Raises:
        KeyError: a type that moto has stands here without a deleter.
    """
    kept = closure(state, exclude)
    condemned = [one for one in state if one.urn not in kept]
    refused = tuple(one.urn for one in condemned if one.protected)
    if refused:
        return Destroyed(refused=refused, left=tuple(state))
    urns = {one.urn for one in condemned}
    asked: list[str] = []
    gone: set[str] = set()
    failed: dict[str, str] = {}
    for layer in layers(condemned):
        for one in layer:
            try:
                if _is_provider_asked(one, urns):
                    deleters[one.type](clients, one)
                    asked.append(one.urn)
            except ClientError as error:
                failed[one.urn] = f"{error.operation_name}: {error.response['Error']['Code']}"
            else:
                gone.add(one.urn)
        if failed:
            break
    return Destroyed(tuple(asked), failed, (), tuple(one for one in state if one.urn not in gone))


def closure(state: Iterable[Registration], chosen: Iterable[str]) -> frozenset[str]:
    """Some resources with all that they depend on, however far away."""
    by_urn = {one.urn: one for one in state}
    found: set[str] = set()
    ahead = [urn for urn in chosen if urn in by_urn]
    while ahead:
        urn = ahead.pop()
        if urn not in found:
            found.add(urn)
            ahead += [other for other in needs(by_urn[urn]) if other in by_urn]
    return frozenset(found)


def needs(one: Registration) -> frozenset[str]:
    """What must outlive a resource: its dependencies, its parent, its provider, what it is deleted with."""
    provider = one.provider.rpartition("::")[0]
    return frozenset({*one.dependencies, one.parent, provider, one.deleted_with} - {""})


def layers(condemned: Sequence[Registration]) -> list[list[Registration]]:
    """In the order of deletion; nothing within a layer depends on anything else in it."""
    waiting = {one.urn: one for one in condemned}
    found: list[list[Registration]] = []
    while waiting:
        free = [one for one in waiting.values() if not needs(one) & waiting.keys()]
        if not free:
            raise ValueError(f"resources depend on each other: {sorted(waiting)}")
        found.append(free)
        for one in free:
            del waiting[one.urn]
    return found[::-1]


def _is_provider_asked(one: Registration, deleted: Collection[str]) -> bool:
    if one.outcome is not Outcome.CREATED or one.retained:
        return False
    return one.deleted_with not in deleted
