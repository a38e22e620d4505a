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

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome

Deleter = Callable[[RegionClients, Registration], None]


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
    clients: RegionClients,
    deleters: Mapping[str, Deleter],
    exclude: Collection[str] = (),
) -> Destroyed:
    """Delete what is in the state, as the engine would.

    Args:
        state: what is registered, or what an earlier destroy left.
        deleters: type -> how the provider deletes it; a type that moto lacks has none.
        exclude: URNs to keep, as by ``--exclude``.

    Raises:
        KeyError: a type that moto has stands here without a deleter.
    """
    kept = closure(state, exclude)
    condemned = [resource for resource in state if resource.urn not in kept]
    refused = tuple(resource.urn for resource in condemned if resource.protected)
    if refused:
        return Destroyed(refused=refused, left=tuple(state))
    urns = {resource.urn for resource in condemned}
    asked: list[str] = []
    gone: set[str] = set()
    failed: dict[str, str] = {}
    for layer in layers(condemned):
        for resource in layer:
            try:
                if _is_provider_asked(resource, urns):
                    deleters[resource.type](clients, resource)
                    asked.append(resource.urn)
            except ClientError as error:
                failed[resource.urn] = f"{error.operation_name}: {error.response['Error']['Code']}"
            else:
                gone.add(resource.urn)
        if failed:
            break
    return Destroyed(
        tuple(asked), failed, (), tuple(resource for resource in state if resource.urn not in gone)
    )


def closure(state: Iterable[Registration], chosen: Iterable[str]) -> frozenset[str]:
    """Some resources with all that they depend on, however far away."""
    by_urn = {resource.urn: resource for resource in state}
    urns: set[str] = set()
    ahead = [urn for urn in chosen if urn in by_urn]
    while ahead:
        urn = ahead.pop()
        if urn not in urns:
            urns.add(urn)
            ahead += [other for other in needs(by_urn[urn]) if other in by_urn]
    return frozenset(urns)


def needs(resource: Registration) -> frozenset[str]:
    """What must outlive a resource: its dependencies, its parent, its provider, what it is deleted with."""
    provider = resource.provider.rpartition("::")[0]
    return frozenset({*resource.dependencies, resource.parent, provider, resource.deleted_with} - {""})


def layers(condemned: Sequence[Registration]) -> list[list[Registration]]:
    """In the order of deletion; nothing within a layer depends on anything else in it."""
    waiting = {resource.urn: resource for resource in condemned}
    ordered: list[list[Registration]] = []
    while waiting:
        free = [resource for resource in waiting.values() if not needs(resource) & waiting.keys()]
        if not free:
            raise ValueError(f"resources depend on each other: {sorted(waiting)}")
        ordered.append(free)
        for ready in free:
            del waiting[ready.urn]
    return ordered[::-1]


def _is_provider_asked(resource: Registration, deleted: Collection[str]) -> bool:
    if resource.outcome is not RegistrationOutcome.CREATED or resource.retained:
        return False
    return resource.deleted_with not in deleted
