"""List prices of everything but instances, with their sources, read from prices.toml."""

import datetime
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stacks.catalog.instance_types import Cloud
from stacks.catalog.numbers import AMOUNT
from stacks.errors import StacksError

FILE = Path(__file__).with_name("prices.toml")
STALE_AFTER_DAYS = 180


class PriceListError(StacksError):
    """A price list that is not valid; the message names file, place and what is allowed."""


@dataclass(frozen=True)
class Quote:
    """A list price of a cloud, or the statement that none was found.

    Attributes:
        amount: in ``currency`` for one unit; None where unknown.
        currency: ISO 4217 code.
        date: the day the cloud's list was read; None where there is no amount.
        source: where to check it, or why there is no price.
        assumed: no cloud publishes it; the stack file gives the amount.
    """

    what: str
    amount: Decimal | None
    unit: str
    currency: str
    region: str
    date: datetime.date | None
    source: str
    assumed: bool = False

    def stale(self, today: datetime.date) -> bool:
        """Return whether the price was read more than ``STALE_AFTER_DAYS`` ago."""
        return self.date is not None and (today - self.date).days > STALE_AFTER_DAYS


@dataclass(frozen=True)
class SpotDiscount:
    """Discount of a spot instance, as a share of the on-demand price.

    Attributes:
        least: the smallest discount, 0 for none.
        most: the largest that the cloud advertises.
    """

    least: Decimal
    most: Decimal
    source: str


@dataclass(frozen=True)
class PriceList:
    """Prices of one cloud.

    Attributes:
        quotes: item -> its price.
    """

    quotes: dict[str, Quote]
    spot_discount: SpotDiscount


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Share = Annotated[Decimal, Field(ge=0, lt=1), AMOUNT]


class _Discount(_Exact):
    least: Share
    most: Share
    date: datetime.date
    source: str


class _Row(_Exact):
    amount: Annotated[Decimal, Field(gt=0), AMOUNT] | None = None
    unit: str
    date: datetime.date | None = None
    source: str


class _CloudTable(_Exact):
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    region: str
    spot_discount: _Discount
    prices: dict[str, _Row]


class _File(_Exact):
    clouds: dict[Cloud, _CloudTable]


@cache
def load(cloud: Cloud, path: Path = FILE) -> PriceList:
    """Return a cloud's price list, read once for each file.

    Raises:
        PriceListError: the file cannot be read, is not valid, or lacks the cloud.
    """
    try:
        content = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise PriceListError(f"{path}: {error}") from error
    if cloud not in content.clouds:
        raise PriceListError(f"{path}: no clouds.{cloud}; there are {', '.join(sorted(content.clouds))}")
    table = content.clouds[cloud]
    quotes = {what: _quote(what, row, table) for what, row in table.prices.items()}
    undated = [what for what, quote in quotes.items() if quote.amount is not None and quote.date is None]
    if undated:
        raise PriceListError(f"{path}: clouds.{cloud}.prices.{undated[0]} has an amount and no date")
    discount = table.spot_discount
    return PriceList(quotes, SpotDiscount(discount.least, discount.most, discount.source))


def _quote(what: str, row: _Row, table: _CloudTable) -> Quote:
    return Quote(what, row.amount, row.unit, table.currency, table.region, row.date, row.source)
