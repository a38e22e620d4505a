"""Amounts of money that know their currency: adding dollars to yuan is an error, never a number."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from stacks.errors import StacksError

# As the clouds' own calculators count; what they price by the hour is billed for a month with it.
HOURS_PER_MONTH = 730
CENT = Decimal("0.01")


class CurrencyError(StacksError):
    """Two currencies in one sum, or a price in one that the stack does not know."""


@dataclass(frozen=True)
class Money:
    """An amount.

    Attributes:
        amount: exact; rounded only when shown.
        currency: ISO 4217 code.
    """

    amount: Decimal
    currency: str

    def __add__(self, other: "Money") -> "Money":
        return Money(self.amount + self._like(other).amount, self.currency)

    def __sub__(self, other: "Money") -> "Money":
        return Money(self.amount - self._like(other).amount, self.currency)

    def __mul__(self, times: Decimal | int) -> "Money":
        return Money(self.amount * times, self.currency)

    def __truediv__(self, parts: int) -> "Money":
        return Money(self.amount / parts, self.currency)

    def __le__(self, other: "Money") -> bool:
        return self.amount <= self._like(other).amount

    def __lt__(self, other: "Money") -> bool:
        return self.amount < self._like(other).amount

    def __str__(self) -> str:
        return f"{self.amount.quantize(CENT):,} {self.currency}"

    def _like(self, other: "Money") -> "Money":
        if other.currency != self.currency:
            raise CurrencyError(f"{self} and {other} are of two currencies and have no sum")
        return other


@dataclass(frozen=True)
class CostRange:
    """From the least to the most that something costs.

    Attributes:
        high: the most; never below ``low``.
    """

    low: Money
    high: Money

    def __add__(self, other: "CostRange") -> "CostRange":
        return CostRange(self.low + other.low, self.high + other.high)

    def __mul__(self, times: Decimal | int) -> "CostRange":
        return CostRange(self.low * times, self.high * times)

    def __truediv__(self, parts: int) -> "CostRange":
        return CostRange(self.low / parts, self.high / parts)

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.high)
        return f"{self.low.amount.quantize(CENT):,} to {self.high}"


def exactly(money: Money) -> CostRange:
    """A span of one amount."""
    return CostRange(money, money)


def total(spans: Iterable[CostRange], currency: str) -> CostRange:
    """The sum; nothing costs nothing.

    Raises:
        CurrencyError: when a span is in another currency.
    """
    return sum(spans, exactly(Money(Decimal(0), currency)))
