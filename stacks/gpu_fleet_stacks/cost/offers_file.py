"""The buyer's file for ``cost --compare``: a vendor's offers, hardware of one's own, saves and restarts."""

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpu_fleet_stacks.catalog import toml_file
from gpu_fleet_stacks.catalog.numbers import AMOUNT, Currency
from gpu_fleet_stacks.core.errors import StacksError

MOST = 10**12  # of any currency: sums keep their cents
Positive = Annotated[Decimal, Field(gt=0, le=MOST, allow_inf_nan=False), AMOUNT]
NotNegative = Annotated[Decimal, Field(ge=0, le=MOST, allow_inf_nan=False), AMOUNT]


class OffersFileError(StacksError):
    """A file of offers that cannot be used; the message names file, key and what is allowed."""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OfferedHours(_Exact):
    """Prices of an hour of one instance, used or not, in the file's currency; None for no offer."""

    one_year: Positive | None = None
    three_years: Positive | None = None
    savings_plan_one_year: Positive | None = None
    savings_plan_three_years: Positive | None = None
    capacity_block: Positive | None = None


class OwnHardware(_Exact):
    """Hardware of one's own in place of one instance.

    Attributes:
        price: to buy it, with its part of network and racks.
        years: of use, after which it is worth nothing.
        power_kw: under load, with cooling.
        staff_per_year: staff, room, repairs.
    """

    title: Annotated[str, Field(min_length=1, max_length=80)]
    price: Positive
    years: Annotated[Decimal, Field(ge=Decimal("0.1"), le=20), AMOUNT]
    power_kw: NotNegative
    energy_per_kwh: NotNegative
    staff_per_year: NotNegative


class SpotRuns(_Exact):
    """Times of a run that spot instances interrupt: of a save, and from an interruption to the next step."""

    save_s: Positive = Decimal(60)
    restart_s: Positive = Decimal(600)


class OffersFile(_Exact):
    """The whole file; types by name."""

    currency: Currency
    quotes: dict[str, OfferedHours] = Field(default_factory=dict)
    own: dict[str, OwnHardware] = Field(default_factory=dict)
    spot: Annotated[SpotRuns, Field(default_factory=partial(SpotRuns))]


def read(path: Path, *, currency: str, types: frozenset[str]) -> OffersFile:
    """Return the file.

    Args:
        currency: of the stack's prices.
        types: of the stack.

    Raises OffersFileError if it cannot be read, is not valid, or names other types or another currency.
    """
    try:
        content = toml_file.read(path, OffersFile)
    except ValueError as error:
        raise OffersFileError(f"--offers {error}") from error
    if content.currency != currency:
        raise OffersFileError(
            f"--offers {path}: currency = {content.currency!r}; allowed: {currency}, as the stack's prices"
        )
    if foreign := sorted({*content.quotes, *content.own} - types):
        allowed = ", ".join(sorted(types))
        raise OffersFileError(f"--offers {path}: {foreign[0]!r} is no type of the stack; allowed: {allowed}")
    return content
