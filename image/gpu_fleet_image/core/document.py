"""JSON documents as dataclasses: one reader and one writer for all of them.

A field is ``Annotated`` with the form of its value, or has a type whose form is known, or holds such
dataclasses itself. A field without a default must be in the document; of a ``Record`` any field must that is
not ``LEFT_OUT``, which is not written while it has its default, or ``MAY_LACK``. An ``AsList`` and a tuple
of a fixed length are lists in the document.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo, available_timezones

from gpu_fleet_image.core.errors import CloudError, nearest
from gpu_fleet_image.core.times import format_time, parse_time

Document = TypeVar("Document")
# Of a message: problems of a record, and characters of a value.
_MOST_NAMED, _LONGEST = 5, 300
LEFT_OUT: Mapping[str, Any] = {"left out": True}
MAY_LACK: Mapping[str, Any] = {"may lack": True}
# Of a field that holds a dataclass: its fields stand in the document of the field's owner.
FLAT: Mapping[str, Any] = {"flat": True}
# Of a field that holds the name under which its document stands in an object of such documents.
KEY: Mapping[str, Any] = {"key": True}


def named(name: str) -> Mapping[str, Any]:
    """Return the metadata of a field that has another name in the document."""
    return {"name": name}


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


def matching(pattern: re.Pattern[str], allowed: str) -> Form:
    """Return the form of a text that matches a pattern as a whole."""
    return Form(allowed, _if(lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None))


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


def _decimal(value: Any) -> Decimal:
    amount = Decimal(value) if isinstance(value, str) else Decimal("NaN")
    if not amount.is_finite():
        raise ValueError
    return amount


def _finite(value: Any) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):
        raise ValueError
    return float(value)


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError
    return parse_time(value)


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
DATE = Form(
    "a day, say 2026-11-26",
    lambda value: datetime.strptime(f"{value}", "%Y-%m-%d").replace(tzinfo=UTC),
    lambda day: f"{day:%Y-%m-%d}",
)
MOMENT = Form("a time, say 2026-11-26T12:00:00Z", _moment, datetime.isoformat)
AMOUNT = Form('an amount as a text, say "1.006"', _price, str)
PRICE = Form('a price as a text, say "1.006", or null', _price, str)
ASSUMED = Form('a price above 0 as a text, say "1.006"', _above_zero, str)
RISING = Form("a list of whole numbers above 0 that rise", _rising, list)
_OF_TYPES: Mapping[Any, Form] = {
    str: Form("a text", _if(lambda value: isinstance(value, str))),
    bool: FLAG,
    int: Form("a whole number", _if(lambda value: type(value) is int)),
    float: Form("a number", _finite),
    Decimal: Form('a number as a text, say "1.006"', _decimal, str),
    datetime: Form("a time, say 2026-11-26T12:00:00Z", _time, format_time),
    Any: Form("anything", lambda value: value),
}


class Contradictory:
    """Base of documents whose fields may contradict each other."""

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Yield (key, value, what is allowed instead)."""
        raise NotImplementedError


class Record:
    """Base of what programs of gpu-fleet keep in a bucket; what a newer one adds to it is passed over.

    Attributes:
        IF_DAMAGED: what a user may do about a damaged one.
    """

    IF_DAMAGED: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as the bucket holds it."""
        return written(self)

    @classmethod
    def from_json(cls, content: object, where: str) -> Self:
        """Return the record of a JSON object. Raises CloudError, which names what is damaged."""

        def damaged(problems: Sequence[str]) -> CloudError:
            more = [f"and {len(problems) - _MOST_NAMED} more"] if len(problems) > _MOST_NAMED else []
            named_here = "; ".join([*problems[:_MOST_NAMED], *more])
            return CloudError(f"{where}: {named_here}{cls.IF_DAMAGED}", "Malformed")

        return checked(cls, content, damaged)


class AsList:
    """Base of a dataclass that is a list in the document."""


def read(
    kind: type[Document], value: object, where: str, problems: list[str], key: str = ""
) -> Document | None:
    """Return a document as its dataclass, or None after every problem in it was appended to ``problems``.

    Args:
        where: the document's place in a larger one, for messages; empty at the top.
        key: its name in that one, if it is an entry of an object.
    """
    if not isinstance(value, dict):
        problems.append(f"{where or 'top level'} = {value!r:.{_LONGEST}}; allowed: an object")
        return None
    before, parts = len(problems), _parts(kind)  # type: ignore[arg-type] # every class has a hash
    values = {}
    for name, part in parts.items():
        if part.is_flat:
            values[name] = part.shape.read(value, where, problems, key)
        elif part.is_key:
            values[name] = key
        elif part.name in value:
            values[name] = part.shape.read(value[part.name], _at(where, part.name), problems, "")
        elif part.is_required:
            near = nearest(part.name, value.keys() - {other.name for other in parts.values()})
            problems.append(f"{_at(where, part.name)} is missing; allowed: {part.shape.allowed}{near}")
    if not issubclass(kind, Record):
        unknown = value.keys() - parts.keys()
        problems += [
            f"{_at(where, name)} is unknown{nearest(name, parts)}" for name in value if name in unknown
        ]
    if len(problems) > before:
        return None
    made = kind(**values)
    if isinstance(made, Contradictory):
        problems += [
            f"{_at(where, name)} = {wrong!r}; allowed: {allowed}"
            for name, wrong, allowed in made.contradictions()
        ]
    return made


def checked(kind: type[Document], value: object, error: Callable[[Sequence[str]], Exception]) -> Document:
    """Return a document as its dataclass; raises what ``error`` makes of all problems in it."""
    problems: list[str] = []
    made = read(kind, value, "", problems)
    if made is None or problems:
        raise error(problems)
    return made


def salvaged(kind: type[Document], value: Mapping[str, Any]) -> Document:
    """Return what can be read of a document whose fields all have defaults, without its damaged entries."""
    parts = _parts(kind)  # type: ignore[arg-type] # every class has a hash
    kept = {name: part.shape.salvaged(value.get(part.name), "") for name, part in parts.items()}
    return kind(**{name: part for name, part in kept.items() if part is not None})


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
    return checked(kind, value, lambda said: error("\n".join(f"{name}: {each}" for each in said)))


def written(document: object) -> dict[str, Any]:
    """Return a document as ``json.dumps`` takes it."""
    content: dict[str, Any] = {}
    kind: Any = type(document)
    for name, part in _parts(kind).items():
        value = getattr(document, name)
        if part.is_key or (part.is_left_out and value == part.default):
            continue
        made = part.shape.write(value)
        content |= made if part.is_flat else {part.name: made}
    return content


def text_of(document: object) -> str:
    """Return the JSON text of a document, as stacks publish it."""
    return json.dumps(written(document), indent=1, sort_keys=True)


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


class _Shape:
    """Shape of a value, by its type hint: how it is read and written, with all of its parts.

    Attributes:
        allowed: what a message says of it.
    """

    allowed = "an object"

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:
        """Return the field's value of the document's; None with a problem where it is not allowed."""
        raise NotImplementedError

    def write(self, value: Any) -> Any:
        """Return the document's value of the field's."""
        raise NotImplementedError

    def salvaged(self, value: Any, key: str) -> Any:
        """Return the value, or None where it is damaged."""
        problems: list[str] = []
        made = self.read(value, "", problems, key)
        return None if problems else made

    def refused(self, value: Any, where: str, problems: list[str], hint: str = "") -> None:
        """Note that a value is not allowed."""
        problems.append(f"{where} = {value!r:.{_LONGEST}}; allowed: {self.allowed}{hint}")


class _Leaf(_Shape):
    def __init__(self, form: Form) -> None:
        self._form, self.allowed = form, form.allowed

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:  # noqa: ARG002 - of objects
        try:
            return self._form.read(value)
        except (ValueError, ArithmeticError):
            near = self._form.near()
            return self.refused(value, where, problems, nearest(str(value), near) if near else "")

    def write(self, value: Any) -> Any:
        return self._form.write(value)


class _Optional(_Shape):
    def __init__(self, inner: _Shape) -> None:
        self._inner, self.allowed = inner, inner.allowed

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:
        return None if value is None else self._inner.read(value, where, problems, key)

    def write(self, value: Any) -> Any:
        return None if value is None else self._inner.write(value)


class _Object(_Shape):
    def __init__(self, kind: type) -> None:
        self._kind = kind

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:
        return read(self._kind, value, where, problems, key)

    def write(self, value: Any) -> Any:
        return written(value)


class _Fixed(_Shape):
    """A list with a fixed number of items: a tuple, or an ``AsList``."""

    def __init__(self, make: Callable[[list[Any]], Any], items: list[_Shape]) -> None:
        self._make, self._items, self.allowed = make, items, f"a list of {len(items)}"

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:  # noqa: ARG002 - of objects
        if not isinstance(value, list) or len(value) != len(self._items):
            return self.refused(value, where, problems)
        pairs = enumerate(zip(self._items, value, strict=True))
        return self._make([item.read(entry, f"{where}[{at}]", problems, "") for at, (item, entry) in pairs])

    def write(self, value: Any) -> Any:
        entries = (
            value if isinstance(value, tuple) else [getattr(value, known.name) for known in fields(value)]
        )
        return [item.write(entry) for item, entry in zip(self._items, entries, strict=True)]


class _List(_Shape):
    allowed = "a list"

    def __init__(self, kind: Callable[[Iterator[Any]], Any], item: _Shape) -> None:
        self._kind, self._item = kind, item

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:  # noqa: ARG002 - of objects
        if not isinstance(value, list):
            return self.refused(value, where, problems)
        # made whole first: a damaged entry may be nothing that a set takes
        read_here = [self._item.read(entry, f"{where}[{at}]", problems, "") for at, entry in enumerate(value)]
        return self._kind(iter(read_here))

    def write(self, value: Any) -> Any:
        return [self._item.write(entry) for entry in (sorted(value) if isinstance(value, Set) else value)]


class _Mapping(_Shape):
    def __init__(self, entry: _Shape) -> None:
        self._entry = entry

    def read(self, value: Any, where: str, problems: list[str], key: str) -> Any:  # noqa: ARG002 - of objects
        if not isinstance(value, dict):
            return self.refused(value, where, problems)
        return {
            name: self._entry.read(part, _at(where, name), problems, name) for name, part in value.items()
        }

    def write(self, value: Any) -> Any:
        return {name: self._entry.write(part) for name, part in value.items()}

    def salvaged(self, value: Any, key: str) -> Any:  # noqa: ARG002 - of objects
        entries = value.items() if isinstance(value, dict) else ()
        kept = {name: self._entry.salvaged(part, name) for name, part in entries}
        return {name: part for name, part in kept.items() if part is not None} or None


@dataclass(frozen=True)
class _Part:
    """A field of a document.

    Attributes:
        name: its name in the document.
    """

    name: str
    shape: _Shape
    default: Any
    is_required: bool
    is_flat: bool
    is_key: bool
    is_left_out: bool


@cache
def _parts(kind: Any) -> Mapping[str, _Part]:
    """Return the fields of a dataclass, its version first. A program always writes the whole of a record."""
    hints, is_record = get_type_hints(kind, include_extras=True), issubclass(kind, Record)
    return {
        known.name: _Part(
            known.metadata.get("name", known.name),
            _shape(hints[known.name]),
            known.default,
            not {"left out", "may lack"} & known.metadata.keys()
            if is_record
            else known.default is MISSING and known.default_factory is MISSING,
            *(flag in known.metadata for flag in ("flat", "key", "left out")),
        )
        for known in sorted(fields(kind), key=lambda known: known.name != "schema_version")
    }


def _shape(hint: Any) -> _Shape:
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _Leaf(inner[1])
    if type(None) in inner:
        return _Optional(_shape(inner[0]))
    if kind in (dict, Mapping):
        return _Mapping(_shape(inner[1]))
    if kind is tuple and Ellipsis not in inner:
        return _Fixed(tuple, [_shape(item) for item in inner])
    return _List(kind, _shape(inner[0])) if kind is not None else _of_class(hint)


def _of_class(hint: Any) -> _Shape:
    if hint in _OF_TYPES:
        return _Leaf(_OF_TYPES[hint])
    if issubclass(hint, AsList):
        return _Fixed(lambda items: hint(*items), [_shape(item) for item in get_type_hints(hint).values()])
    if is_dataclass(hint):
        return _Object(hint)  # type: ignore[arg-type] # a class
    return _Leaf(Form(", ".join(str(each.value) for each in hint), hint, lambda value: value.value))
