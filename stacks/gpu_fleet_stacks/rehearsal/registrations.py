"""The program's registrations, in order, as plain data."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RegistrationOutcome(StrEnum):
    """Result of a registration.

    ``created``: it exists in moto. ``recorded``: moto lacks the type, so only its inputs are kept.
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
        inputs: the program's inputs, secrets unwrapped, with the provider's camelCase keys.
        outputs: what the provider would return.
        outcome: created, recorded or grouped.
        protected: the ``protect`` option.
        retained: the ``retain_on_delete`` option.
        deleted_with: the URN of the ``deleted_with`` option, or empty: where that resource is deleted, the
            engine does not delete this one itself.
        delete_timeout: how long a deletion may take, in Go's notation; empty for the provider's default.
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
    """An ordered list of registrations; several threads may add to it, and one listener may watch it."""

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
        """Return everything so far, in order of registration."""
        with self._lock:
            return tuple(self._all)
