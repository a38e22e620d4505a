"""Amounts of money with a currency; adding dollars to yuan raises an error."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gpu_fleet_stacks.core.errors import StacksError

# The clouds' own calculators use 730; a month of an hourly price is billed with it.
HOURS_PER_MONTH = 730
CENT = Decimal("0.01")


class CurrencyError(StacksError):
    """A sum of two currencies, or a price in a currency that the stack has no rate for."""


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
    """Expected and highest cost of something.

    Attributes:
        worst: never below ``expected``.
    """

    expected: Money
    worst: Money

    def __add__(self, other: "CostRange") -> "CostRange":
        return CostRange(self.expected + other.expected, self.worst + other.worst)

    def __mul__(self, times: Decimal | int) -> "CostRange":
        return CostRange(self.expected * times, self.worst * times)

    def __truediv__(self, parts: int) -> "CostRange":
        return CostRange(self.expected / parts, self.worst / parts)

    def __str__(self) -> str:
        if self.expected == self.worst:
            return str(self.worst)
        return f"{self.expected} (at worst {self.worst})"


def exactly(money: Money) -> CostRange:
    """Return a range of one amount."""
    return CostRange(money, money)


def total(spans: Iterable[CostRange], currency: str) -> CostRange:
    """Return the sum; the sum of nothing is 0. Raises CurrencyError if a range is in another currency."""
    return sum(spans, exactly(Money(Decimal(0), currency)))
