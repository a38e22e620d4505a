"""Records of the ledger, checked. Pure."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from gpu_fleet_image.core.document import MAY_LACK, TEXT, Form, Record


def _or(word: str) -> Form:
    """Return the form of a text that may be empty; then it is read as the word."""
    return Form("a text", lambda value: word if value == "" else TEXT.read(value))


@dataclass(frozen=True)
class End(Record):
    """A stop or a termination of one instance.

    Attributes:
        action: ``stop`` or ``terminate``.
        launched_at: its last start before.
        idle_s: time without use; None if that is not recorded.
        price_per_hour: None if it was unknown.
        started_at: when users started it again after a stop, as far as sweeps saw it.
    """

    at: datetime
    instance_id: str
    instance_type: str
    pool: Annotated[str, _or("none")]
    owner: Annotated[str, _or("nobody")]
    action: str
    launched_at: datetime
    idle_s: float | None
    price_per_hour: Decimal | None
    currency: str
    reason: str
    started_at: datetime | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True)
class Note(Record):
    """Moment at which an instance ended, or was started again."""

    at: datetime


@dataclass(frozen=True)
class FreezeChange(Record):
    """A freeze or unfreeze of the pools that freeze.

    Attributes:
        action: ``freeze`` or ``unfreeze``.
        stage: ``open``, ``capped`` or ``closed`` from then on.
        spent: in the month until then.
    """

    at: datetime
    action: str
    stage: str
    spent: Decimal
    by: str
    reason: str
