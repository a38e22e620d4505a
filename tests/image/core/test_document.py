"""Records of the bucket, by their dataclasses: what is damaged is named, and nothing of it is guessed."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gpu_fleet_image.core.document import FLAT, KEY, LEFT_OUT, MAY_LACK, AsList, Record, named, salvaged
from gpu_fleet_image.core.reaper_errors import CloudError

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Visit(AsList):
    at: datetime
    count: int


@dataclass(frozen=True)
class Owner(Record):
    name: str = ""
    team: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True)
class Entry(Record):
    id: str = field(metadata=KEY)
    owner: Owner = field(metadata=FLAT)
    price: Decimal = Decimal(0)


@dataclass(frozen=True)
class Book(Record):
    entries: dict[str, Entry] = field(default_factory=dict, metadata=named("machines"))
    visits: dict[str, Visit] = field(default_factory=dict)
    pools: frozenset[str] = frozenset()
    pair: tuple[str, float] | None = None
    version: int = field(default=1, metadata=MAY_LACK)


BOOK = Book({"i-1": Entry("i-1", Owner("ada"), Decimal("1.006"))}, {"i-1": Visit(NOON, 2)}, frozenset("ba"))
WRITTEN = {
    "machines": {"i-1": {"name": "ada", "price": "1.006"}},
    "visits": {"i-1": ["2026-11-27T12:00:00+00:00", 2]},
    "pools": ["a", "b"],
    "pair": None,
    "version": 1,
}


def test_what_is_written_is_read_again():
    content = json.loads(json.dumps(BOOK.to_json()))

    assert content == WRITTEN
    assert Book.from_json(content, "book.json") == BOOK


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            {"machines": {"i-1": {"name": "ada", "price": "NaN"}}},
            "machines.i-1.price = 'NaN'; allowed: a number",
        ),
        ({"machines": {"i-1": {"name": "ada"}}}, "machines.i-1.price is missing; allowed: a number"),
        ({"machines": {"i-1": {"name": 7, "price": "1"}}}, "machines.i-1.name = 7; allowed: a text"),
        ({"visits": {"i-1": ["noon", 2]}}, "visits.i-1[0] = 'noon'; allowed: a time"),
        ({"visits": {"i-1": [1]}}, "visits.i-1 = [1]; allowed: a list of 2"),
        (
            {"visits": {"i-1": ["2026-11-27T12:00:00+00:00", True]}},
            "visits.i-1[1] = True; allowed: a whole number",
        ),
        ({"pools": [[]]}, "pools[0] = []; allowed: a text"),
        ({"pair": ["a", 10**400]}, "allowed: a number"),
        ({"pair": ["a", float("inf")]}, "pair[1] = inf; allowed: a number"),
    ],
)
def test_damage_is_named(damage, says):
    with pytest.raises(CloudError) as caught:
        Book.from_json(WRITTEN | damage, "book.json")

    assert str(caught.value).startswith("book.json: ")
    assert says in str(caught.value)
    assert caught.value.code == "Malformed"


@pytest.mark.parametrize("key", ["machines", "visits", "pools", "pair"])
def test_a_record_without_a_field_that_is_always_written_is_damaged(key):
    with pytest.raises(CloudError, match=f"{key} is missing"):
        Book.from_json({name: value for name, value in WRITTEN.items() if name != key}, "book.json")


def test_what_a_newer_program_added_is_passed_over():
    older = {name: value for name, value in WRITTEN.items() if name != "version"}

    assert Book.from_json(older | {"colour": "red"}, "book.json") == BOOK


@pytest.mark.parametrize("entry", [{"name": "x" * 1000, "price": "y" * 1000}, "z" * 1000])
def test_a_message_stays_short_however_much_is_damaged(entry):
    entries = {f"i-{number}": entry for number in range(100)}

    with pytest.raises(CloudError, match=r"and 95 more$") as caught:
        Book.from_json(WRITTEN | {"machines": entries}, "book.json")

    assert len(str(caught.value)) < 3000


def test_damaged_entries_of_a_memory_are_forgotten_and_no_others():
    content = WRITTEN | {
        "visits": {"i-1": WRITTEN["visits"]["i-1"], "i-2": ["noon", 2]},
        "pools": 3,
        "pair": 7,
    }

    assert salvaged(Book, content) == Book(BOOK.entries, BOOK.visits)
