"""What one unit may send: a burst, and so much a minute after it."""

from image.logs.__main__ import read
from image.logs.budget import BURST_BYTES, BYTES_PER_MINUTE, MINUTE_US, MOST_UNITS, UnitBudget
from image.logs.buffer import BatchLimits, LineBuffer

UNIT, OTHER = "trainer@digits.service", "gpu-ready.service"


def spent(time_us=0):
    """A budget of which the unit has used all."""
    budget = UnitBudget()
    assert budget.takes(UNIT, time_us, BURST_BYTES)
    return budget


def test_a_unit_sends_a_burst_and_no_more():
    assert not spent().takes(UNIT, 0, 1)


def test_each_minute_gives_as_much_again():
    budget = spent()

    assert not budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE + 1)
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE)


def test_a_unit_that_was_silent_for_long_has_one_burst():
    budget = spent()

    assert not budget.takes(UNIT, 10**6 * MINUTE_US, BURST_BYTES + 1)
    assert budget.takes(UNIT, 10**6 * MINUTE_US, BURST_BYTES)


def test_another_unit_has_its_own():
    assert spent().takes(OTHER, 0, BURST_BYTES)


def test_a_clock_that_is_turned_back_gives_nothing_and_takes_nothing():
    budget = spent(time_us=10 * MINUTE_US)

    assert not budget.takes(UNIT, 0, 1)
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE)


def test_units_are_not_remembered_without_end():
    budget = spent()
    for number in range(MOST_UNITS):
        budget.takes(f"gpu-run@{number}.service", 0, BURST_BYTES)

    assert budget.takes(UNIT, 0, BURST_BYTES)
    assert not budget.takes(f"gpu-run@{MOST_UNITS - 1}.service", 0, 1)


class Service:
    """Of which every line takes a fourth of a burst."""

    limits = BatchLimits(lines=100, content_bytes=BURST_BYTES, span_us=MINUTE_US)

    def size(self, line):
        return BURST_BYTES // 4

    def send(self, lines):
        raise NotImplementedError


class Entries:
    """A journal that was read to its end."""

    def entries(self):
        for number in range(10):
            yield {
                "MESSAGE": f"line {number}",
                "_SYSTEMD_UNIT": OTHER if number == 9 else UNIT,
                "__REALTIME_TIMESTAMP": "7",
                "__CURSOR": f"i={number}",
            }


def test_what_a_unit_writes_beyond_it_is_left_out_and_counted():
    buffer, texts = LineBuffer(10 * BURST_BYTES), []

    read(Entries(), buffer, Service())

    while batch := buffer.take(Service.limits):
        texts += [line.text for line in batch.lines]
    said = f"event=lines-dropped count=5 reason='{UNIT} wrote more than is sent of one unit'"
    assert sorted(texts) == sorted(["line 0", "line 1", "line 2", "line 3", "line 9", said])
