"""What one unit may send: a burst, and so much a minute after it."""

from unittest.mock import Mock

from gpu_fleet_image.instance.logs.__main__ import read
from gpu_fleet_image.instance.logs.budget import (
    BURST_BYTES,
    BYTES_PER_MINUTE,
    MINUTE_US,
    MOST_UNITS,
    UnitBudget,
)
from gpu_fleet_image.instance.logs.buffer import BatchLimits, LineBuffer

UNIT, OTHER = "trainer@digits.service", "gpu-ready.service"


def spent():
    """A budget of which the unit has used all."""
    budget = UnitBudget()
    assert budget.takes(UNIT, 0, BURST_BYTES)
    return budget


def test_a_unit_sends_a_burst_and_each_minute_as_much_again_and_never_more_than_one_burst():
    budget, later = spent(), 10**6 * MINUTE_US

    assert not budget.takes(UNIT, 0, 1)
    assert budget.takes(OTHER, 0, BURST_BYTES), "another unit has its own"
    assert not budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE + 1)
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE)
    assert not budget.takes(UNIT, later, BURST_BYTES + 1)
    assert budget.takes(UNIT, later, BURST_BYTES)
    assert not budget.takes(UNIT, 0, 1), "a clock that is turned back gives nothing"
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE), "and takes nothing"


def test_units_are_not_remembered_without_end():
    budget = spent()
    for number in range(MOST_UNITS):
        budget.takes(f"gpu-run@{number}.service", 0, BURST_BYTES)

    assert budget.takes(UNIT, 0, BURST_BYTES)
    assert not budget.takes(f"gpu-run@{MOST_UNITS - 1}.service", 0, 1)


def test_what_a_unit_writes_beyond_it_is_left_out_and_counted():
    limits = BatchLimits(lines=100, content_bytes=BURST_BYTES, span_us=MINUTE_US)
    service = Mock(limits=limits, size=lambda _line: BURST_BYTES // 4)
    entry = {"_SYSTEMD_UNIT": UNIT, "__REALTIME_TIMESTAMP": "7"}
    entries = [{**entry, "MESSAGE": f"line {number}", "__CURSOR": f"i={number}"} for number in range(10)]
    entries[9]["_SYSTEMD_UNIT"] = OTHER
    buffer, texts = LineBuffer(10 * BURST_BYTES), []

    read(Mock(entries=lambda: iter(entries)), buffer, service)

    while batch := buffer.take(limits):
        texts += [line.text for line in batch.lines]
    said = f"event=lines-dropped count=5 reason='{UNIT} wrote more than is sent of one unit'"
    assert sorted(texts) == sorted(["line 0", "line 1", "line 2", "line 3", "line 9", said])
