"""Records of the ledger, checked. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import parse_time


@dataclass(frozen=True)
class End:
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
    pool: str
    owner: str
    action: str
    launched_at: datetime
    idle_s: float | None
    price_per_hour: Decimal | None
    currency: str
    reason: str
    started_at: datetime | None = None


def end_of(record: Mapping[str, Any], key: str) -> End:
    """Parse and check a record of the ledger. Raises CloudError if it is malformed."""
    try:
        price = record["price_per_hour"]
        return End(
            at=parse_time(record["at"]),
            instance_id=str(record["instance_id"]),
            instance_type=str(record["instance_type"]),
            pool=str(record["pool"]) or "none",
            owner=str(record["owner"]) or "nobody",
            action=str(record["action"]),
            launched_at=parse_time(record["launched_at"]),
            idle_s=None if record["idle_s"] is None else float(record["idle_s"]),
            price_per_hour=None if price is None else Decimal(price),
            currency=str(record["currency"]),
            reason=str(record["reason"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidOperation) as error:
        raise CloudError(f"ledger record {key}: {error!r}") from error


@dataclass(frozen=True)
class FreezeChange:
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


def change_of(record: Mapping[str, Any], key: str) -> FreezeChange:
    """Parse and check a record of a freeze; arguments and errors as for ``end_of``."""
    try:
        texts = {name: str(record[name]) for name in ("action", "stage", "by", "reason")}
        return FreezeChange(at=parse_time(record["at"]), spent=Decimal(record["spent"]), **texts)
    except (KeyError, ValueError, TypeError, AttributeError, InvalidOperation) as error:
        raise CloudError(f"ledger record {key}: {error!r}") from error
