"""Order of a deletion, which is the reverse of the dependencies, read from registrations."""

import json
from collections.abc import Iterable, Mapping

from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome


def reached(registrations: Iterable[Registration]) -> dict[str, set[str]]:
    """Return URN -> every URN on which it depends, also indirectly: all of them outlive it."""
    direct = {registration.urn: set(registration.dependencies) for registration in registrations}
    found: dict[str, set[str]] = {}

    def of(urn: str) -> set[str]:
        if urn not in found:
            nearest = direct.get(urn, set())
            found[urn] = nearest.union(*(of(other) for other in nearest))
        return found[urn]

    return {urn: of(urn) for urn in direct}


def outlived(rehearsed: Rehearsed) -> tuple[Registration, set[str]]:
    """Return the key of a stack, and every URN that depends on it."""
    (key,) = (made for made in rehearsed.resources if made.type.endswith(":kms/key:Key"))
    return key, {urn for urn, others in reached(rehearsed.registrations).items() if key.urn in others}


def encrypted_with(key: Registration, registrations: Iterable[Registration]) -> list[Registration]:
    """Return every resource whose inputs name the key, by its id or by its ARN."""
    names = {key.id, key.outputs["arn"]}
    return [
        registration
        for registration in registrations
        if registration.outcome is not RegistrationOutcome.GROUPED
        and registration.urn != key.urn
        and any(name in _text(registration.inputs) for name in names)
    ]


def _text(inputs: Mapping[str, object]) -> str:
    return json.dumps(inputs, default=str)
