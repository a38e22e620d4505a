"""JSON documents as frozen dataclasses: one reader and one writer for all of them.

A field is ``Annotated`` with the form of its value, or holds such dataclasses itself. A field without a
default must be in the document. One with ``metadata=LEFT_OUT`` is not written while it has its default.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo, available_timezones

from gpu_fleet_image.core.errors import nearest

Document = TypeVar("Document")
LEFT_OUT: Mapping[str, Any] = {"left out": True}


@dataclass(frozen=True)
class Form:
    """The form of a value in a document.

    Attributes:
        read: makes the field's value of the document's; raises ``ValueError`` for what is not allowed.
        near: values of which a message names the nearest.
    """

    allowed: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = field(default=lambda value: value)
    near: Callable[[], Sequence[str]] = field(default=tuple)


def _if(holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return a reader that takes a value as it is where a condition holds."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return read


def whole(low: int, high: int) -> Form:
    """Return the form of a whole number in [low, high]."""
    allowed = f"a whole number from {low} to {high}"
    return Form(allowed, _if(lambda value: type(value) is int and low <= value <= high))


def number(low: float, high: float) -> Form:
    """Return the form of a number in [low, high]."""
    allowed = f"a number from {low:g} to {high:g}"
    return Form(allowed, _if(lambda value: type(value) in {int, float} and low <= value <= high))


def one_of(*choices: str | int) -> Form:
    """Return the form of one of a few values."""
    texts = [str(choice) for choice in choices]
    kinds = {type(choice) for choice in choices}
    holds = _if(lambda value: type(value) in kinds and value in choices)
    return Form(", ".join(texts), holds, near=lambda: texts)


def _price(value: Any) -> Decimal:
    try:
        amount = Decimal(value) if isinstance(value, str) else Decimal("NaN")
    except InvalidOperation as error:
        raise ValueError from error
    if not (amount.is_finite() and amount >= 0):
        raise ValueError
    return amount


def _above_zero(value: Any) -> Decimal:
    if not (amount := _price(value)):
        raise ValueError
    return amount


def _zone(value: Any) -> ZoneInfo:
    try:
        return ZoneInfo(value)
    except (OSError, KeyError, TypeError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError from error


def _minute(value: Any) -> int:
    """Read a time of day ``HH:MM`` as minutes since midnight."""
    hour, colon, minute = value.partition(":") if isinstance(value, str) else ("", "", "")
    two_digits = all(part.isascii() and part.isdecimal() and len(part) == 2 for part in (hour, minute))  # noqa: PLR2004
    if not (colon and two_digits and int(hour) < 24 and int(minute) < 60):  # noqa: PLR2004 - of a day, of an hour
        raise ValueError
    return int(hour) * 60 + int(minute)


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    if moment is None or moment.tzinfo is None:
        raise ValueError
    return moment


def _rising(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(number) is not int or number <= 0 for number in value):
        raise ValueError
    if any(left >= right for left, right in pairwise(value)):
        raise ValueError
    return tuple(value)


TEXT = Form("a text that is not empty", _if(lambda value: isinstance(value, str) and bool(value.strip())))
FLAG = Form("true or false", _if(lambda value: isinstance(value, bool)))
ZONE = Form(
    "an IANA time zone, say Europe/Berlin",
    _zone,
    lambda zone: zone.key,
    lambda: sorted(available_timezones()),
)
CLOCK = Form("HH:MM from 00:00 to 23:59", _minute, lambda minute: f"{minute // 60:02}:{minute % 60:02}")
MOMENT = Form("a time, say 2026-11-26T12:00:00Z", _moment, datetime.isoformat)
AMOUNT = Form('an amount as a text, say "1.006"', _price, str)
PRICE = Form('a price as a text, say "1.006", or null', _price, str)
ASSUMED = Form('a price above 0 as a text, say "1.006"', _above_zero, str)
RISING = Form("a list of whole numbers above 0 that rise", _rising, list)


class Contradictory:
    """Base of documents whose fields may contradict each other."""

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Yield (key, value, what is allowed instead)."""
        raise NotImplementedError


def read(kind: type[Document], value: object, where: str, problems: list[str]) -> Document | None:
    """Return a document as its dataclass, or None after every problem in it was appended to ``problems``.

    Args:
        where: the document's place in a larger one, for messages; empty at the top.
    """
    if not isinstance(value, dict):
        problems.append(f"{where or 'top level'} = {value!r}; allowed: an object")
        return None
    before, hints = len(problems), _hints(kind)
    values = {}
    for known in fields(kind):  # type: ignore[arg-type] # a dataclass
        if known.name in value:
            values[known.name] = _value(
                hints[known.name], value[known.name], _at(where, known.name), problems
            )
        elif known.default is MISSING and known.default_factory is MISSING:
            problems.append(f"{_at(where, known.name)} is missing; allowed: {_allowed(hints[known.name])}")
    problems += [f"{_at(where, key)} is unknown{nearest(key, hints)}" for key in value if key not in hints]
    if len(problems) > before:
        return None
    made = kind(**values)
    if isinstance(made, Contradictory):
        problems += [
            f"{_at(where, key)} = {wrong!r}; allowed: {allowed}"
            for key, wrong, allowed in made.contradictions()
        ]
    return made


def parse(kind: type[Document], text: str, error: Callable[[str], Exception], name: str) -> Document:
    """Return the document of a JSON text.

    Args:
        error: makes the exception that is raised, of every problem in a line of its own.
        name: the document's name in messages.
    """
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise error(f"{name}: not JSON: {wrong}") from wrong
    problems: list[str] = []
    made = read(kind, value, "", problems)
    if made is None or problems:
        raise error("\n".join(f"{name}: {problem}" for problem in problems))
    return made


def written(document: object) -> dict[str, Any]:
    """Return a document as ``json.dumps`` takes it."""
    hints = _hints(type(document))
    return {
        known.name: _as_written(hints[known.name], getattr(document, known.name))
        for known in fields(document)  # type: ignore[arg-type] # a dataclass
        if not (LEFT_OUT.items() <= known.metadata.items() and getattr(document, known.name) == known.default)
    }


def text_of(document: object) -> str:
    """Return the JSON text of a document, as stacks publish it."""
    return json.dumps(written(document), indent=1, sort_keys=True)


def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a hint is of, and its arguments; None is no argument."""
    return get_origin(hint), tuple(part for part in get_args(hint) if part is not type(None))


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) is not Annotated and type(None) in get_args(hint)


def _allowed(hint: Any) -> str:
    kind, parts = _parts(hint)
    if kind is Annotated:
        return str(parts[1].allowed)
    return _allowed(parts[0]) if _is_optional(hint) else "a list" if kind is tuple else "an object"


def _value(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    kind, parts = _parts(hint)
    if _is_optional(hint):
        return None if value is None else _value(parts[0], value, where, problems)
    if kind is Annotated:
        return _formed(parts[1], value, where, problems)
    if isinstance(hint, type) and is_dataclass(hint):
        return read(hint, value, where, problems)
    if kind is tuple and isinstance(value, list):
        return tuple(_value(parts[0], entry, f"{where}[{at}]", problems) for at, entry in enumerate(value))
    if kind is dict and isinstance(value, dict):
        return {key: _value(parts[1], entry, _at(where, key), problems) for key, entry in value.items()}
    problems.append(f"{where} = {value!r}; allowed: {_allowed(hint)}")
    return None


def _formed(form: Form, value: Any, where: str, problems: list[str]) -> Any:
    try:
        return form.read(value)
    except ValueError:
        hint = nearest(str(value), form.near())
        problems.append(f"{where} = {value!r}; allowed: {form.allowed}{hint}")
        return None


def _as_written(hint: Any, value: Any) -> Any:
    kind, parts = _parts(hint)
    if value is None:
        return None
    if _is_optional(hint):
        return _as_written(parts[0], value)
    if kind is Annotated:
        return parts[1].write(value)
    if is_dataclass(value):
        return written(value)
    if kind is tuple:
        return [_as_written(parts[0], entry) for entry in value]
    return {key: _as_written(parts[1], entry) for key, entry in value.items()}
