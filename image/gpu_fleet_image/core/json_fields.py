"""Typed access to a JSON object that gathers problems instead of stopping at the first one."""

from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from gpu_fleet_image.core.reaper_errors import nearest

Choice = TypeVar("Choice", str, int)
CLOCK_PARTS = 2


class Fields:
    """Typed reader of one JSON object on its way to a dataclass.

    Every getter returns a usable value even when the field is wrong, so that the remaining fields are checked
    too; the caller must refuse the whole when ``problems`` is not empty.

    Attributes:
        problems: messages of this object and of all objects inside it, naming key, value and what is allowed.
    """

    def __init__(self, raw: object, where: str = "", problems: list[str] | None = None) -> None:
        self.problems: list[str] = [] if problems is None else problems
        self._where = where
        self._asked: set[str] = set()
        self._raw: dict[str, Any] = raw if isinstance(raw, dict) else {}
        if not isinstance(raw, dict):
            self.problems.append(f"{where.rstrip('.') or 'top level'} = {raw!r}; allowed: an object")

    def problem(self, key: str, value: object, allowed: str) -> None:
        """Note that a key's value is not allowed."""
        self.problems.append(f"{self._where}{key} = {_show(value)}; allowed: {allowed}")

    def _take(self, key: str, allowed: str) -> Any:
        self._asked.add(key)
        if key not in self._raw:
            self.problems.append(f"{self._where}{key} is missing; allowed: {allowed}")
        return self._raw.get(key)

    def choice(self, key: str, allowed: Sequence[Choice]) -> Choice:
        """Return one of a few values."""
        choices = ", ".join(map(str, allowed))
        value = self._take(key, choices)
        if key in self._raw and (value not in allowed or isinstance(value, bool)):
            self.problem(key, value, choices + nearest(str(value), map(str, allowed)))
        return value if value in allowed else allowed[0]

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self._take(key, "a text")
        if key in self._raw and not (isinstance(value, str) and value.strip()):
            self.problem(key, value, "a text that is not empty")
        return str(value)

    def optional_text(self, key: str) -> str | None:
        """Return a text that is not empty, or None for null or a missing key."""
        self._asked.add(key)
        return self.text(key) if self._raw.get(key) is not None else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; the key may be missing."""
        self._asked.add(key)
        value = self._raw.get(key, default)
        if not isinstance(value, bool):
            self.problem(key, value, "true or false")
        return value is True

    def number(self, key: str, low: float, high: float) -> float:
        """Return a number in [low, high]."""
        allowed = f"a number from {low:g} to {high:g}"
        value = self._take(key, allowed)
        if isinstance(value, int | Decimal) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        if key in self._raw:
            self.problem(key, value, allowed)
        return low

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number in [low, high]."""
        allowed = f"a whole number from {low} to {high}"
        value = self._take(key, allowed)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        if key in self._raw:
            self.problem(key, value, allowed)
        return low

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number in [low, high], or None for null or a missing key."""
        self._asked.add(key)
        return self.integer(key, low, high) if self._raw.get(key) is not None else None

    def zone(self, key: str) -> ZoneInfo:
        """Return a time zone of the IANA data base."""
        value = self._take(key, "an IANA time zone, say Europe/Berlin")
        try:
            return ZoneInfo(value)
        except (ValueError, OSError, KeyError, TypeError):  # ZoneInfoNotFoundError is a KeyError
            if key in self._raw:
                hint = nearest(str(value), available_timezones())
                self.problem(key, value, f"an IANA time zone, say Europe/Berlin{hint}")
            return ZoneInfo("UTC")

    def spans(self, key: str) -> Iterator[tuple[int, int]]:
        """Yield daily spans ``{"start": "19:00", "end": "07:00"}`` as minutes since midnight; optional."""
        self._asked.add(key)
        listed = self._raw.get(key, [])
        if not isinstance(listed, list):
            self.problem(key, listed, 'a list of {"start": "HH:MM", "end": "HH:MM"}')
            return
        for index, entry in enumerate(listed):
            span = Fields(entry, f"{self._where}{key}[{index}].", self.problems)
            yield span.minute("start"), span.minute("end")
            span.refuse_unknown()

    def minute(self, key: str) -> int:
        """Return a time of day ``HH:MM`` as minutes since midnight."""
        value = self._take(key, "HH:MM")
        parts = value.split(":") if isinstance(value, str) else []
        if len(parts) == CLOCK_PARTS and all(part.isdecimal() and len(part) == CLOCK_PARTS for part in parts):
            hour, minute = map(int, parts)
            if hour < 24 and minute < 60:  # noqa: PLR2004 -- a day's hours and an hour's minutes
                return hour * 60 + minute
        if key in self._raw:
            self.problem(key, value, "HH:MM from 00:00 to 23:59")
        return 0

    def prices(self, key: str) -> dict[str, Decimal | None]:
        """Return instance type -> price of an hour, from a decimal text; None for null. May be missing."""
        self._asked.add(key)
        raw = self._raw.get(key, {})
        table = Fields(raw, f"{self._where}{key}.", self.problems)
        return {name: table.price(name) for name in (raw if isinstance(raw, dict) else {})}

    def price(self, key: str) -> Decimal | None:
        """Return a decimal text of at least 0 as a number, or None for null."""
        value = self._raw[key]
        if value is None:
            return None
        try:
            amount = Decimal(value) if isinstance(value, str) else Decimal("NaN")
        except InvalidOperation:
            amount = Decimal("NaN")
        if amount.is_finite() and amount >= 0:
            return amount
        self.problem(key, value, 'a price as a text, say "1.006", or null')
        return None

    def amount(self, key: str) -> Decimal:
        """Return a decimal text of at least 0 as a number; the key is required."""
        allowed = 'an amount as a text, say "1.006"'
        if self._take(key, allowed) is None:
            if key in self._raw:
                self.problem(key, None, allowed)
            return Decimal(0)
        return self.price(key) or Decimal(0)

    def rising(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers above 0, each larger than the one before."""
        allowed = "a list of whole numbers above 0 that rise"
        listed = self._take(key, allowed)
        positive = isinstance(listed, list) and all(type(number) is int and number > 0 for number in listed)
        if positive and all(left < right for left, right in pairwise(listed)):
            return tuple(listed)
        if key in self._raw:
            self.problem(key, listed, allowed)
        return ()

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, none of them empty."""
        value = self._take(key, "a list of texts")
        if key in self._raw and not (
            isinstance(value, list) and all(isinstance(word, str) and word for word in value)
        ):
            self.problem(key, value, "a list of texts")
            return ()
        return tuple(value or ())

    def names(self) -> tuple[str, ...]:
        """Return every key of the object."""
        return tuple(self._raw)

    def table(self, key: str) -> "Fields":
        """Return the reader of an object inside this one."""
        return Fields(self._take(key, "an object") or {}, f"{self._where}{key}.", self.problems)

    def optional_table(self, key: str) -> "Fields | None":
        """Return the reader of an object inside this one, or None if it is missing."""
        self._asked.add(key)
        return self.table(key) if self._raw.get(key) is not None else None

    def tables(self, key: str) -> Iterator[tuple[str, "Fields"]]:
        """Yield the named objects inside an object."""
        raw = self._take(key, "an object")
        if key in self._raw and not isinstance(raw, dict):
            self.problem(key, raw, "an object")
        for name in raw if isinstance(raw, dict) else {}:
            yield name, Fields(raw[name], f"{self._where}{key}.{name}.", self.problems)

    def refuse_unknown(self) -> None:
        """Report every key that no getter asked for."""
        for key in self._raw.keys() - self._asked:
            hint = nearest(key, self._asked)
            self.problems.append(f"{self._where}{key} is unknown{hint}")


def _show(value: object) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)
