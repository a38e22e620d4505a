"""What the program registered, in order, as plain data."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RegistrationOutcome(StrEnum):
    """What became of a registration.

    ``created``: it stands in moto. ``recorded``: moto lacks the type, so only its inputs are kept.
    ``grouped``: a component or a provider, which is no cloud resource and is not counted.
    """

    CREATED = "created"
    RECORDED = "recorded"
    GROUPED = "grouped"


@dataclass(frozen=True)
class Registration:
    """One resource as the program registered it.

    Attributes:
        type: the provider's token, say ``aws:ec2/vpc:Vpc``.
        parent: the parent's URN; empty for children of the stack.
        inputs: what the program asked for, secrets unwrapped, with the provider's camelCase keys.
        outputs: what the provider would return.
        id: the physical id.
        outcome: created, recorded or grouped.
        protected: the ``protect`` option.
        retained: the ``retain_on_delete`` option.
        deleted_with: the URN of the ``deleted_with`` option, or empty: nothing is done to this resource where
            that one is deleted too.
        delete_timeout: how long a deletion may take, as Go writes it; empty for the provider's default.
        dependencies: URNs of everything it waits for.
        ignored_changes: the ``ignore_changes`` option, in the provider's names.
        provider: the provider's URN and id, joined by ``::``; empty for the default provider.
        seconds: time in the creator.
    """

    type: str
    name: str
    urn: str
    parent: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    id: str
    outcome: RegistrationOutcome
    protected: bool
    retained: bool
    deleted_with: str
    delete_timeout: str
    dependencies: tuple[str, ...]
    ignored_changes: tuple[str, ...]
    provider: str
    seconds: float


Listener = Callable[[Registration], None]


class Registrations:
    """An ordered list of registrations that several threads may add to and one may watch."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._all: list[Registration] = []
        self._lock = threading.Lock()
        self._listener = listener

    def add(self, registration: Registration) -> None:
        """Append, and call the listener."""
        with self._lock:
            self._all.append(registration)
            if self._listener is not None:
                self._listener(registration)

    def all(self) -> tuple[Registration, ...]:
        """Everything so far, in order of registration."""
        with self._lock:
            return tuple(self._all)
